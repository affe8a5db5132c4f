package main

import (
	"bufio"
	"context"
	"fmt"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// flux is `flux run` (in older releases `flux mini run`). Its --env rules hold in their order, so that ours come last: they stand
// behind the user's, which may clear the environment, and flux itself and its brokers stay untouched.
var flux = dialect{
	name: "flux",
	matches: func(_ context.Context, c *command) bool {
		_, _, is := fluxRun(c.argv)
		return is && c.called("flux")
	},
	ranks:     fluxRanks,
	nodes:     fluxNodes,
	elsewhere: true,
	programs:  fluxPrograms,
	inject:    injectFlux,
}

var fluxSyntax = syntax{
	attached: "BcgnNoqtl",
	arguments: arguments(1, "add-file B bank begin-time c cc conf cores cores-per-task cwd dependency env env-file env-remove error flags g"+
		" gpus-per-node gpus-per-task input job-name log log-stderr N n nodes ntasks nslots o output q queue requires rlimit S setattr setopt"+
		" signal t taskmap tasks-per-core tasks-per-node time-limit urgency"),
}

// fluxRun cuts the words of `flux run` or `flux mini run` off, with flux's own options, which take no values (flux(1)).
func fluxRun(argv []string) (front, rest []string, is bool) {
	at := 1
	for at < len(argv) && strings.HasPrefix(argv[at], "-") {
		at++
	}
	for _, form := range [][]string{{"run"}, {"mini", "run"}} {
		if n := at + len(form); len(argv) >= n && slices.Equal(argv[at:n], form) {
			return argv[:n:n], argv[n:], true
		}
	}
	return argv, nil, false
}

func fluxContext(c *command) (front []string, a appContext) {
	front, rest, _ := fluxRun(c.argv)
	return front, fluxSyntax.parse(rest)
}

func fluxNumber(a *appContext, names ...string) int {
	text, _ := a.value(names...)
	n, _ := strconv.Atoi(text)
	return n
}

func fluxRanks(c *command) int {
	_, a := fluxContext(c)
	if per := fluxNumber(&a, "tasks-per-node"); per > 0 {
		return per * fluxNumber(&a, "N", "nodes")
	}
	for _, other := range []string{"cores", "tasks-per-core"} {
		if _, given := a.value(other); given {
			return 0
		}
	}
	if _, given := a.value("n", "ntasks"); !given {
		if _, given := a.value("N", "nodes"); given {
			return 0
		}
		return 1
	}
	return fluxNumber(&a, "n", "ntasks")
}

func fluxNodes(c *command) int {
	_, a := fluxContext(c)
	if n := fluxNumber(&a, "N", "nodes"); n > 0 {
		return n
	}
	if fluxRanks(c) == 1 {
		return 1
	}
	return 0
}

func fluxPrograms(c *command) []string {
	_, a := fluxContext(c)
	return executables([]appContext{a})
}

func injectFlux(c *command, in *injection) (*plan, error) {
	p := &plan{environ: in.environment(c)}
	front, a := fluxContext(c)
	rules := fluxRules{environ: c.environ, preload: c.environ["LD_PRELOAD"]}
	for _, o := range a.options {
		var err error
		switch o.name {
		case "env":
			err = rules.apply(o.value)
		case "env-remove":
			err = rules.apply("-" + o.value)
		case "env-file":
			err = rules.apply("^" + o.value)
		}
		if err != nil {
			return nil, err
		}
	}
	p.preload = in.preload(rules.preload)
	literal := func(value string) string { return strings.ReplaceAll(value, "$", "$$") } // a rule's value is a template
	p.argv = front
	for _, o := range a.options {
		p.argv = append(p.argv, o.words...)
	}
	p.argv = append(p.argv, "--env=LD_PRELOAD="+literal(p.preload), "--env=SIGMATRACE_CONFIG="+literal(in.config))
	p.argv = append(p.argv, a.program...)
	return p, nil
}

// fluxRules follows what the rules of flux-run(1) make of LD_PRELOAD.
type fluxRules struct {
	environ map[string]string // of flux itself
	preload string
	depth   int
}

func (r *fluxRules) apply(rule string) error {
	switch name, value, set := strings.Cut(rule, "="); {
	case strings.HasPrefix(rule, "-"):
		if fluxMatches(rule[1:], "LD_PRELOAD") {
			r.preload = ""
		}
	case strings.HasPrefix(rule, "^"):
		return r.file(rule[1:])
	case set && name == "LD_PRELOAD":
		r.preload = os.Expand(strings.ReplaceAll(value, "$$", "${$}"), func(name string) string {
			switch name {
			case "$":
				return "$"
			case "LD_PRELOAD":
				return r.preload
			}
			return r.environ[name]
		})
	case !set && r.preload == "" && fluxMatches(rule, "LD_PRELOAD"):
		r.preload = r.environ["LD_PRELOAD"]
	}
	return nil
}

func (r *fluxRules) file(name string) error {
	if rest, home := strings.CutPrefix(name, "~/"); home {
		name = r.environ["HOME"] + "/" + rest
	}
	f, err := os.Open(name)
	if err != nil {
		return &failure{err: fmt.Errorf("reading flux's environment rules: %w", err), status: exitFailure}
	}
	defer f.Close()
	if r.depth++; r.depth > 16 {
		return failf("", "environment rules of %s read each other", name)
	}
	defer func() { r.depth-- }()
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		if rule := strings.TrimSpace(lines.Text()); rule != "" && !strings.HasPrefix(rule, "#") {
			if err := r.apply(rule); err != nil {
				return err
			}
		}
	}
	return nil
}

// fluxMatches matches a name with a rule's pattern: a regular expression between slashes, else a glob.
func fluxMatches(pattern, name string) bool {
	if expression, is := strings.CutPrefix(pattern, "/"); is {
		re, err := regexp.Compile("^(?:" + strings.TrimSuffix(expression, "/") + ")")
		return err == nil && re.MatchString(name)
	}
	match, _ := path.Match(pattern, name)
	return match
}
