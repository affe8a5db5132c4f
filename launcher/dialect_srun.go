package main

import (
	"context"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
)

// srun is Slurm's. Variables go to the tasks by --export, in each component of a heterogeneous step; srun itself stays untouched.
// srun(1): with ALL the caller's variables take precedence over explicit ones, so LD_PRELOAD leaves srun's own environment and its
// value goes into the explicit one; NONE cannot be combined and becomes the plain list of our variables.
var srun = dialect{
	name:      "srun",
	matches:   func(_ context.Context, c *command) bool { return filepath.Base(c.argv[0]) == "srun" },
	ranks:     srunRanks,
	nodes:     srunNodes,
	elsewhere: true,
	programs:  srunPrograms,
	inject:    injectSrun,
}

const (
	// srunShort are the letters that take an argument; srunOptional those whose argument, if any, is in the same word.
	srunShort    = "ABCDFGJLMNSTWbcdeimnopqrtwx"
	srunOptional = "IKk"
	srunExport   = "--export"
)

// srunBare are the long options without an argument, or with one after "=" only. All others take one, except those of SPANK plugins,
// of which nothing is known here: they are taken to have none.
var srunBare = words("compress contiguous disable-status exact exclusive help hold immediate kill-on-bad-exit label multi-prog nice no-allocate" +
	" no-kill overcommit overlap oversubscribe preserve-env propagate pty quiet quit-on-interrupt reboot resv-ports send-libs spread-job" +
	" unbuffered usage use-min-nodes verbose version x11 container-save external-launcher interactive treewidth-off whole")

var srunLong = words("account acctg-freq bb bbf bcast bcast-exclude begin chdir cluster-constraint clusters comment constraint container container-id" +
	" core-spec cores-per-socket cpu-bind cpu-freq cpus-per-gpu cpus-per-task deadline debugger-test delay-boot dependency distribution epilog" +
	" error exclude export extra extra-node-info gpu-bind gpu-freq gpus gpus-per-node gpus-per-socket gpus-per-task gres gres-flags" +
	" het-group hint input jobid job-name licenses mail-type mail-user mcs-label mem mem-bind mem-per-cpu mem-per-gpu mincpus mpi" +
	" msg-timeout network nodefile nodelist nodes ntasks ntasks-per-core ntasks-per-gpu ntasks-per-node ntasks-per-socket ntasks-per-tres" +
	" oom-kill-step open-mode output partition power prefer priority profile prolog qos relative reservation resources segment signal" +
	" slurmd-debug sockets-per-node stepmgr switches task-epilog task-prolog thread-spec threads threads-per-core time time-min tmp tres-bind" +
	" tres-per-task uid gid wait wckey")

func words(list string) map[string]bool {
	set := map[string]bool{}
	for w := range strings.FieldsSeq(list) {
		set[w] = true
	}
	return set
}

// srunContexts takes a command line apart. Options are named as "-n" or "--ntasks".
func srunContexts(argv []string) []appContext {
	var list []appContext
	for _, part := range splitContexts(argv) {
		list = append(list, parseSrun(part))
	}
	return list
}

func parseSrun(args []string) appContext {
	var a appContext
	for i := 0; i < len(args); {
		word := args[i]
		if word == "--" || word == "-" || !strings.HasPrefix(word, "-") {
			a.program = args[i:]
			break
		}
		next := ""
		if i+1 < len(args) {
			next = args[i+1]
		}
		parsed, n := parseSrunWord(word, next)
		n = min(n, len(args)-i)
		parsed[len(parsed)-1].words = args[i : i+n]
		a.options = append(a.options, parsed...)
		i += n
	}
	return a
}

// parseSrunWord returns the options in one word, with next as the value of the last if it takes one from there, and the number of
// words used. Letters may share a word: -lun4. Only the last option gets the words.
func parseSrunWord(word, next string) ([]option, int) {
	if strings.HasPrefix(word, "--") {
		name, value, attached := strings.Cut(word[2:], "=")
		name = srunFullName(name)
		if !attached && srunLong[name] && !srunBare[name] {
			return []option{{name: "--" + name, value: next}}, 2
		}
		return []option{{name: "--" + name, value: value}}, 1
	}
	var list []option
	for i := 1; i < len(word); i++ {
		o := option{name: "-" + word[i:i+1]}
		rest := word[i+1:]
		switch {
		case strings.IndexByte(srunOptional, word[i]) >= 0:
			o.value = rest
			return append(list, o), 1
		case strings.IndexByte(srunShort, word[i]) >= 0 && rest != "":
			o.value = rest
			return append(list, o), 1
		case strings.IndexByte(srunShort, word[i]) >= 0:
			o.value = next
			return append(list, o), 2
		}
		list = append(list, o)
	}
	return list, 1
}

// srunFullName completes a name that was cut short, as getopt_long(3) does where only one begins so.
func srunFullName(name string) string {
	if srunLong[name] || srunBare[name] {
		return name
	}
	full := ""
	for _, table := range []map[string]bool{srunLong, srunBare} {
		for long := range table {
			if !strings.HasPrefix(long, name) || long == full {
				continue
			}
			if full != "" {
				return name
			}
			full = long
		}
	}
	if full == "" {
		return name
	}
	return full
}

