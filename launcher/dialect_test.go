package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/sigmatrace/sigmatrace/profiles"
)

var testInjection = injection{libdir: "/l", libs: []string{"/l/libsigmatrace.so", "/l/provider-ucx.so"}, config: "/r/profile.resolved"}

// In the golden lines below, OURS stands for the recorder's libraries, CONFIG for the variable of the flat profile, and PROFILE for the
// same in two words.
var golden = strings.NewReplacer("OURS", "/l/libsigmatrace.so:/l/provider-ucx.so", "CONFIG", "SIGMATRACE_CONFIG=/r/profile.resolved",
	"PROFILE", "SIGMATRACE_CONFIG /r/profile.resolved")

type dialectCase struct {
	name    string
	command string   // words separated by spaces
	environ []string // of the command
	want    string   // the command line that is executed
	wantEnv []string // variables that the started command has beyond, or "-NAME" that it lacks
	ranks   int
	progs   string // programs that will run as ranks
}

// commandOf makes a command of words separated by spaces, without looking for its executable.
func commandOf(line string, environ []string) *command {
	return &command{argv: strings.Fields(line), environ: profiles.Environ(environ)}
}

func checkDialect(t *testing.T, d *dialect, cases []dialectCase) {
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			cmd := commandOf(c.command, c.environ)
			want := profiles.Environ(c.environ)
			for _, kv := range c.wantEnv {
				if name, ok := strings.CutPrefix(kv, "-"); ok {
					delete(want, name)
					continue
				}
				name, value, _ := strings.Cut(golden.Replace(kv), "=")
				want[name] = value
			}
			before := slices.Clone(cmd.argv)
			in := testInjection
			p, err := d.inject(cmd, &in)
			if err != nil {
				t.Fatal(err)
			}
			if got := strings.Join(p.argv, " "); got != golden.Replace(c.want) {
				t.Errorf("command line\ngot  %s\nwant %s", got, golden.Replace(c.want))
			}
			for _, name := range append(sortedNames(want), sortedNames(p.environ)...) {
				if w, ok := want[name]; p.environ[name] != w || !ok {
					t.Errorf("%s: got %q, want %q (set: %v)", name, p.environ[name], w, ok)
				}
			}
			if !slices.Equal(before, cmd.argv) {
				t.Errorf("the user's command line was changed to %q", cmd.argv)
			}
			if again, err := d.inject(cmd, &in); err != nil || !slices.Equal(again.argv, p.argv) {
				t.Errorf("a second injection gives %q, %v", again.argv, err)
			}
			if got := d.ranks(cmd); got != c.ranks {
				t.Errorf("got %d ranks, want %d", got, c.ranks)
			}
			if got := strings.Join(d.programs(cmd), " "); got != c.progs {
				t.Errorf("got programs %q, want %q", got, c.progs)
			}
		})
	}
}

