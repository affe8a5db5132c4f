package main

import (
	"bufio"
	"debug/elf"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// obstacle is a reason why the dynamic linker will not load our libraries into a program.
type obstacle struct {
	what  string
	hint  string
	fatal bool // the program would not even start
}

// checkPrograms says which of the command's programs cannot be traced, before anything runs. With --require-complete that is an
// error. A program that is not found here is left to the launcher that will start it, perhaps on other hosts.
func (s *session) checkPrograms(w io.Writer) error {
	for _, name := range s.dialect.programs(s.cmd) {
		path, err := lookUp(name, s.cmd.environ["PATH"])
		if err != nil {
			continue
		}
		o := examine(path)
		if o == nil {
			continue
		}
		if o.fatal || s.strict {
			return failf(o.hint, "%s %s", path, o.what)
		}
		warn(w, o.hint, "%s %s", path, o.what)
	}
	return nil
}

// examine looks at the executable at path, or at its interpreter where it is a script. nil means that nothing speaks against it.
func examine(path string) *obstacle {
	if o := secure(path); o != nil {
		return o
	}
	interpreter, err := shebang(path)
	if err != nil {
		return nil // unreadable: nothing to say about it
	}
	if interpreter != "" {
		path = interpreter
	}
	return examineELF(path)
}

// shebang returns the interpreter of a script, "" for what is none.
func shebang(path string) (string, error) {
	f, err := os.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	line, err := bufio.NewReader(io.LimitReader(f, 256)).ReadString('\n')
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	rest, ok := strings.CutPrefix(line, "#!")
	if words := strings.Fields(rest); ok && len(words) > 0 {
		return words[0], nil
	}
	return "", nil
}

// secure says whether the kernel gives the program other rights than ours: the dynamic linker then ignores LD_PRELOAD (ld.so(8),
// secure-execution mode).
func secure(path string) *obstacle {
	const hint = "trace it as the user that it becomes, or a copy without the special rights"
	var st unix.Stat_t
	if err := unix.Stat(path, &st); err != nil {
		return nil
	}
	if st.Mode&unix.S_ISUID != 0 && int(st.Uid) != os.Getuid() {
		return &obstacle{what: "is setuid: the dynamic linker ignores LD_PRELOAD for it, so it runs untraced", hint: hint}
	}
	if st.Mode&unix.S_ISGID != 0 && st.Mode&unix.S_IXGRP != 0 && int(st.Gid) != os.Getgid() {
		return &obstacle{what: "is setgid: the dynamic linker ignores LD_PRELOAD for it, so it runs untraced", hint: hint}
	}
	if n, err := unix.Getxattr(path, "security.capability", nil); err == nil && n > 0 && os.Getuid() != 0 {
		return &obstacle{what: "has file capabilities: the dynamic linker ignores LD_PRELOAD for it, so it runs untraced", hint: hint}
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
		return &obstacle{what: fmt.Sprintf("is %s for %s: the libraries are 64-bit %s, so it runs untraced", strings.TrimPrefix(f.Class.String(), "ELF"),
			f.Machine, runtime.GOARCH), hint: "build it for the host's architecture"}
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
	case strings.HasPrefix(filepath.Base(linker), "ld-musl"):
		return &obstacle{what: "uses musl: the libraries need glibc, and musl's dynamic linker would refuse to start the program",
			hint: "build it for glibc, or run it with -p off", fatal: true}
	}
	return nil
}
