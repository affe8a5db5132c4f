package main

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// plugstackLine is a line of plugstack.conf that names this project's plugin.
type plugstackLine struct {
	where     string // FILE:LINE
	required  bool
	plugin    string // as it stands there
	arguments []string
}

const pluginName = "spank_sigmatrace"

// readPlugstack returns the lines for our plugin in a plugstack.conf and in what it includes, and the files that were read, in Slurm's order.
func readPlugstack(file string) (lines []plugstackLine, files []string, err error) {
	r := &plugstackReader{left: mostPlugstacks}
	return r.read(file, nil)
}

const (
	mostPlugstacks   = 1000 // files; who includes more includes them again and again
	longestPlugstack = 1 << 20
)

type plugstackReader struct{ left int }

// readConfiguration reads a file of Slurm's configuration; what is no file is not waited for.
func readConfiguration(path string) (string, error) {
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if st, err := f.Stat(); err != nil {
		return "", err
	} else if !st.Mode().IsRegular() {
		return "", &fs.PathError{Op: "read", Path: path, Err: errors.New("not a regular file")}
	}
	text, err := io.ReadAll(io.LimitReader(f, longestPlugstack+1))
	if err == nil && len(text) > longestPlugstack {
		err = &fs.PathError{Op: "read", Path: path, Err: unix.EFBIG}
	}
	return string(text), err
}

func (r *plugstackReader) read(file string, above []string) (lines []plugstackLine, files []string, err error) {
	for _, a := range above {
		if a == file {
			return nil, nil, fmt.Errorf("%s includes itself", file)
		}
	}
	if r.left--; r.left < 0 {
		return nil, nil, fmt.Errorf("more than %d files are included, %s among them", mostPlugstacks, file)
	}
	text, err := readConfiguration(file)
	if err != nil {
		return nil, nil, err
	}
	files = []string{file}
	n := 0
	for line := range strings.Lines(text) {
		n++
		line, _, _ = strings.Cut(line, "#")
		words := strings.Fields(line)
		if len(words) == 0 {
			continue
		}
		if len(words) < 2 {
			return lines, files, fmt.Errorf("%s:%d: nothing follows %q", file, n, words[0])
		}
		switch words[0] {
		case "required", "optional":
			if strings.HasPrefix(filepath.Base(words[1]), pluginName) {
				lines = append(lines, plugstackLine{fmt.Sprintf("%s:%d", file, n), words[0] == "required", words[1], words[2:]})
			}
		case "include":
			pattern := words[1]
			if !filepath.IsAbs(pattern) {
				pattern = filepath.Join(filepath.Dir(file), pattern)
			}
			names, err := filepath.Glob(pattern)
			if err != nil {
				return lines, files, fmt.Errorf("%s:%d: include %s: %w", file, n, pattern, err)
			}
			for _, name := range names {
				l, f, err := r.read(name, append(above, file))
				lines, files = append(lines, l...), append(files, f...)
				if err != nil {
					return lines, files, err
				}
			}
		default:
			return lines, files, fmt.Errorf("%s:%d: %q is none of required, optional, include", file, n, words[0])
		}
	}
	return lines, files, nil
}

// value is an argument's value, as the plugin has it: of several the last.
func (l *plugstackLine) value(name string) string {
	value := ""
	for _, a := range l.arguments {
		if v, is := strings.CutPrefix(a, name+"="); is {
			value = v
		}
	}
	return value
}

// Lengths that the plugin takes, as in spank/internal.h.
const (
	longestPath    = 4095
	longestProfile = 1023
)

// siteArguments are the arguments that the plugin takes with a value, and what values: as in spank/site.c. TestArgumentsAreCheckedAsThePluginDoes
// holds the two together.
var siteArguments = map[string]func(string) error{
	"command": checkPath, "libdir": checkLibdir, "profile_dir": checkPath, "output": checkPath, "kill_switch": checkPath, "resolved": checkPath,
	"default_profile": func(v string) error { return checkLength(v, longestProfile) },
	"merge_seconds":   upTo(3600), "clock_seconds": upTo(10), "ptp_domain": upTo(255),
	"rate":        checkRate,
	"allow_users": anyList, "deny_users": anyList, "allow_groups": anyList, "deny_groups": anyList, "allow_partitions": anyList, "deny_partitions": anyList,
}

// checkArgument says what is wrong with an argument of the plugin's.
func checkArgument(argument string) error {
	if argument == "locked" {
		return nil
	}
	name, value, is := strings.Cut(argument, "=")
	check := siteArguments[name]
	if !is || check == nil {
		return errors.New("there is no such argument")
	}
	return check(value)
}

func anyList(string) error { return nil }

func checkLength(v string, longest int) error {
	if v == "" || len(v) > longest {
		return fmt.Errorf("its value has %d characters; 1 to %d are taken", len(v), longest)
	}
	return nil
}

func checkPath(v string) error {
	if !strings.HasPrefix(v, "/") {
		return errors.New("its value is no absolute path")
	}
	return checkLength(v, longestPath)
}

func checkLibdir(v string) error {
	if strings.ContainsAny(v, ": ") {
		return errors.New("the dynamic linker splits LD_PRELOAD at a colon")
	}
	return checkPath(v)
}

func upTo(most uint64) func(string) error {
	return func(v string) error {
		n, err := strconv.ParseUint(strings.TrimPrefix(v, "+"), 10, 64)
		if err != nil || n > most {
			return fmt.Errorf("its value is no number up to %d", most)
		}
		return nil
	}
}

func checkRate(v string) error {
	wrong := errors.New("its value is no percentage, such as 1% or 0.25%")
	number, is := strings.CutSuffix(v, "%")
	whole, part, dot := strings.Cut(number, ".")
	if !is || whole == "" || len(part) > 4 || dot && strings.Trim(part, "0123456789") != "" || strings.Trim(whole, "0123456789") != "" {
		return wrong
	}
	if n, err := strconv.ParseFloat(strings.TrimSuffix(number, "."), 64); err != nil || n > 100 {
		return wrong
	}
	return nil
}

// trusted says why what root would run or read at an absolute path could be changed by others than root: itself, where its links lead, and the
// directories above.
func trusted(path string) error {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return err
	}
	for at := real; ; at = filepath.Dir(at) {
		info, err := os.Lstat(at)
		if err != nil {
			return err
		}
		uid, ok := ownerOf(info)
		switch {
		case !ok:
			return fmt.Errorf("the owner of %s is not known", at)
		case uid != 0:
			return fmt.Errorf("%s belongs to user %d", at, uid)
		case info.Mode().Perm()&0o022 != 0 && info.Mode()&fs.ModeSticky == 0:
			return fmt.Errorf("%s can be written to by others (mode %04o)", at, info.Mode().Perm())
		}
		if at == "/" {
			return nil
		}
	}
}