// What a launcher leaves behind when it has told its version may keep its output open.
func TestVersionIsNotWaitedForLonger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "mpirun")
	if err := os.WriteFile(path, []byte("#!/bin/sh\nsleep 60 &\necho mpirun of Open MPI\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	said := make(chan bool, 1)
	c := &command{argv: []string{path}, path: path}
	go func() { said <- c.says(t.Context(), "Open MPI") }()
	select {
	case is := <-said:
		if !is {
			t.Errorf("it said %q", c.version)
		}
	case <-time.After(45 * time.Second):
		t.Fatal("still waiting")
	}
}

func TestEnvironmentKeepsItsOrder(t *testing.T) {
	environ := profiles.Environ(os.Environ())
	want := environList(environ)
	environ["ZZ_OURS"], environ["AA_OURS"] = "2", "1"
	want = append(want, "AA_OURS=1", "ZZ_OURS=2")
	for range 20 {
		if got := environList(environ); !slices.Equal(got, want) {
			t.Fatalf("got  %q\nwant %q", got, want)
		}
	}
	if inherited := os.Environ(); !slices.Equal(want[:len(inherited)], inherited) {
		t.Errorf("got  %q\nwant %q", want, inherited)
	}
}

func TestPlain(t *testing.T) {
	checkDialect(t, &plain, []dialectCase{
		{"alone", "app -x 1 : b", nil, "app -x 1 : b", []string{"LD_PRELOAD=OURS", "CONFIG"}, 0, "app"},
		{"another preload stays, behind", "app", []string{"LD_PRELOAD=/a.so:/b.so"}, "app", []string{"LD_PRELOAD=OURS:/a.so:/b.so", "CONFIG"}, 0, "app"},
		{"no library twice inside another launch", "app", []string{"LD_PRELOAD=/l/libsigmatrace.so:/l/provider-ibverbs.so:/a.so /l/provider-ucx.so", "SIGMATRACE_CONFIG=/outer"},
			"app", []string{"LD_PRELOAD=OURS:/a.so", "CONFIG"}, 0, "app"},
	})
}

func TestOverruledOffSwitchDoesNotReachTheRanks(t *testing.T) {
	cmd := &command{argv: []string{"a"}, environ: map[string]string{"SIGMATRACE": "off"}}
	for _, d := range dialects {
		in := testInjection
		in.clear = true
		if p, err := d.inject(cmd, &in); err != nil || p.environ["SIGMATRACE"] != "" {
			t.Errorf("%s: SIGMATRACE=%s, %v", d.name, p.environ["SIGMATRACE"], err)
		}
	}
}

const x = "-x LD_PRELOAD=OURS -x CONFIG"

func TestOpenMPI(t *testing.T) {
	list := "OMPI_MCA_mca_base_env_list"
	checkDialect(t, &openMPI, []dialectCase{
		{"ranks", "mpirun -np 4 app a b", nil, "mpirun " + x + " -np 4 app a b", nil, 4, "app"},
		{"long options", "mpiexec --oversubscribe --np 2 --mca btl self,tcp --bind-to none app -n 7", nil,
			"mpiexec " + x + " --oversubscribe --np 2 --mca btl self,tcp --bind-to none app -n 7", nil, 2, "app"},
		{"ranks by -n and by -c", "mpirun -n 2 a : -c 3 b", nil, "mpirun " + x + " -n 2 a : " + x + " -c 3 b", nil, 5, "a b"},
		{"as many ranks as slots", "mpirun -H h1:4 app", nil, "mpirun " + x + " -H h1:4 app", nil, 0, "app"},
		{"slots in one context", "mpirun -n 2 a : b", nil, "mpirun " + x + " -n 2 a : " + x + " b", nil, 0, "a b"},
		{"end of options", "mpirun -n 1 -- app -x LD_PRELOAD=no", nil, "mpirun " + x + " -n 1 -- app -x LD_PRELOAD=no", nil, 1, "app"},
		{"the application's own preload", "mpirun -x A=1 -x LD_PRELOAD=/m.so -np 1 app", nil,
			"mpirun -x LD_PRELOAD=OURS:/m.so -x CONFIG -x A=1 -np 1 app", nil, 1, "app"},
		{"its last preload holds, as for mpirun", "mpirun -x LD_PRELOAD=/m.so -x LD_PRELOAD=/n.so -np 1 app", nil,
			"mpirun -x LD_PRELOAD=OURS:/n.so -x CONFIG -np 1 app", nil, 1, "app"},
		{"preload by name takes the environment's", "mpirun -x LD_PRELOAD -np 1 app", []string{"LD_PRELOAD=/e.so"},
			"mpirun -x LD_PRELOAD=OURS:/e.so -x CONFIG -np 1 app", nil, 1, "app"},
		{"the environment's preload stays mpirun's", "mpirun -np 1 app", []string{"LD_PRELOAD=/e.so"},
			"mpirun -x LD_PRELOAD=OURS:/e.so -x CONFIG -np 1 app", nil, 1, "app"},
		{"a preload of one context stays there", "mpirun -n 1 -x LD_PRELOAD=/m.so a : -n 1 b", nil,
			"mpirun -x LD_PRELOAD=OURS:/m.so -x CONFIG -n 1 a : " + x + " -n 1 b", nil, 2, "a b"},
		{"MCA list on the command line", "mpirun --mca mca_base_env_list A=1;LD_PRELOAD=/m.so -np 1 app", nil,
			"mpirun --mca mca_base_env_list A=1;LD_PRELOAD=OURS:/m.so;CONFIG -np 1 app", nil, 1, "app"},
		{"MCA list in the environment", "mpirun -np 1 app", []string{list + "=A=1;B"}, "mpirun -np 1 app",
			[]string{list + "=A=1;B;LD_PRELOAD=OURS;CONFIG"}, 1, "app"},
		{"empty MCA list in the environment", "mpirun -np 1 app", []string{list + "="}, "mpirun -np 1 app",
			[]string{list + "=LD_PRELOAD=OURS;CONFIG"}, 1, "app"},
		{"no program", "mpirun --version", nil, "mpirun " + x + " --version", nil, 0, ""},
		{"option without its argument", "mpirun -np", nil, "mpirun " + x + " -np", nil, 0, ""},
	})
}

func TestOpenMPIApplicationFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "app")
	in := testInjection
	cmd := &command{argv: []string{"mpirun", "--app", file}, environ: map[string]string{}}
	if err := os.WriteFile(file, []byte("-np 1 a\n-np 1 b\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	p, err := openMPI.inject(cmd, &in)
	want := golden.Replace("LD_PRELOAD=OURS;CONFIG")
	if err != nil || p.environ["OMPI_MCA_mca_base_env_list"] != want || !slices.Equal(p.argv, cmd.argv) {
		t.Errorf("got %+v, %v", p, err)
	}
	if err := os.WriteFile(file, []byte("-np 1 -x A=1 a\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	if _, err := openMPI.inject(cmd, &in); err == nil || hintOf(err) == "" {
		t.Errorf("an application file with -x was taken: %v", err)
	}
}

func TestOpenMPIListCannotHoldASemicolon(t *testing.T) {
	in := testInjection
	in.config = "/r;s/profile.resolved"
	cmd := &command{argv: []string{"mpirun", "-np", "1", "a"}, environ: map[string]string{"OMPI_MCA_mca_base_env_list": "A=1"}}
	if _, err := openMPI.inject(cmd, &in); err == nil {
		t.Error("a ';' went into mca_base_env_list")
	}
}

func TestSrun(t *testing.T) {
	e := ",LD_PRELOAD=OURS,CONFIG"
	checkDialect(t, &srun, []dialectCase{
		{"ranks", "srun -N 2 -n8 app --export=x", nil, "srun --export=ALL" + e + " -N 2 -n8 app --export=x", nil, 8, "app"},
		{"letters in one word", "srun -lun4 app", nil, "srun --export=ALL" + e + " -lun4 app", nil, 4, "app"},
		{"optional arguments are attached", "srun -K -I5 --kill-on-bad-exit=1 --ntasks 3 app", nil,
			"srun --export=ALL" + e + " -K -I5 --kill-on-bad-exit=1 --ntasks 3 app", nil, 3, "app"},
		{"ranks by nodes", "srun -N2 --ntasks-per-node 4 app", nil, "srun --export=ALL" + e + " -N2 --ntasks-per-node 4 app", nil, 8, "app"},
		{"ranks by a range of nodes are not known", "srun -N2-4 app", nil, "srun --export=ALL" + e + " -N2-4 app", nil, 0, "app"},
		{"ranks of the allocation", "srun app", []string{"SLURM_NTASKS=16"}, "srun --export=ALL" + e + " app", nil, 16, "app"},
		{"export by name", "srun --export=PATH,A=1 -n1 app", nil, "srun --export=PATH,A=1" + e + " -n1 app", nil, 1, "app"},
		{"export in two words", "srun -n1 --export PATH app", nil, "srun --export=PATH" + e + " -n1 app", nil, 1, "app"},
		{"export nothing", "srun --export=NONE -n1 /app", nil, "srun --export=LD_PRELOAD=OURS,CONFIG -n1 /app", nil, 1, "/app"},
		{"export nothing by environment", "srun -n1 /app", []string{"SLURM_EXPORT_ENV=NONE"}, "srun --export=LD_PRELOAD=OURS,CONFIG -n1 /app", nil, 1, "/app"},
		{"srun's variable goes before Slurm's", "srun -n1 app", []string{"SLURM_EXPORT_ENV=NONE", "SRUN_EXPORT_ENV=ALL,A=1"},
			"srun --export=ALL,A=1" + e + " -n1 app", nil, 1, "app"},
		{"the application's own preload", "srun --export=ALL,LD_PRELOAD=/m.so -n1 app", nil, "srun --export=ALL,LD_PRELOAD=OURS:/m.so,CONFIG -n1 app", nil, 1, "app"},
		// With ALL the caller's LD_PRELOAD would win over the explicit one: it leaves srun's environment.
		{"the environment's preload", "srun -n1 app", []string{"LD_PRELOAD=/e.so"}, "srun --export=ALL,LD_PRELOAD=OURS:/e.so,CONFIG -n1 app", []string{"-LD_PRELOAD"}, 1, "app"},
		{"the environment's preload is not exported", "srun --export=PATH -n1 app", []string{"LD_PRELOAD=/e.so"}, "srun --export=PATH" + e + " -n1 app", []string{"-LD_PRELOAD"}, 1, "app"},
		{"all, in small letters", "srun --export=all -n1 app", []string{"LD_PRELOAD=/e.so"}, "srun --export=all,LD_PRELOAD=OURS:/e.so,CONFIG -n1 app", []string{"-LD_PRELOAD"}, 1, "app"},
		{"nothing, in small letters", "srun --export=none -n1 /app", nil, "srun --export=LD_PRELOAD=OURS,CONFIG -n1 /app", nil, 1, "/app"},
		{"heterogeneous step", "srun -n1 --export=NONE /a : -n2 b", nil, "srun --export=LD_PRELOAD=OURS,CONFIG -n1 /a : --export=ALL" + e + " -n2 b", nil, 3, "/a b"},
		{"names cut short", "srun -n2 --nodel h1 --expo=NONE /app", nil, "srun --export=LD_PRELOAD=OURS,CONFIG -n2 --nodel h1 /app", nil, 2, "/app"},
		{"a file of variables is an option of sbatch: srun will refuse it", "srun --export-file=vars -n1 app", nil, "srun --export=ALL" + e + " --export-file=vars -n1 app", nil, 1, "app"},
		{"the nodes of the allocation", "srun app", []string{"SLURM_JOB_NUM_NODES=2"}, "srun --export=ALL" + e + " app", nil, 2, "app"},
		{"components of a heterogeneous job", "srun --het-group=0,2-3 -n2 app", nil, "srun --export=ALL" + e + " --het-group=0,2-3 -n2 app", nil, 6, "app"},
		{"F22: each task is torchrun", "srun -N2 --ntasks-per-node=1 torchrun --nproc-per-node 8 --nnodes 2 train.py", nil,
			"srun --export=ALL" + e + " -N2 --ntasks-per-node=1 torchrun --nproc-per-node 8 --nnodes 2 train.py", nil, 16, "torchrun"},
	})
}

func TestSrunExportCannotHoldAComma(t *testing.T) {
	in := testInjection
	in.config = "/r,s/profile.resolved"
	if _, err := srun.inject(&command{argv: []string{"srun", "a"}, environ: map[string]string{}}, &in); err == nil {
		t.Error("a ',' went into --export")
	}
}

func TestSrunProgramsOfAFile(t *testing.T) {
	conf := filepath.Join(t.TempDir(), "conf")
	if err := os.WriteFile(conf, []byte("# tasks\n0 ./master -v\n1-2 ./worker %t\n3 ./worker last\n"), 0o666); err != nil {
		t.Fatal(err)
	}
	checkDialect(t, &srun, []dialectCase{{"several programs in a file", "srun -n4 --multi-prog " + conf, nil,
		"srun --export=ALL,LD_PRELOAD=OURS,CONFIG -n4 --multi-prog " + conf, nil, 4, "./master ./worker"}})
}
