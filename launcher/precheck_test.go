package main

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// F30: a program with file capabilities, for root and for others.
func TestF30FileCapabilities(t *testing.T) {
	path := filepath.Join(t.TempDir(), "ping")
	if err := os.WriteFile(path, []byte("#!/bin/true\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	// struct vfs_cap_data, revision 2, effective: cap_net_raw (13) permitted
	netRaw := []byte{1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
	if err := unix.Setxattr(path, "security.capability", netRaw, 0); errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOTSUP) {
		t.Skipf("capabilities cannot be given to a file here: %v", err)
	} else if err != nil {
		t.Fatal(err)
	}
	if o := secure(path, 1000, 1000); o == nil || !o.blocks || !strings.HasPrefix(o.what, "has file capabilities") {
		t.Errorf("for a user: %+v", o)
	}
	if o := secure(path, 0, 0); o != nil {
		t.Errorf("root has them anyway: %+v", o)
	}
}

// F32: a program of another word size.
func TestF32WordSize(t *testing.T) {
	h := elf.Header32{Type: uint16(elf.ET_EXEC), Machine: uint16(elf.EM_386), Version: uint32(elf.EV_CURRENT), Ehsize: 52, Phentsize: 32, Shentsize: 40}
	copy(h.Ident[:], elf.ELFMAG)
	h.Ident[elf.EI_CLASS], h.Ident[elf.EI_DATA], h.Ident[elf.EI_VERSION] = byte(elf.ELFCLASS32), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, h); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "narrow")
	if err := os.WriteFile(path, b.Bytes(), 0o755); err != nil {
		t.Fatal(err)
	}
	if o := examine(path, ""); o == nil || o.blocks || !strings.HasPrefix(o.what, "is a 32-bit 386 program: the libraries are 64-bit ") {
		t.Errorf("%+v", o)
	}
}
