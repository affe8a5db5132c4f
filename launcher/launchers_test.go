package main

import (
	"context"
	"os"
	"path/filepath"
	"testing"
)

// Launchers of different makers have the same names; each says in its own words who it is.
func TestLaunchersAreToldApart(t *testing.T) {
	dir := t.TempDir()
	script := func(name, says string) string {
		path := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o777); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, []byte("#!/bin/sh\necho '"+says+"'\n"), 0o777); err != nil {
			t.Fatal(err)
		}
		return path
	}
	link := func(name, to string) string {
		path := filepath.Join(dir, name)
		if err := os.Symlink(to, path); err != nil {
			t.Fatal(err)
		}
		return path
	}
	orterun := script("orterun", "")
	for path, want := range map[string]string{
		script("mpirun", "mpirun (Open MPI) 4.1.4"):                                                  "openmpi",
		link("mpiexec.openmpi", orterun):                                                             "openmpi",
		script("mpiexec", "HYDRA build details:"):                                                    "hydra",
		script("pals/bin/mpiexec", ""):                                                               "pals",
		script("cray/mpiexec", "mpiexec version 1.3.2"):                                              "pals",
		script("intel/mpirun", "Intel(R) MPI Library for Linux* OS, Version 2021.12 Build 20240213"): "intelmpi",
		link("mpirun.mpich", script("mpiexec.hydra", "HYDRA build details:")):                        "hydra",
		script("mpi/mpiexec", "mpiexec 1.0 of somebody else"):                                        "plain",
		script("aprun", ""):                      "aprun",
		script("jsrun", ""):                      "jsrun",
		script("torchrun", ""):                   "torchrun",
		script("app", "mpirun (Open MPI) 4.1.4"): "plain",
		script("srun", "slurm 22.05.8"):          "srun",
	} {
		cmd := &command{argv: []string{path}, path: path}
		if d := chooseDialect(context.Background(), cmd); d.name != want {
			t.Errorf("%s: got %s, want %s", filepath.Base(path), d.name, want)
		}
	}
}

const hydraSets = "-genv LD_PRELOAD OURS -genv PROFILE"

func TestHydra(t *testing.T) {
	checkDialect(t, &hydra, []dialectCase{
		{"ranks", "mpiexec -n 4 app -genv x", nil, "mpiexec " + hydraSets + " -n 4 app -genv x", nil, 4, "app"},
		{"contexts", "mpiexec -np 1 a : -n 3 -wdir /tmp b", nil, "mpiexec " + hydraSets + " -np 1 a : -n 3 -wdir /tmp b", nil, 4, "a b"},
		{"as many ranks as slots", "mpiexec -hosts h1,h2 app", nil, "mpiexec " + hydraSets + " -hosts h1,h2 app", nil, 0, "app"},
		{"number with =", "mpiexec -n=2 -ppn=1 app", nil, "mpiexec " + hydraSets + " -n=2 -ppn=1 app", nil, 2, "app"},
		{"F15: nothing is exported", "mpiexec -genvnone -n 1 app", []string{"LD_PRELOAD=/e.so"}, "mpiexec " + hydraSets + " -genvnone -n 1 app", nil, 1, "app"},
		{"a list of variables", "mpiexec -genvlist PATH,HOME -n 1 app", []string{"LD_PRELOAD=/e.so"},
			"mpiexec " + hydraSets + " -genvlist PATH,HOME -n 1 app", nil, 1, "app"},
		{"a list with the preload", "mpiexec -genvlist PATH,LD_PRELOAD -n 1 app", []string{"LD_PRELOAD=/e.so"},
			"mpiexec -genv LD_PRELOAD OURS:/e.so -genv PROFILE -genvlist PATH,LD_PRELOAD -n 1 app", nil, 1, "app"},
		{"F17: the environment's preload", "mpiexec -n 1 app", []string{"LD_PRELOAD=/e.so"},
			"mpiexec -genv LD_PRELOAD OURS:/e.so -genv PROFILE -n 1 app", nil, 1, "app"},
		{"F17: a preload for all", "mpiexec -genv LD_PRELOAD /g.so -n 1 a : -n 1 -envnone b", []string{"LD_PRELOAD=/e.so"},
			"mpiexec -genv LD_PRELOAD OURS:/g.so -genv PROFILE -n 1 a : -n 1 -envnone b", nil, 2, "a b"},
		{"F17: a preload for all, in one word", "mpiexec -genv LD_PRELOAD=/g.so -n 1 a", nil,
			"mpiexec -genv LD_PRELOAD OURS:/g.so -genv PROFILE -n 1 a", nil, 1, "a"},
		{"F17: a preload of one context stays there", "mpiexec -n 1 -env LD_PRELOAD /m.so -env A 1 a : -n 1 b", nil,
			"mpiexec " + hydraSets + " -env LD_PRELOAD OURS:/m.so -n 1 -env A 1 a : -n 1 b", nil, 2, "a b"},
		{"one context without the environment", "mpiexec -n 1 -envnone a : -n 1 b", []string{"LD_PRELOAD=/e.so"},
			"mpiexec -genv LD_PRELOAD OURS:/e.so -genv PROFILE -env LD_PRELOAD OURS -n 1 -envnone a : -n 1 b", nil, 2, "a b"},
	})
}

