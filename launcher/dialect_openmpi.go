package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

// openMPI is the mpirun, mpiexec, orterun or prterun of Open MPI. Variables go to the ranks by -x, in each application context, so
// that mpirun itself and its daemons stay untouched. What mpirun(1) says of -x: with the MCA parameter mca_base_env_list it must not
// be mixed, so where that is used the list is extended; and of -app: all other options are ignored, so the list is used.
var openMPI = dialect{
	name:     "openmpi",
	matches:  isOpenMPI,
	ranks:    openMPIRanks,
	programs: openMPIPrograms,
	inject:   injectOpenMPI,
}

// envList is the MCA parameter that sets variables of the ranks: NAME=VALUE;NAME=VALUE.
const envList = "mca_base_env_list"

// openMPIArguments says how many arguments an option takes; one that is not here takes none. Open MPI 4 and 5 (prterun).
var openMPIArguments = arguments(
	1, "add-host add-hostfile am app appfile append-env bind-to c cartofile cf cpu-list cpu-set cpus-per-proc cpus-per-rank debugger default-hostfile"+
		" display dvm dvm-uri exec-agent forward-signals H hnp host hostfile keepalive launch-agent machinefile map-by max-restarts max-vm-size N n"+
		" np npernode npersocket num-connect-retries ompi-server output output-filename path personality ppr prefix preload-files pset rank-by"+
		" rankfile report-events report-pid report-uri rf rtos runtime-options slot-list spawn-timeout stdin timeout tune wd wdir with-ft x"+
		" xml-file xterm",
	2, "gmca mca omca pmixmca prtemca")

// arguments makes a table of option -> number of arguments out of pairs (number, space separated options).
func arguments(pairs ...any) map[string]int {
	table := map[string]int{}
	for i := 0; i < len(pairs); i += 2 {
		for option := range strings.FieldsSeq(pairs[i+1].(string)) {
			table[option] = pairs[i].(int)
		}
	}
	return table
}

// isOpenMPI tells Open MPI from MPICH and Intel MPI, whose launchers have the same names.
func isOpenMPI(ctx context.Context, c *command) bool {
	names := []string{filepath.Base(c.argv[0])}
	if real, err := filepath.EvalSymlinks(c.path); err == nil {
		names = append(names, filepath.Base(real))
	}
	launcher := false
	for _, name := range names {
		switch name {
		case "orterun", "prterun":
			return true
		case "mpirun", "mpiexec", "mpirun.openmpi", "mpiexec.openmpi":
			launcher = true
		}
	}
	if !launcher {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	out, _ := exec.CommandContext(ctx, c.path, "--version").CombinedOutput() // a failing --version says who it is as well
	return strings.Contains(string(out), "Open MPI") || strings.Contains(string(out), "OpenRTE")
}

// appContext is one of the parts of an mpirun command line that are separated by ":".
type appContext struct {
	options [][]string // each with its arguments
	program []string   // the program and its arguments, a leading "--" included
}

// openMPIContexts takes a command line apart. mpirun splits at every ":" word, those among a program's arguments included.
func openMPIContexts(argv []string) []appContext {
	var contexts []appContext
	start := 1
	for i := 1; i <= len(argv); i++ {
		if i == len(argv) || argv[i] == ":" {
			contexts = append(contexts, parseContext(argv[start:i]))
			start = i + 1
		}
	}
	return contexts
}

func parseContext(args []string) appContext {
	var a appContext
	for i := 0; i < len(args); {
		if args[i] == "--" || !strings.HasPrefix(args[i], "-") {
			a.program = args[i:]
			break
		}
		n := 1
		if !strings.Contains(args[i], "=") {
			n += openMPIArguments[optionName(args[i])]
		}
		n = min(n, len(args)-i)
		a.options = append(a.options, args[i:i+n])
		i += n
	}
	return a
}

// optionName is the name of -name, --name or --name=value.
func optionName(word string) string {
	name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
	return name
}

// optionValue is the first argument of an option.
func optionValue(option []string) string {
	if _, value, ok := strings.Cut(option[0], "="); ok {
		return value
	}
	if len(option) > 1 {
		return option[1]
	}
	return ""
}

func openMPIRanks(c *command) int {
	total := 0
	for _, a := range openMPIContexts(c.argv) {
		ranks := 0
		for _, option := range a.options {
			switch optionName(option[0]) {
			case "np", "n", "c":
				ranks, _ = strconv.Atoi(optionValue(option))
			}
		}
		if ranks <= 0 {
			return 0 // as many as there are slots
		}
		total += ranks
	}
	return total
}

func openMPIPrograms(c *command) []string {
	var programs []string
	for _, a := range openMPIContexts(c.argv) {
		program := a.program
		if len(program) > 0 && program[0] == "--" {
			program = program[1:]
		}
		if len(program) > 0 {
			programs = append(programs, program[0])
		}
	}
	return programs
}

func injectOpenMPI(c *command, in *injection) (*plan, error) {
	p := &plan{environ: in.environment(c), preload: in.preload(c.environ["LD_PRELOAD"])}
	contexts := openMPIContexts(c.argv)
	argv := c.argv[:1:1]
	for i, a := range contexts {
		if i > 0 {
			argv = append(argv, ":")
		}
		words, err := a.inject(c, in, p)
		if err != nil {
			return nil, err
		}
		argv = append(argv, words...)
	}
	p.argv = argv
	return p, nil
}

// inject returns the context's words with our variables in them. Where they go by a variable of mpirun's, p's environment is changed.
func (a *appContext) inject(c *command, in *injection, p *plan) ([]string, error) {
	variable := "OMPI_MCA_" + envList
	for i, option := range a.options {
		switch name := optionName(option[0]); {
		case (name == "mca" || name == "gmca") && len(option) == 3 && option[1] == envList:
			list, err := extendList(option[2], c, in, p)
			if err != nil {
				return nil, err
			}
			a.options[i] = []string{option[0], envList, list}
			return a.words(nil), nil
		case name == "app" || name == "appfile":
			if err := checkAppFile(optionValue(option)); err != nil {
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
	existing := c.environ["LD_PRELOAD"]
	kept := a.options[:0:0]
	for _, option := range a.options {
		if optionName(option[0]) == "x" {
			name, value, set := strings.Cut(optionValue(option), "=")
			if name == "LD_PRELOAD" && set {
				existing = value
			}
			if name == "LD_PRELOAD" || name == "SIGMATRACE_CONFIG" {
				continue // of two the last holds: ours replaces the user's and has its value
			}
		}
		kept = append(kept, option)
	}
	a.options = kept
	p.preload = in.preload(existing)
	return a.words([]string{"-x", "LD_PRELOAD=" + p.preload, "-x", "SIGMATRACE_CONFIG=" + in.config}), nil
}

func (a *appContext) words(first []string) []string {
	words := first
	for _, option := range a.options {
		words = append(words, option...)
	}
	return append(words, a.program...)
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
