package main

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// obstacle is a reason why the dynamic linker will not load our libraries into a program.
type obstacle struct {
	what   string
	hint   string
	blocks bool // neither the program nor anything that it starts can be recorded
	fatal  bool // the program would not even start
}

// checkPrograms says which of the command's programs cannot be traced, before anything runs. That is an error where nothing of the
// command can be, where a program would not start, and with --require-complete. A program that is not found here is left to the
// launcher that will start it, perhaps on other hosts.
func (s *session) checkPrograms(w io.Writer) error {
	programs := s.dialect.programs(s.cmd)
	found := map[string]*obstacle{}
	blocked := 0
	for _, name := range programs {
		path, err := lookUp(name, s.cmd.environ["PATH"])
		if err != nil {
			continue
		}
		if o := examine(path, s.cmd.environ["PATH"]); o != nil {
			found[path] = o
			if o.blocks {
				blocked++
			}
		}
	}
	for _, path := range slices.Sorted(maps.Keys(found)) {
		switch o := found[path]; {
		case o.fatal || s.strict:
			return failf(o.hint, "%s %s", path, o.what)
		case blocked == len(programs):
			return failf(o.hint+", or run it without recording, by -p off", "nothing of the command can be recorded: %s %s", path, o.what)
		default:
			warn(w, o.hint, "%s %s", path, o.what)
		}
	}
	return nil
}

// maxInterpreters is how many scripts may stand one in front of the other: the kernel's own limit.
const maxInterpreters = 5

// examine looks at the executable at path, or at the interpreter that runs it where it is a script. nil means that nothing speaks
// against it.
func examine(path, searchPath string) *obstacle {
	for range maxInterpreters {
		interpreter, err := shebang(path)
		if err != nil {
			return nil // unreadable: nothing to say about it
		}
		if len(interpreter) == 0 {
			break
		}
		path = interpreter[0]
		if filepath.Base(path) == "env" {
			if path, err = lookUp(envProgram(interpreter[1:]), searchPath); err != nil {
				return nil // env will say so
			}
		}
	}
	if o := secure(path, os.Getuid(), os.Getgid()); o != nil {
		return o
	}
	return examineELF(path)
}

// shebang returns the words of a script's first line, none for what is no script.
func shebang(path string) ([]string, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	line, err := bufio.NewReader(io.LimitReader(f, 256)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	rest, ok := strings.CutPrefix(line, "#!")
	if !ok {
		return nil, nil
	}
	return strings.Fields(rest), nil
}

// envProgram is the program that env(1) starts: the first word that is neither an option nor a variable.
func envProgram(words []string) string {
	for _, word := range words {
		if !strings.HasPrefix(word, "-") && !strings.Contains(word, "=") {
			return word
		}
	}
	return ""
}

// secure says whether the kernel gives the program other rights than those of the user: the dynamic linker then ignores LD_PRELOAD, and
// takes it out of the environment (ld.so(8), secure-execution mode).
func secure(path string, uid, gid int) *obstacle {
	const hint = "trace it as the user that it becomes, or a copy without the special rights"
	const what = ": the dynamic linker ignores LD_PRELOAD for it, so it runs untraced, and so does what it starts"
	var st unix.Stat_t
	var fs unix.Statfs_t
	if err := unix.Stat(path, &st); err != nil {
		return nil
	}
	if err := unix.Statfs(path, &fs); err == nil && fs.Flags&unix.ST_NOSUID != 0 {
		return nil // the kernel gives no rights there
	}
	if on, err := unix.PrctlRetInt(unix.PR_GET_NO_NEW_PRIVS, 0, 0, 0, 0); err == nil && on == 1 {
		return nil // nor to this process and its children, in some containers
	}
	if st.Mode&unix.S_ISUID != 0 && int(st.Uid) != uid {
		return &obstacle{what: "is setuid" + what, hint: hint, blocks: true}
	}
	if st.Mode&unix.S_ISGID != 0 && st.Mode&unix.S_IXGRP != 0 && int(st.Gid) != gid {
		return &obstacle{what: "is setgid" + what, hint: hint, blocks: true}
	}
	if n, err := unix.Getxattr(path, "security.capability", nil); err == nil && n > 0 && uid != 0 {
		return &obstacle{what: "has file capabilities" + what, hint: hint, blocks: true}
	}
	return nil
}

// machines is the ELF machine of our libraries, which are built for the architecture that this program is.
var machines = map[string]elf.Machine{"amd64": elf.EM_X86_64, "arm64": elf.EM_AARCH64}

func examineELF(path string) *obstacle {
	f, err := elf.Open(path)
	if err != nil {
		return nil // not ELF
	}
	defer f.Close()
	if f.Class != elf.ELFCLASS64 || f.Machine != machines[runtime.GOARCH] {
		return &obstacle{what: fmt.Sprintf("is a %s-bit %s program: the libraries are 64-bit %s, so it runs untraced",
			strings.TrimPrefix(f.Class.String(), "ELFCLASS"), strings.TrimPrefix(f.Machine.String(), "EM_"), runtime.GOARCH),
			hint: "build it for the host's architecture"}
	}
	linker := ""
	for _, p := range f.Progs {
		if p.Type == elf.PT_INTERP && p.Filesz < 4096 {
			text, err := io.ReadAll(p.Open())
			if err != nil {
				return nil
			}
			linker = strings.TrimRight(string(text), "\x00")
		}
	}
	switch {
	case linker == "":
		return &obstacle{what: "is statically linked: LD_PRELOAD has no effect on it, so it runs untraced (what it starts is traced)",
			hint: "link it dynamically"}
	case otherLibc(linker) != "":
		return &obstacle{what: "uses " + otherLibc(linker) + ": the libraries need glibc", hint: "build it for glibc, or run it with -p off", fatal: true}
	case strings.HasPrefix(filepath.Base(linker), "ld-musl"):
		return &obstacle{what: "uses musl: the libraries need glibc, and musl's dynamic linker would refuse to start the program",
			hint: "build it for glibc, or run it with -p off", fatal: true}
	}
	return nil
}

// otherLibc names the C library of a dynamic linker that is neither glibc's nor musl's.
func otherLibc(linker string) string {
	switch base := filepath.Base(linker); {
	case strings.HasPrefix(base, "ld-uClibc"), strings.HasPrefix(base, "ld64-uClibc"):
		return "uClibc"
	case base == "linker64":
		return "Android's C library"
	}
	return ""
}