func TestIntelMPI(t *testing.T) {
	checkDialect(t, &intelMPI, []dialectCase{
		{"ranks and hosts", "mpirun -n 4 -ppn 2 -hosts h1,h2 -genv I_MPI_DEBUG 5 app", nil,
			"mpirun " + hydraSets + " -n 4 -ppn 2 -hosts h1,h2 -genv I_MPI_DEBUG 5 app", nil, 4, "app"},
		{"all but some variables", "mpirun -genvexcl LD_PRELOAD -perhost 1 -n 2 app", []string{"LD_PRELOAD=/e.so"},
			"mpirun " + hydraSets + " -genvexcl LD_PRELOAD -perhost 1 -n 2 app", nil, 2, "app"},
		{"flags", "mpirun -print-rank-map -l -n 2 app", nil, "mpirun " + hydraSets + " -print-rank-map -l -n 2 app", nil, 2, "app"},
	})
}

func TestHydraConfigurationFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "conf")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o666); err != nil {
			t.Fatal(err)
		}
	}
	write("-n 1 a\n-n 1 -env A 1 b\n")
	checkDialect(t, &hydra, []dialectCase{{"of contexts", "mpiexec -configfile " + file, nil, "mpiexec " + hydraSets + " -configfile " + file, nil, 0, ""}})
	write("-n 1 -env LD_PRELOAD /m.so a\n")
	in := testInjection
	cmd := &command{argv: []string{"mpiexec", "-configfile", file}, environ: map[string]string{}}
	if _, err := hydra.inject(cmd, &in); err == nil || hintOf(err) == "" {
		t.Errorf("a configuration file that sets LD_PRELOAD was taken: %v", err)
	}
}

func TestPALS(t *testing.T) {
	e := "--env LD_PRELOAD=OURS --env CONFIG"
	checkDialect(t, &pals, []dialectCase{
		{"ranks", "mpiexec -n 8 --ppn 4 --depth=1 --cpu-bind depth --env A=1 app", nil,
			"mpiexec " + e + " -n 8 --ppn 4 --depth=1 --cpu-bind depth --env A=1 app", nil, 8, "app"},
		{"F21: several programs", "mpiexec --np 1 a : -np 2 -env B=2 b", nil, "mpiexec " + e + " --np 1 a : " + e + " -np 2 -env B=2 b", nil, 3, "a b"},
		{"F17: the application's own preload", "mpiexec -n 1 --env LD_PRELOAD=/m.so app", []string{"LD_PRELOAD=/e.so"},
			"mpiexec --env LD_PRELOAD=OURS:/m.so --env CONFIG -n 1 app", nil, 1, "app"},
		{"F17: the environment's preload", "mpiexec -n 1 app", []string{"LD_PRELOAD=/e.so"}, "mpiexec --env LD_PRELOAD=OURS:/e.so --env CONFIG -n 1 app", nil, 1, "app"},
	})
}

func TestAprun(t *testing.T) {
	e := "-e LD_PRELOAD=OURS -e CONFIG"
	checkDialect(t, &aprun, []dialectCase{
		{"ranks", "aprun -n 4 -N 2 -cc depth -b app -n", nil, "aprun " + e + " -n 4 -N 2 -cc depth -b app -n", nil, 4, "app"},
		{"letters with their arguments", "aprun -n4 -N2 -eA=1 app", nil, "aprun " + e + " -n4 -N2 -eA=1 app", nil, 4, "app"},
		{"one rank", "aprun app", nil, "aprun " + e + " app", nil, 1, "app"},
		{"long options", "aprun --pes=4 --pes-per-node 2 app", nil, "aprun " + e + " --pes=4 --pes-per-node 2 app", nil, 4, "app"},
		{"F21: several programs", "aprun -n 1 a : -n 2 -e B=2 b", nil, "aprun " + e + " -n 1 a : " + e + " -n 2 -e B=2 b", nil, 3, "a b"},
		{"F17: the application's own preload", "aprun -n 1 -eLD_PRELOAD=/m.so app", nil, "aprun -e LD_PRELOAD=OURS:/m.so -e CONFIG -n 1 app", nil, 1, "app"},
	})
}