func srunRanks(c *command) int {
	total := 0
	for _, a := range srunContexts(c.argv) {
		ranks := srunTasks(&a, c) * srunGroups(&a)
		if workers, is := torchrunWorkers(a.program); is { // each task is an agent and starts that many ranks
			ranks *= workers
		}
		if ranks <= 0 {
			return 0
		}
		total += ranks
	}
	return total
}

// srunTasks is the number of tasks of one component, 0 where it is not known.
func srunTasks(a *appContext, c *command) int {
	text, given := a.value("-n", "--ntasks")
	if !given {
		text = c.environ["SLURM_NTASKS"]
	}
	if text != "" {
		n, _ := strconv.Atoi(text)
		return n
	}
	// One task a node, or as many as --ntasks-per-node says, where the number of nodes is no range.
	nodes, given := a.value("-N", "--nodes")
	if !given {
		nodes = c.environ["SLURM_JOB_NUM_NODES"]
	}
	n, _ := strconv.Atoi(nodes)
	text, given = a.value("--ntasks-per-node")
	if !given {
		text, given = c.environ["SLURM_NTASKS_PER_NODE"]
	}
	per := 1
	if given {
		per, _ = strconv.Atoi(text)
	}
	return n * per
}

// srunGroups is the number of components of a heterogeneous job that one part of the command line is for: --het-group=0,2-3 has three.
func srunGroups(a *appContext) int {
	list, given := a.value("--het-group")
	if !given {
		return 1
	}
	groups := 0
	for part := range strings.SplitSeq(list, ",") {
		from, to, isRange := strings.Cut(part, "-")
		low, err := strconv.Atoi(from)
		high := low
		if isRange && err == nil {
			high, err = strconv.Atoi(to)
		}
		if err != nil || high < low {
			return 0
		}
		groups += high - low + 1
	}
	return groups
}

// srunNodes is the most nodes that the step may have, 0 where nothing says.
func srunNodes(c *command) int {
	total := 0
	for _, a := range srunContexts(c.argv) {
		nodes, given := a.value("-N", "--nodes")
		if !given {
			nodes = c.environ["SLURM_JOB_NUM_NODES"]
		}
		if i := strings.LastIndexByte(nodes, '-'); i >= 0 {
			nodes = nodes[i+1:]
		}
		n, _ := strconv.Atoi(nodes)
		if n <= 0 {
			return 0
		}
		total += n * srunGroups(&a)
	}
	return total
}

func srunPrograms(c *command) []string {
	var programs []string
	for _, a := range srunContexts(c.argv) {
		program := a.executable()
		if _, multi := a.value("--multi-prog"); multi {
			programs = append(programs, multiPrograms(program)...)
		} else if program != "" {
			programs = append(programs, program)
		}
	}
	return programs
}

// multiPrograms returns the programs that a file for --multi-prog names, each once: lines of task numbers, program and arguments.
func multiPrograms(path string) []string {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil // srun will say so
	}
	var programs []string
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if len(words) < 2 || strings.HasPrefix(words[0], "#") || slices.Contains(programs, words[1]) {
			continue
		}
		programs = append(programs, words[1])
	}
	return programs
}

func injectSrun(c *command, in *injection) (*plan, error) {
	p := &plan{environ: in.environment(c)}
	delete(p.environ, "LD_PRELOAD")
	delete(p.environ, "SIGMATRACE_CONFIG")
	var parts [][]string
	for _, a := range srunContexts(c.argv) {
		export, err := srunExportList(&a, c, in, p)
		if err != nil {
			return nil, err
		}
		a.options = slices.DeleteFunc(a.options, func(o option) bool { return o.name == srunExport })
		parts = append(parts, a.words([]string{srunExport + "=" + export}))
	}
	p.argv = join(c.argv[0], parts)
	return p, nil
}

// srunExportList returns the value of --export that does what the user's own would, and sets our variables.
func srunExportList(a *appContext, c *command, in *injection, p *plan) (string, error) {
	list, given := a.value(srunExport)
	for _, variable := range []string{"SRUN_EXPORT_ENV", "SLURM_EXPORT_ENV"} {
		if !given {
			list, given = c.environ[variable]
		}
	}
	if !given || list == "" {
		list = "ALL"
	}
	existing, inherits := "", false
	var entries []string
	for entry := range strings.SplitSeq(list, ",") {
		name, value, set := strings.Cut(entry, "=")
		switch {
		case strings.EqualFold(entry, "NONE") || strings.EqualFold(entry, "NIL") || entry == "":
		case name == "LD_PRELOAD" && set:
			existing = value
		case name == "LD_PRELOAD":
			inherits = true
		case name == "SIGMATRACE_CONFIG":
		default:
			inherits = inherits || strings.EqualFold(entry, "ALL")
			entries = append(entries, entry)
		}
	}
	if old := c.environ["LD_PRELOAD"]; inherits && old != "" {
		existing = old // srun(1): the caller's takes precedence
	}
	p.preload = in.preload(existing)
	for _, ours := range []string{"LD_PRELOAD=" + p.preload, "SIGMATRACE_CONFIG=" + in.config} {
		if strings.Contains(ours, ",") {
			return "", failf("use a run directory and library paths without ','", "%q cannot be in srun's --export, which splits at ','", ours)
		}
		entries = append(entries, ours)
	}
	return strings.Join(entries, ","), nil
}
