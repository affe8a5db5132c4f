package main

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
)

// hydra is the mpiexec or mpirun of MPICH and of MPIs made from it (MVAPICH, ParaStation). Variables go to the ranks by -genv, which
// beats the inherited environment whatever -genvnone, -genvlist, -envnone and -envlist keep of it, and by -env in a context that is to
// have another preload; mpiexec and its proxies stay untouched.
var hydra = dialect{
	name: "hydra",
	matches: func(ctx context.Context, c *command) bool {
		return c.called("mpirun", "mpiexec", "mpirun.mpich", "mpiexec.mpich", "mpiexec.hydra", "mpirun.hydra") && c.says(ctx, "HYDRA", "MPICH", "MVAPICH")
	},
	ranks:    hydraRanks,
	nodes:    hydraNodes,
	programs: hydraPrograms,
	inject:   injectHydra,
}

// hydraSyntax has the options of MPICH 3 and 4 and of Intel MPI 2019 and 2021. What may or may not have an argument (-tune, -trace) is
// taken to have none.
var hydraSyntax = syntax{
	pairs: words("env genv"),
	arguments: arguments(1, "arch bind-to binding bootstrap bootstrap-exec bootstrap-exec-args branch-count ckpoint-interval ckpoint-num"+
		" ckpoint-prefix ckpointlib configfile demux envexcl envlist errfile errfile-pattern f file genvexcl genvlist gpath gpus-per-proc grr"+
		" gtool gtoolfile gumask gwdir host hostfile hostlist hosts hosts-group iface l-wdir launcher launcher-exec localhost machine machinefile"+
		" machinelist machines map-by membind n nameserver np order-nodes outfile outfile-pattern path perhost pmi-aggregate-number ppn"+
		" prepend-pattern profile-dir rmk s soft spec timeout topolib tmpdir umask use-app-topology usize wdir")}

// hydraRanks is 0 where a context has as many ranks as there are slots, or the contexts are in a file.
func hydraRanks(c *command) int { return total(hydraSyntax.contexts(c.argv), "n", "np") }

func hydraNodes(c *command) int {
	return hostsOf(hydraSyntax.contexts(c.argv), c, []string{"hosts", "hostlist", "host"}, []string{"f", "hostfile", "machinefile", "machine", "machines", "machinelist"})
}

func hydraPrograms(c *command) []string { return executables(hydraSyntax.contexts(c.argv)) }

// inheritance is what of mpiexec's own environment the ranks get, by the last of these options: all where there is none.
func inheritance(contexts []appContext, prefix string) (passes func(name string) bool, given bool) {
	passes = func(string) bool { return true }
	for _, a := range contexts {
		for _, o := range a.options {
			list := strings.Split(o.value, ",")
			switch o.name {
			case prefix + "all":
				passes, given = func(string) bool { return true }, true
			case prefix + "none":
				passes, given = func(string) bool { return false }, true
			case prefix + "list":
				passes, given = func(name string) bool { return slices.Contains(list, name) }, true
			case prefix + "excl":
				passes, given = func(name string) bool { return !slices.Contains(list, name) }, true
			}
		}
	}
	return passes, given
}

func injectHydra(c *command, in *injection) (*plan, error) {
	p := &plan{environ: in.environment(c)}
	contexts := hydraSyntax.contexts(c.argv)
	common, setForAll := "", false
	for i := range contexts {
		if file, given := contexts[i].value("configfile"); given {
			if err := checkConfigFile(file); err != nil {
				return nil, err
			}
		}
		if value, set := contexts[i].takeVariables("genv"); set {
			common, setForAll = value, true
		}
	}
	inherited := func(passes func(string) bool) string {
		if passes("LD_PRELOAD") {
			return c.environ["LD_PRELOAD"]
		}
		return ""
	}
	if passes, _ := inheritance(contexts, "genv"); !setForAll {
		common = inherited(passes)
	}
	p.preload = in.preload(common)
	parts := make([][]string, len(contexts))
	for i := range contexts {
		a := &contexts[i]
		own, set := a.takeVariables("env")
		if passes, given := inheritance(contexts[i:i+1], "env"); !set && given && !setForAll {
			own, set = inherited(passes), true
		}
		var ours []string
		if i == 0 {
			ours = []string{"-genv", "LD_PRELOAD", p.preload, "-genv", "SIGMATRACE_CONFIG", in.config}
		}
		if value := in.preload(own); set && value != p.preload {
			ours = append(ours, "-env", "LD_PRELOAD", value)
		}
		parts[i] = a.words(ours)
	}
	p.argv = join(c.argv[0], parts)
	return p, nil
}

// checkConfigFile refuses a file of contexts that sets LD_PRELOAD itself, which would replace ours.
func checkConfigFile(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return &failure{err: fmt.Errorf("reading mpiexec's configuration file: %w", err), status: exitFailure}
	}
	for word := range strings.FieldsSeq(string(text)) {
		if name, _, _ := strings.Cut(word, "="); name == "LD_PRELOAD" {
			return failf("write the contexts on the command line, separated by ':'", "configuration file %s sets LD_PRELOAD, which would replace the recorder's", path)
		}
	}
	return nil
}