func TestJsrun(t *testing.T) {
	e := "-E LD_PRELOAD=OURS -E CONFIG"
	checkDialect(t, &jsrun, []dialectCase{
		{"ranks", "jsrun -n 4 -a 6 -c 7 -g 1 -r 2 -b packed:7 -E OMP_NUM_THREADS=1 app", nil,
			"jsrun " + e + " -n 4 -a 6 -c 7 -g 1 -r 2 -b packed:7 -E OMP_NUM_THREADS=1 app", nil, 24, "app"},
		{"letters with their arguments", "jsrun -n4 -a1 -EA=1 -dpacked app", nil, "jsrun " + e + " -n4 -a1 -EA=1 -dpacked app", nil, 4, "app"},
		{"long options", "jsrun --np 3 --smpiargs=-gpu app", nil, "jsrun " + e + " --np 3 --smpiargs=-gpu app", nil, 3, "app"},
		{"on all hosts", "jsrun -n ALL_HOSTS -a 2 app", nil, "jsrun " + e + " -n ALL_HOSTS -a 2 app", nil, 0, "app"},
		{"F21: several programs", "jsrun -p1 a : -p2 b", nil, "jsrun " + e + " -p1 a : " + e + " -p2 b", nil, 3, "a b"},
		{"F17: the application's own preload", "jsrun --env=LD_PRELOAD=/m.so -p1 app", nil, "jsrun -E LD_PRELOAD=OURS:/m.so -E CONFIG -p1 app", nil, 1, "app"},
		{"F17: the environment's by name", "jsrun -E LD_PRELOAD -p1 app", []string{"LD_PRELOAD=/e.so"}, "jsrun -E LD_PRELOAD=OURS:/e.so -E CONFIG -p1 app", nil, 1, "app"},
	})
}

func TestFlux(t *testing.T) {
	e := "--env=LD_PRELOAD=OURS --env=CONFIG"
	rules := filepath.Join(t.TempDir(), "rules")
	if err := os.WriteFile(rules, []byte("-*\nPATH\nLD_PRELOAD=/f.so\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	checkDialect(t, &flux, []dialectCase{
		{"ranks", "flux run -n 4 -N2 --env=A=1 app --env=x", nil, "flux run -n 4 -N2 --env=A=1 " + e + " app --env=x", nil, 4, "app"},
		{"older spelling", "flux mini run -n4 app", nil, "flux mini run -n4 " + e + " app", nil, 4, "app"},
		{"flux's own options", "flux -v --parent run -n4 app", nil, "flux -v --parent run -n4 " + e + " app", nil, 4, "app"},
		{"one rank", "flux run app", nil, "flux run " + e + " app", nil, 1, "app"},
		{"ranks a node", "flux run -N 2 --tasks-per-node=3 app", nil, "flux run -N 2 --tasks-per-node=3 " + e + " app", nil, 6, "app"},
		{"ranks by cores are not known", "flux run --cores=8 --tasks-per-core=1 app", nil, "flux run --cores=8 --tasks-per-core=1 " + e + " app", nil, 0, "app"},
		{"F15: the environment is cleared", "flux run --env=-* --env=PATH app", []string{"LD_PRELOAD=/e.so"}, "flux run --env=-* --env=PATH " + e + " app", nil, 1, "app"},
		{"F15: cleared and taken again", "flux run --env-remove=/.*/ --env=LD_* app", []string{"LD_PRELOAD=/e.so"},
			"flux run --env-remove=/.*/ --env=LD_* --env=LD_PRELOAD=OURS:/e.so --env=CONFIG app", nil, 1, "app"},
		{"F17: the environment's preload", "flux run app", []string{"LD_PRELOAD=/e.so"}, "flux run --env=LD_PRELOAD=OURS:/e.so --env=CONFIG app", nil, 1, "app"},
		{"F17: a rule's preload, made of another", "flux run --env=LD_PRELOAD=/a.so:$LD_PRELOAD app", []string{"LD_PRELOAD=/e.so"},
			"flux run --env=LD_PRELOAD=/a.so:$LD_PRELOAD --env=LD_PRELOAD=OURS:/a.so:/e.so --env=CONFIG app", nil, 1, "app"},
		{"a dollar of the linker's", "flux run --env=LD_PRELOAD=/$$LIB/a.so app", nil,
			"flux run --env=LD_PRELOAD=/$$LIB/a.so --env=LD_PRELOAD=OURS:/$$LIB/a.so --env=CONFIG app", nil, 1, "app"},
		{"rules of a file", "flux run --env-file=" + rules + " app", []string{"LD_PRELOAD=/e.so"},
			"flux run --env-file=" + rules + " --env=LD_PRELOAD=OURS:/f.so --env=CONFIG app", nil, 1, "app"},
	})
}

