package profiles

import (
	"fmt"
	"os"
	"os/user"
	"strconv"
	"strings"
	"time"
)

// Placeholder is one %-sequence of a directory.
type Placeholder struct {
	Letter byte
	Doc    string
	value  func(*Facts) string
}

// Placeholders is the table of them.
var Placeholders = []Placeholder{
	{'j', "job id (`<array job>_<task>` in an array), `nojob` outside a scheduler", func(f *Facts) string { return f.Job }},
	{'s', "step id, `nostep` outside a step", func(f *Facts) string { return f.Step }},
	{'h', "host name up to the first dot", func(f *Facts) string { return f.Host }},
	{'u', "user name", func(f *Facts) string { return f.User }},
	{'t', "start time, UTC, as 20060102T150405Z", func(f *Facts) string { return f.Time.UTC().Format(TimeFormat) }},
	{'p', "process id of the launcher", func(f *Facts) string { return strconv.Itoa(f.PID) }},
	{'%', "a percent sign", func(*Facts) string { return "%" }},
}

// TimeFormat is the form of a time in names: UTC, sorts as text, no colon (ld.so and many tools split at colons).
const TimeFormat = "20060102T150405Z"

// Facts are the values that placeholders stand for.
type Facts struct {
	Job, Step, Host, User string
	Time                  time.Time
	PID                   int
}

// CurrentFacts returns this process's facts, reading the scheduler's variables with getenv.
func CurrentFacts(getenv func(string) string, now time.Time) (*Facts, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("reading the host name: %w", err)
	}
	host, _, _ = strings.Cut(host, ".")
	f := &Facts{Job: "nojob", Step: "nostep", Host: host, User: userName(), Time: now, PID: os.Getpid()}
	if job := getenv("SLURM_JOB_ID"); job != "" {
		f.Job = job
		if array, task := getenv("SLURM_ARRAY_JOB_ID"), getenv("SLURM_ARRAY_TASK_ID"); array != "" && task != "" {
			f.Job = array + "_" + task
		}
	}
	if step := getenv("SLURM_STEP_ID"); step != "" {
		f.Step = step
	}
	return f, nil
}

// userName falls back to the number: accounts of a directory service are unknown to a static program.
func userName() string {
	if u, err := user.Current(); err == nil && u.Username != "" {
		return u.Username
	}
	return strconv.Itoa(os.Getuid())
}

// Expand replaces the placeholders in path. A value cannot leave its path component: slashes in it become underscores.
func (f *Facts) Expand(path string) (string, error) {
	var b strings.Builder
	for i := 0; i < len(path); i++ {
		if path[i] != '%' {
			b.WriteByte(path[i])
			continue
		}
		i++
		p := findPlaceholder(path, i)
		if p == nil {
			return "", badPlaceholder(path, i)
		}
		b.WriteString(strings.ReplaceAll(p.value(f), "/", "_"))
	}
	return b.String(), nil
}

func checkPlaceholders(path string) error {
	_, err := (&Facts{}).Expand(path)
	return err
}

func findPlaceholder(path string, i int) *Placeholder {
	for j := range Placeholders {
		if i < len(path) && Placeholders[j].Letter == path[i] {
			return &Placeholders[j]
		}
	}
	return nil
}

func badPlaceholder(path string, i int) error {
	what := fmt.Sprintf("%q ends with a lone %%", path)
	if i < len(path) {
		what = fmt.Sprintf("unknown placeholder %q in %q", "%"+path[i:i+1], path)
	}
	return &Problem{What: what, Valid: strings.Fields(placeholderList())}
}

func placeholderList() string {
	list := make([]string, len(Placeholders))
	for j, p := range Placeholders {
		list[j] = "%" + string(p.Letter)
	}
	return strings.Join(list, " ")
}
