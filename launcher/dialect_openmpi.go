package main

import (
	"context"
	"fmt"
	"os"
	"strings"
)

// openMPI is the mpirun, mpiexec, orterun or prterun of Open MPI. Variables go to the ranks by -x, in each application context, so
// that mpirun itself and its daemons stay untouched. What mpirun(1) says of -x: with the MCA parameter mca_base_env_list it must not
// be mixed, so where that is used the list is extended; and of -app: all other options are ignored, so the list is used.
var openMPI = dialect{
	name:     "openmpi",
	matches:  isOpenMPI,
	ranks:    openMPIRanks,
	nodes:    openMPINodes,
	programs: openMPIPrograms,
	inject:   injectOpenMPI,
}

// envList is the MCA parameter that sets variables of the ranks: NAME=VALUE;NAME=VALUE.
const envList = "mca_base_env_list"

// openMPISyntax says how many arguments an option takes; one that is not here takes none. Open MPI 4 and 5 (prterun).
var openMPISyntax = syntax{arguments: arguments(
	1, "add-host add-hostfile am app appfile append-env bind-to c cartofile cf cpu-list cpu-set cpus-per-proc cpus-per-rank debugger default-hostfile"+
		" display dvm dvm-uri exec-agent forward-signals H hnp host hostfile keepalive launch-agent machinefile map-by max-restarts max-vm-size N n"+
		" np npernode npersocket num-connect-retries ompi-server output output-filename path personality ppr prefix preload-files pset rank-by"+
		" rankfile report-events report-pid report-uri rf rtos runtime-options slot-list spawn-timeout stdin timeout tune wd wdir with-ft x"+
		" xml-file xterm",
	2, "gmca mca omca pmixmca prtemca")}

// isOpenMPI tells Open MPI from MPICH, Intel MPI and PALS, whose launchers have the same names.
func isOpenMPI(ctx context.Context, c *command) bool {
	if c.called("orterun", "prterun") {
		return true
	}
	return c.called("mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.openmpi") && c.says(ctx, "Open MPI", "OpenRTE")
}

// openMPIRanks is 0 where a context has as many ranks as there are slots.
func openMPIRanks(c *command) int { return total(openMPISyntax.contexts(c.argv), "np", "n", "c") }

// openMPINodes counts the hosts that are named, else those of the allocation; mpirun uses this host where neither is there.
func openMPINodes(c *command) int {
	return hostsOf(openMPISyntax.contexts(c.argv), c, []string{"H", "host"}, []string{"hostfile", "machinefile", "default-hostfile"})
}

func openMPIPrograms(c *command) []string { return executables(openMPISyntax.contexts(c.argv)) }

func injectOpenMPI(c *command, in *injection) (*plan, error) {
	p := &plan{environ: in.environment(c), preload: in.preload(c.environ["LD_PRELOAD"])}
	var parts [][]string
	for _, a := range openMPISyntax.contexts(c.argv) {
		words, err := injectContext(&a, c, in, p)
		if err != nil {
			return nil, err
		}
		parts = append(parts, words)
	}
	p.argv = join(c.argv[0], parts)
	return p, nil
}

// injectContext returns the context's words with our variables in them. Where they go by a variable of mpirun's, p's environment is
// changed.
func injectContext(a *appContext, c *command, in *injection, p *plan) ([]string, error) {
	variable := "OMPI_MCA_" + envList
	for i, o := range a.options {
		switch {
		case (o.name == "mca" || o.name == "gmca") && len(o.words) == 3 && o.value == envList:
			list, err := extendList(o.words[2], c, in, p)
			if err != nil {
				return nil, err
			}
			a.options[i].words = []string{o.words[0], envList, list}
			return a.words(nil), nil
		case o.name == "app" || o.name == "appfile":
			if err := checkAppFile(o.value); err != nil {
				return nil, err
			}
			list, err := extendList(c.environ[variable], c, in, p)
			p.environ[variable] = list
			return a.words(nil), err
		}
	}
	if list, set := c.environ[variable]; set { // mpirun refuses -x beside it even when it is empty
		list, err := extendList(list, c, in, p)
		p.environ[variable] = list
		return a.words(nil), err
	}
	existing, set := a.takeVariables("x") // of two the last holds: ours replaces the user's and has its value
	if !set {
		existing = c.environ["LD_PRELOAD"]
	}
	p.preload = in.preload(existing)
	return a.words([]string{"-x", "LD_PRELOAD=" + p.preload, "-x", "SIGMATRACE_CONFIG=" + in.config}), nil
}

// extendList adds our variables to the value of mca_base_env_list.
func extendList(list string, c *command, in *injection, p *plan) (string, error) {
	existing := c.environ["LD_PRELOAD"]
	var entries []string
	for entry := range strings.SplitSeq(list, ";") {
		name, value, set := strings.Cut(entry, "=")
		if name == "LD_PRELOAD" && set {
			existing = value
		}
		if name != "" && name != "LD_PRELOAD" && name != "SIGMATRACE_CONFIG" {
			entries = append(entries, entry)
		}
	}
	p.preload = in.preload(existing)
	for _, ours := range []string{"LD_PRELOAD=" + p.preload, "SIGMATRACE_CONFIG=" + in.config} {
		if strings.Contains(ours, ";") {
			return "", failf("use a run directory and library paths without ';'", "%q cannot be in mpirun's %s, which splits at ';'", ours, envList)
		}
		entries = append(entries, ours)
	}
	return strings.Join(entries, ";"), nil
}

// checkAppFile refuses an application file that sets variables itself: mpirun takes -x or the list, not both.
func checkAppFile(path string) error {
	text, err := os.ReadFile(path)
	if err != nil {
		return &failure{err: fmt.Errorf("reading mpirun's application file: %w", err), status: exitFailure}
	}
	for word := range strings.FieldsSeq(string(text)) {
		if word == "-x" || word == "--x" {
			return failf("write the contexts on the command line, separated by ':'", "application file %s uses -x, which cannot be combined", path)
		}
	}
	return nil
}