// torchrun has no option for the ranks' environment: they get the agent's.
func TestTorchrun(t *testing.T) {
	e := []string{"LD_PRELOAD=OURS", "CONFIG"}
	same := func(name, command string, ranks int, program string) dialectCase {
		return dialectCase{name, command, nil, command, e, ranks, program}
	}
	checkDialect(t, &torchrun, []dialectCase{
		same("ranks", "torchrun --nproc-per-node 4 train.py --nproc-per-node 9", 4, "torchrun"),
		same("nodes", "torchrun --nnodes=2 --nproc_per_node=8 --rdzv-endpoint h:1 train.py", 16, "torchrun"),
		same("one rank", "torchrun --standalone train.py", 1, "torchrun"),
		same("as many ranks as GPUs", "torchrun --nproc-per-node=gpu train.py", 0, "torchrun"),
		same("an elastic number of nodes", "torchrun --nnodes=1:4 train.py", 0, "torchrun"),
		same("as a module", "python3 -u -m torch.distributed.run --nproc_per_node 2 -m pkg.train", 2, "python3"),
		same("a program that is no Python", "torchrun --nproc-per-node 2 --no-python ./app", 2, "./app"),
	})
	for _, argv := range [][]string{{"python3", "train.py", "-m", "torch.distributed.run"}, {"python3", "-m", "torch.utils"}, {"python3"}} {
		if torchrun.matches(context.Background(), &command{argv: argv}) {
			t.Errorf("%q was taken for torchrun", argv)
		}
	}
}

func TestNodes(t *testing.T) {
	hostfile := filepath.Join(t.TempDir(), "hosts")
	if err := os.WriteFile(hostfile, []byte("# nodes\nn1 slots=4\nn2:2\n\nn1\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	slurm := []string{"SLURM_JOB_NUM_NODES=4"}
	pbs := []string{"PBS_NODEFILE=" + hostfile}
	for _, c := range []struct {
		dialect *dialect
		command string
		environ []string
		want    int
	}{
		{&plain, "app", slurm, 1},
		{&openMPI, "mpirun -np 4 app", nil, 1},
		{&openMPI, "mpirun -H h1:4,h2:4 -np 8 app", nil, 2},
		{&openMPI, "mpirun --hostfile " + hostfile + " app", nil, 2},
		{&openMPI, "mpirun --hostfile /none app", nil, 0},
		{&openMPI, "mpirun app", slurm, 4},
		{&hydra, "mpiexec -hosts h1,h2,h3 app", nil, 3},
		{&hydra, "mpiexec -f " + hostfile + " app", nil, 2},
		{&intelMPI, "mpirun app", pbs, 2},
		{&pals, "mpiexec -n 2 app", pbs, 2},
		{&pals, "mpiexec --hosts h1 -n 2 app", pbs, 1},
		{&aprun, "aprun -n 5 -N 2 app", nil, 3},
		{&aprun, "aprun -n 5 app", pbs, 2},
		{&jsrun, "jsrun -n 6 -r 2 app", nil, 3},
		{&jsrun, "jsrun -n 6 app", nil, 0},
		{&flux, "flux run -N 3 app", nil, 3},
		{&flux, "flux run -n 3 app", nil, 0},
		{&srun, "srun -N 2-4 app", nil, 4},
		{&srun, "srun -n 4 app", slurm, 4},
		{&srun, "srun -n 4 app", nil, 0},
		{&srun, "srun -N1 a : -N2 b", nil, 3},
		{&torchrun, "torchrun --nnodes 2 train.py", slurm, 1},
	} {
		if got := c.dialect.nodes(commandOf(c.command, c.environ)); got != c.want {
			t.Errorf("%s with %q: %d nodes, want %d", c.command, c.environ, got, c.want)
		}
	}
}
