package doorbell

import (
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/tests/needs"
	"github.com/sigmatrace/sigmatrace/tests/sources"
)

// How the thread waits is chosen by what the processor says: CPUID's answers stand for processors that no machine here has.
func TestSpinIsChosenByTheProcessor(t *testing.T) {
	program := filepath.Join(t.TempDir(), "spin")
	args := []string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-I", "../../preload", "-o", program, "testdata/spin.c", "../../preload/spin.c"}
	if b, err := exec.Command("gcc", args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	for _, c := range []struct{ wanted, features, extended, want string }{
		{"auto", "0", "0", "pause"},
		{"auto", "0x20", "0", "umwait"},
		{"auto", "0", "0x20000000", "mwaitx"},
		{"auto", "0x20", "0x20000000", "umwait"},
		{"auto", "0xffffffdf", "0xdfffffff", "pause"},
		{"umwait", "0", "0x20000000", "pause"},
		{"umwait", "0x20", "0", "umwait"},
		{"mwaitx", "0x20", "0", "pause"},
		{"mwaitx", "0", "0x20000000", "mwaitx"},
		{"pause", "0x20", "0x20000000", "pause"},
		{"yield", "0x20", "0x20000000", "yield"},
	} {
		out, err := exec.Command(program, c.wanted, c.features, c.extended).CombinedOutput()
		if got := strings.TrimSpace(string(out)); err != nil || got != c.want {
			t.Errorf("%s with %s, %s: got %s, %v, want %s", c.wanted, c.features, c.extended, got, err, c.want)
		}
	}
	// and this processor's own choice waits, which shows that the instruction is there
	if out, err := exec.Command(program, "wait").CombinedOutput(); err != nil {
		t.Errorf("waiting: %v: %s", err, out)
	}
}

// A processor that waits for a word touches it, which is in no page that has gone: here a thread stands for one, and takes its time.
func TestNoPageIsWaitedAtThatWent(t *testing.T) {
	cuda := slices.DeleteFunc(sources.Provider(t, "cuda"), func(path string) bool { return filepath.Base(path) == "spin.c" })
	program, lib := whole(t, []string{"-O1", "-g"}, append(cuda, "testdata/spin_word.c"))
	_, info, want := bells(t, "full", "unregistered", "2000,10,1,64", recording{before: []string{"env", "-u", "LD_PRELOAD"}, own: program, lib: lib})
	accounted(t, info, want["write"].Count, false)
}

// The instructions are in the provider, each between its monitor and its wait; none of the machines at hand executes them.
func TestSpinInstructions(t *testing.T) {
	text, err := exec.Command("objdump", "-d", "--no-show-raw-insn", needs.Built(t, "lib/sigmatrace/provider-cuda.so")).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`\bumonitor\s+%r`, `\bumwait\s+%`, `\bmonitorx\b`, `\bmwaitx\b`, `\bsfence\b`} {
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("no %s in the provider", want)
		}
	}
}

// The provider builds for aarch64, with what that processor has to wait and to write to a device.
func TestAarch64(t *testing.T) {
	gcc, err := exec.LookPath("aarch64-linux-gnu-gcc")
	if err != nil {
		t.Fatal("aarch64-linux-gnu-gcc is not installed: run scripts/deps.sh test")
	}
	object := filepath.Join(t.TempDir(), "cuda.so")
	args := append([]string{"-std=gnu11", "-Wall", "-Wextra", "-Werror", "-O2", "-fPIC", "-fvisibility=hidden", "-ftls-model=initial-exec", "-shared", "-o", object}, sources.Provider(t, "cuda")...)
	if b, err := exec.Command(gcc, args...).CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, b)
	}
	text, err := exec.Command("aarch64-linux-gnu-objdump", "-d", "--no-show-raw-insn", object).Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{`\byield\b`, `\bdsb\s+st\b`, `\bcntvct_el0\b`} {
		if !regexp.MustCompile(want).Match(text) {
			t.Errorf("no %s in the provider", want)
		}
	}
}
