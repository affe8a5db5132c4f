package main

import (
	"context"
	"path/filepath"
	"strconv"
	"strings"
)

// srun is Slurm's. Variables go to the tasks by --export, in each component of a heterogeneous step; srun itself stays untouched.
// srun(1): with ALL the caller's variables take precedence over explicit ones, so LD_PRELOAD leaves srun's own environment and its
// value goes into the explicit one; NONE cannot be combined and becomes the plain list of our variables.
var srun = dialect{
	name:     "srun",
	matches:  func(_ context.Context, c *command) bool { return filepath.Base(c.argv[0]) == "srun" },
	ranks:    srunRanks,
	programs: srunPrograms,
	inject:   injectSrun,
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

// srunOption is one option: a letter as "-n" or a long name as "--ntasks", its value, and the words it was made of.
type srunOption struct {
	name, value string
	words       []string
}

// srunComponent is one part of a command line that ":" separates.
type srunComponent struct {
	options []srunOption
	program []string // the program and its arguments, a leading "--" included
}

func srunComponents(argv []string) []srunComponent {
	var components []srunComponent
	start := 1
	for i := 1; i <= len(argv); i++ {
		if i == len(argv) || argv[i] == ":" {
			components = append(components, parseSrun(argv[start:i]))
			start = i + 1
		}
	}
	return components
}

func parseSrun(args []string) srunComponent {
	var s srunComponent
	for i := 0; i < len(args); {
		word := args[i]
		if word == "--" || word == "-" || !strings.HasPrefix(word, "-") {
			s.program = args[i:]
			break
		}
		next := ""
		if i+1 < len(args) {
			next = args[i+1]
		}
		parsed, n := parseSrunWord(word, next)
		n = min(n, len(args)-i)
		parsed[len(parsed)-1].words = args[i : i+n]
		s.options = append(s.options, parsed...)
		i += n
	}
	return s
}

// parseSrunWord returns the options in one word, with next as the value of the last if it takes one from there, and the number of
// words used. Letters may share a word: -lun4. Only the last option gets the words.
func parseSrunWord(word, next string) ([]srunOption, int) {
	if strings.HasPrefix(word, "--") {
		name, value, attached := strings.Cut(word, "=")
		if !attached && srunLong[name[2:]] && !srunBare[name[2:]] {
			return []srunOption{{name: name, value: next}}, 2
		}
		return []srunOption{{name: name, value: value}}, 1
	}
	var list []srunOption
	for i := 1; i < len(word); i++ {
		o := srunOption{name: "-" + word[i:i+1]}
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

// value returns the last value of an option by either of its names.
func (s *srunComponent) value(short, long string) (string, bool) {
	for i := len(s.options) - 1; i >= 0; i-- {
		if o := s.options[i]; o.name == short || o.name == long {
			return o.value, true
		}
	}
	return "", false
}

func srunRanks(c *command) int {
	total := 0
	for _, s := range srunComponents(c.argv) {
		ranks := s.ranks(c)
		if ranks <= 0 {
			return 0
		}
		total += ranks
	}
	return total
}

func (s *srunComponent) ranks(c *command) int {
	text, given := s.value("-n", "--ntasks")
	if !given {
		text = c.environ["SLURM_NTASKS"]
	}
	if text != "" {
		n, _ := strconv.Atoi(text)
		return n
	}
	// One task a node, or as many as --ntasks-per-node says, where the number of nodes is no range.
	nodes, _ := s.value("-N", "--nodes")
	n, _ := strconv.Atoi(nodes)
	per := 1
	if text, given := s.value("", "--ntasks-per-node"); given {
		per, _ = strconv.Atoi(text)
	}
	return n * per
}

func srunPrograms(c *command) []string {
	var programs []string
	for _, s := range srunComponents(c.argv) {
		program := s.program
		if len(program) > 0 && program[0] == "--" {
			program = program[1:]
		}
		if _, multi := s.value("", "--multi-prog"); len(program) > 0 && !multi { // else it is a file that names programs
			programs = append(programs, program[0])
		}
	}
	return programs
}

func injectSrun(c *command, in *injection) (*plan, error) {
	p := &plan{environ: in.environment(c), argv: c.argv[:1:1]}
	delete(p.environ, "LD_PRELOAD")
	delete(p.environ, "SIGMATRACE_CONFIG")
	for i, s := range srunComponents(c.argv) {
		if i > 0 {
			p.argv = append(p.argv, ":")
		}
		export, err := s.export(c, in, p)
		if err != nil {
			return nil, err
		}
		p.argv = append(p.argv, srunExport+"="+export)
		for _, o := range s.options {
			if o.name != srunExport {
				p.argv = append(p.argv, o.words...)
			}
		}
		p.argv = append(p.argv, s.program...)
	}
	return p, nil
}

// export returns the value of --export that does what the user's own would, and sets our variables.
func (s *srunComponent) export(c *command, in *injection, p *plan) (string, error) {
	list, given := s.value("", srunExport)
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
		case entry == "NONE" || entry == "NIL" || entry == "":
		case name == "LD_PRELOAD" && set:
			existing = value
		case name == "LD_PRELOAD":
			inherits = true
		case name == "SIGMATRACE_CONFIG":
		default:
			inherits = inherits || entry == "ALL"
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
