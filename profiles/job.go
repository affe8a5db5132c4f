package profiles

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

// JobVersion is the major version of a job's text; readers refuse newer ones.
const JobVersion = 1

// MaxJob is the most bytes that a job's text may have: the Slurm plugin holds it in a buffer of this size, and it is a variable of the job.
const MaxJob = 32_000

// Job is a resolved profile that travels with a batch job, from where its files are to nodes that need not have them.
type Job struct {
	Asked   string    // the profile as it was asked for
	Set     []string  // key=value, as they were asked for
	Files   []string  // the profile's file and those it extends, the nearest first
	Profile *Resolved // without Path and Chain, which mean nothing elsewhere
}

// NewJob returns what travels of a request that was resolved. Its base for run directories is made absolute, unless the request says not: a batch
// script may change the working directory.
func NewJob(r Request, res *Resolved) (*Job, error) {
	j := &Job{Set: r.Set, Profile: res}
	j.Asked, _ = r.Named()
	for _, f := range res.Chain {
		j.Files = append(j.Files, f.Place())
	}
	if r.Relative {
		return j, nil
	}
	base := res.values["output.directory"]
	if base.Text = filepath.Clean(base.Text); !filepath.IsAbs(base.Text) {
		here, err := os.Getwd()
		if err != nil {
			return nil, fmt.Errorf("output.directory: %w", err)
		}
		base.Text = filepath.Join(strings.ReplaceAll(here, "%", "%%"), base.Text) // of what is here no percent sign is a placeholder's
	}
	res.values[base.Key.Name] = base
	return j, nil
}

var escapeJob = strings.NewReplacer("%", "%25", ";", "%3B")

// Text is the job in one line; README.md describes it.
func (j *Job) Text() (string, error) {
	entries := []string{strconv.Itoa(JobVersion)}
	add := func(key, value string) error {
		if err := checkText(value); err != nil {
			return at(key, "", err)
		}
		entries = append(entries, escapeJob.Replace(key+"="+value))
		return nil
	}
	list := [][2]string{{"asked", j.Asked}}
	for _, s := range j.Set {
		list = append(list, [2]string{"set", s})
	}
	for _, f := range j.Files {
		list = append(list, [2]string{"file", f})
	}
	list = append(list, [2]string{"name", j.Profile.Name})
	for _, v := range j.Profile.Values() {
		if !v.Key.FileOnly {
			list = append(list, [2]string{v.Key.Name, v.Text}, [2]string{"from." + v.Key.Name, v.Source})
		}
	}
	for _, kv := range list {
		if err := add(kv[0], kv[1]); err != nil {
			return "", err
		}
	}
	text := strings.Join(entries, ";")
	if len(text) > MaxJob {
		return "", fmt.Errorf("resolved profile of %d bytes; at most %d can travel with a job", len(text), MaxJob)
	}
	return text, nil
}

// ParseJob reads a job's text and checks every value as one from the command line would be: it may come from anybody. Keys that this
// version does not know are passed over; those that are not there have their defaults.
func ParseJob(text string) (*Job, error) {
	if len(text) > MaxJob {
		return nil, fmt.Errorf("profile of the job: %d bytes; at most %d are read", len(text), MaxJob)
	}
	version, rest, _ := strings.Cut(text, ";")
	if n, err := strconv.Atoi(version); err != nil || n < 1 {
		return nil, fmt.Errorf("profile of the job: %q is not a version", version)
	} else if n > JobVersion {
		return nil, fmt.Errorf("profile of the job: version %d is newer than %d, the newest this program reads", n, JobVersion)
	}
	j := &Job{Profile: &Resolved{ByName: "job", values: map[string]Value{}}}
	for i := range Keys {
		j.Profile.values[Keys[i].Name] = Value{Key: &Keys[i], Text: Keys[i].Default, Source: "default"}
	}
	var problems Problems
	sources := map[string]string{}
	for entry := range strings.SplitSeq(rest, ";") {
		name, value, is := strings.Cut(strings.NewReplacer("%3B", ";", "%25", "%").Replace(entry), "=")
		if err := checkText(value); !is || err != nil {
			return nil, fmt.Errorf("profile of the job: %q is not key=value", entry)
		}
		switch key := findKey(name); {
		case name == "asked":
			j.Asked = value
		case name == "set":
			j.Set = append(j.Set, value)
		case name == "file":
			j.Files = append(j.Files, value)
		case name == "name":
			if err := CheckName(value); err != nil {
				return nil, fmt.Errorf("profile of the job: %w", err)
			}
			j.Profile.Name = value
			j.Profile.values[name] = Value{Key: key, Text: value, Source: "job"}
		case strings.HasPrefix(name, "from."):
			sources[strings.TrimPrefix(name, "from.")] = value
		case key != nil && !key.FileOnly:
			problems = append(problems, j.Profile.set(key, value, "profile of the job: "+name, "job")...)
		}
	}
	for name, source := range sources {
		if v, is := j.Profile.values[name]; is && source != "" {
			v.Source = source
			j.Profile.values[name] = v
		}
	}
	if j.Profile.Name == "" || len(j.Files) == 0 {
		return nil, fmt.Errorf("profile of the job: it has no name or no file")
	}
	problems = append(problems, j.Profile.checkTogether()...)
	return j, problems.orNil()
}
