package main

import (
	"bytes"
	"context"
	"debug/elf"
	"encoding/hex"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/sigmatrace/sigmatrace/profiles"
	"golang.org/x/sys/unix"
)

// buildFile is written beside the recorder's libraries when they are built: the version, and a line "NAME BUILD-ID" for each.
const buildFile = "BUILD"

// recorder checks the libraries that are preloaded.
func (d *diagnosis) recorder(ctx context.Context, s *slurmState) {
	d.Facts["sigmatrace"] = version
	d.ok("sigmatrace %s", version)
	own, err := libraryDirectory(os.Getenv)
	if err != nil {
		d.problem(hintOf(err), "%v", err)
		return
	}
	dirs := []string{filepath.Clean(own)}
	if dir := s.site("libdir", ""); dir != "" && filepath.Clean(dir) != dirs[0] {
		dirs = append(dirs, filepath.Clean(dir))
	}
	for _, dir := range dirs {
		d.libraryDirectory(ctx, dir)
	}
}

func (d *diagnosis) libraryDirectory(ctx context.Context, dir string) {
	names, _ := filepath.Glob(filepath.Join(escape(dir), "*.so"))
	names = slices.DeleteFunc(names, func(path string) bool { return !ownName(filepath.Base(path)) })
	if !slices.Contains(names, filepath.Join(dir, "libsigmatrace.so")) {
		d.problem("install sigmatrace there, or set SIGMATRACE_LIBDIR", "no libsigmatrace.so in %s", dir)
		return
	}
	var ids, parts []string
	for _, path := range names {
		id := buildID(path)
		ids = append(ids, filepath.Base(path)+" "+id)
		if err := loadable(ctx, path); err != nil {
			d.problem("build it for this host's C library and machine", "%s cannot be preloaded: %v", path, err)
		}
		parts = append(parts, id[:min(8, len(id))])
		if info, err := os.Stat(path); err == nil && info.Mode().Perm()&0o004 == 0 {
			d.problem("chmod o+r", "%s cannot be read by all (mode %04o)", path, info.Mode().Perm())
		}
	}
	d.Facts["recorder in "+dir] = strings.Join(parts, " ")
	d.sameBuild(dir, ids)
	if err := trusted(dir); err != nil && os.Geteuid() == 0 {
		d.problem("every traced job loads it: chown root and chmod go-w", "%v", err)
	}
}

// sameBuild holds the libraries against what was written when they were built.
func (d *diagnosis) sameBuild(dir string, ids []string) {
	text, err := os.ReadFile(filepath.Join(dir, buildFile))
	if err != nil {
		d.note("install it with the libraries", "whether the libraries in %s are of this version is not known: %v", dir, err)
		return
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	if built := strings.TrimPrefix(lines[0], "sigmatrace "); built != version {
		d.problem("install command and libraries of one version", "the libraries in %s are of version %s, this command of %s", dir, built, version)
		return
	}
	slices.Sort(lines[1:])
	slices.Sort(ids)
	if slices.Equal(lines[1:], ids) {
		d.ok("the libraries in %s are of this version", dir)
		return
	}
	for _, id := range ids {
		if !slices.Contains(lines[1:], id) {
			d.problem("install all of them anew", "in %s, %s is of another build than the rest", dir, strings.Fields(id)[0])
		}
	}
	for _, line := range lines[1:] {
		name, _, _ := strings.Cut(line, " ")
		if !slices.ContainsFunc(ids, func(id string) bool { return strings.HasPrefix(id, name+" ") }) {
			d.problem("install all of them anew", "in %s, %s is missing", dir, name)
		}
	}
}

func escape(dir string) string {
	return strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`).Replace(dir)
}

// loadable has the dynamic linker preload a library into a program that does nothing.
func loadable(ctx context.Context, path string) error {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	program, err := exec.LookPath("true")
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, program)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	cmd.Env = append(untracedEnvironment(), "LD_PRELOAD="+path)
	err = cmd.Run()
	if text := strings.TrimSpace(errs.String()); text != "" {
		return errors.New(oneLine(text))
	}
	return err
}

// buildID is an object's build id in hexadecimal; "none" without one.
func buildID(path string) string {
	f, err := elf.Open(path)
	if err != nil {
		return "unreadable"
	}
	defer f.Close()
	s := f.Section(".note.gnu.build-id")
	if s == nil {
		return "none"
	}
	note, err := s.Data()
	if err != nil || len(note) < 16 {
		return "none"
	}
	return hex.EncodeToString(note[16:])
}

// profiles checks that each profile on the search path can be used, the site's that the plugin looks at among them.
func (d *diagnosis) profiles(s *slurmState) {
	search := profiles.DefaultSearch(os.Getenv)
	if dir := s.site("profile_dir", ""); dir != "" {
		search.Dirs[len(search.Dirs)-1] = dir
	}
	var good []string
	for _, l := range search.List() {
		_, err := profiles.Resolve(profiles.Request{Profile: l.Name, Search: search})
		if err == nil {
			good = append(good, l.Name)
			continue
		}
		d.problem("sigmatrace profile validate "+quote(l.Name), "profile %s: %v", l.Name, err)
	}
	d.ok("profiles %s", joined(good))
	name := s.site("default_profile", "")
	if name == "" {
		return
	}
	res, err := profiles.Resolve(profiles.Request{Profile: name, Search: search})
	if err != nil {
		d.problem("without a default that can be used nobody is traced by it", "default_profile=%s: %v", name, err)
		return
	}
	if _, err := findLibraries(s.site("libdir", ""), res.List("providers")); s.site("libdir", "") != "" && err != nil {
		d.problem(hintOf(err), "default_profile=%s: %v", name, err)
	}
}

// tracedLibraries are those that the providers hook: README.md has with which of them they are tested.
var tracedLibraries = []struct {
	name, soname string
	version      func(ctx context.Context, path string) string
	least, most  string
}{
	{"libibverbs", "libibverbs.so.1", rdmaCore, "33", "56"},
	{"UCX", "libucp.so.0", ucxVersion, "1.10", "1.22"},
	{"libfabric", "libfabric.so.1", libfabricVersion, "1.17", "2.1"},
}

func (d *diagnosis) traced(ctx context.Context) {
	cache, err := bounded(ctx, 10*time.Second, "/sbin/ldconfig", "-p")
	if err != nil {
		d.note("", "the libraries that programs load are not known: ldconfig -p: %v", err)
		return
	}
	for _, l := range tracedLibraries {
		path := libraryPath(cache, l.soname)
		if path == "" {
			d.Facts[l.name] = "missing"
			d.note("programs may bring one of their own; else there is nothing to trace", "%s (%s) is not installed here", l.name, l.soname)
			continue
		}
		v := l.version(ctx, path)
		d.Facts[l.name] = v
		switch {
		case v == "":
			d.Facts[l.name] = "build " + buildID(path)
			d.note("", "%s: %s, of a version that cannot be told", l.name, path)
		case before(v, l.least), before(l.most, series(v)):
			d.note("try it first: it is outside of what was tested, "+l.least+" to "+l.most, "%s %s: %s", l.name, v, path)
		default:
			d.ok("%s %s: %s", l.name, v, path)
		}
	}
	d.gpus(cache)
}

// gpus looks at what recording of GPUs takes, on hosts that have their driver. Login nodes have none: it is no fact that all nodes share.
func (d *diagnosis) gpus(cache string) {
	first := func(sonames ...string) string {
		for _, soname := range sonames {
			if path := libraryPath(cache, soname); path != "" {
				return path
			}
		}
		return ""
	}
	cuda, hip := first("libcuda.so.1"), first("libamdhip64.so.7", "libamdhip64.so.6")
	if cuda == "" && hip == "" {
		return
	}
	if cuda != "" {
		d.ok("CUDA driver: %s", cuda)
	}
	if hip != "" {
		d.ok("HIP: %s", hip)
	}
	if mlx5 := first("libmlx5.so.1"); mlx5 != "" {
		d.ok("libmlx5, for queues that GPUs ring: %s", mlx5)
	} else {
		d.note("it comes with rdma-core; without it GPUs post nothing by themselves that could be recorded", "libmlx5 (libmlx5.so.1) is not installed here")
	}
	if cuda == "" {
		return
	}
	const toolkit = "/usr/local/cuda/extras/CUPTI/lib64/"
	cupti := first("libcupti.so.13", "libcupti.so.12")
	for _, name := range []string{"libcupti.so.13", "libcupti.so.12"} {
		if cupti == "" && isFile(toolkit+name) {
			cupti = toolkit + name
		}
	}
	if cupti != "" {
		d.ok("CUPTI, for the times of kernels: %s", cupti)
	} else {
		d.note("programs may bring one of their own; without it gpu.kernels=times records launches alone", "CUPTI (libcupti.so.13 or libcupti.so.12) is not installed here")
	}
}

// libraryPath finds a library as the dynamic linker does: LD_LIBRARY_PATH, then its cache.
func libraryPath(cache, soname string) string {
	for _, dir := range filepath.SplitList(os.Getenv("LD_LIBRARY_PATH")) {
		if path := filepath.Join(dir, soname); isFile(path) {
			return path
		}
	}
	for line := range strings.Lines(cache) {
		name, path, is := strings.Cut(strings.TrimSpace(line), " => ")
		if is && strings.HasPrefix(name, soname+" ") && isFile(path) {
			return path
		}
	}
	return ""
}

// before compares versions by their numbers.
func before(a, b string) bool {
	return slices.Compare(numbers(a), numbers(b)) < 0
}

func numbers(version string) []int {
	var list []int
	for part := range strings.SplitSeq(version, ".") {
		n, _ := strconv.Atoi(part) // made of digits by those who call
		list = append(list, n)
	}
	return list
}

// rdmaCore is rdma-core's version, which the full name of its library ends with: libibverbs.so.1.14.44.0.
func rdmaCore(_ context.Context, path string) string {
	real, err := filepath.EvalSymlinks(path)
	if err != nil {
		return ""
	}
	m := regexp.MustCompile(`\.so\.1\.[0-9]+\.([0-9]+\.[0-9]+)$`).FindStringSubmatch(real)
	if m == nil {
		return ""
	}
	return m[1]
}

// ucxVersion is what UCX's own command says, since its libraries do not hold their version.
func ucxVersion(ctx context.Context, _ string) string {
	out, err := bounded(ctx, 10*time.Second, "ucx_info", "-v")
	if err != nil {
		return ""
	}
	m := regexp.MustCompile(`(?i)version:? ([0-9]+\.[0-9]+\.[0-9]+)`).FindStringSubmatch(out)
	if m == nil {
		return ""
	}
	return m[1]
}

// libfabricVersion is the one text in libfabric that is a version.
func libfabricVersion(_ context.Context, path string) string {
	f, err := elf.Open(path)
	if err != nil {
		return ""
	}
	defer f.Close()
	found := map[string]bool{}
	for _, s := range f.Sections {
		if s.Type != elf.SHT_PROGBITS || s.Flags&elf.SHF_ALLOC == 0 || s.Flags&elf.SHF_EXECINSTR != 0 {
			continue
		}
		data, err := s.Data()
		if err != nil {
			return ""
		}
		for text := range bytes.SplitSeq(data, []byte{0}) {
			if libfabricText.Match(text) {
				found[string(text)] = true
			}
		}
	}
	if len(found) != 1 {
		return ""
	}
	for v := range found {
		return v
	}
	return ""
}

var libfabricText = regexp.MustCompile(`^[12]\.[0-9]+\.[0-9]+$`)

// system checks what of the host matters for recording.
func (d *diagnosis) system(output string, s *slurmState) {
	if limit, why := ampleMemory(sharedMemory, 1<<30); why != "" {
		d.note("records go to the disk at once", "%s", why)
	} else {
		d.ok("%s has room: a run may take %s", sharedMemory, profiles.FormatSize(limit>>20<<20))
	}
	var r unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &r); err == nil {
		if r.Cur != unix.RLIM_INFINITY {
			d.note("RDMA needs it unlimited, traced or not: limits.conf, and LimitMEMLOCK=infinity for slurmd", "locked memory is limited to %s", profiles.FormatSize(int64(min(r.Cur, 1<<62)))) //nolint:gosec // bounded
		} else {
			d.ok("locked memory is not limited")
		}
	}
	if output == "" {
		output = s.site("output", "")
		output, _, _ = strings.Cut(output, "%")
	}
	if output != "" {
		d.output(output)
	}
	d.clock()
}

func (d *diagnosis) output(dir string) {
	info, err := os.Stat(dir)
	if err != nil {
		d.problem("make it, on a file system that all nodes share", "output directory: %v", err)
		return
	}
	if !info.IsDir() {
		d.problem("", "output directory %s is not a directory", dir)
		return
	}
	if info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
		d.problem("chmod +t, as /tmp has it", "in output directory %s any user can remove the runs of others", dir)
	}
	name, network := fileSystem(dir)
	var st unix.Statfs_t
	if err := unix.Statfs(dir, &st); err != nil {
		d.problem("", "output directory %s: %v", dir, err)
		return
	}
	free := profiles.FormatSize(int64(st.Bavail) * st.Bsize >> 20 << 20) //nolint:gosec // a size of a disk
	how := "captures are mapped"
	if network {
		how = "captures are written with write(2)"
	}
	d.Facts["output file system"] = name
	if st.Blocks > 0 && st.Bavail*20 < st.Blocks {
		d.note("sigmatrace clean removes old runs", "output directory %s (%s) has %s free, less than a twentieth", dir, name, free)
		return
	}
	d.ok("output directory %s: %s, %s free; %s", dir, name, free, how)
}

func (d *diagnosis) clock() {
	source, err := os.ReadFile("/sys/devices/system/clocksource/clocksource0/current_clocksource")
	if err == nil {
		name := strings.TrimSpace(string(source))
		d.Facts["clock source"] = name
		if name != "tsc" && name != "arch_sys_counter" && name != "kvm-clock" {
			d.note("the kernel did not trust the processor's counter: see its log", "the kernel's clock is %s", name)
		} else {
			d.ok("the kernel's clock is %s", name)
		}
	}
	var t unix.Timex
	state, err := unix.Adjtimex(&t)
	switch {
	case err != nil:
		d.note("", "the system clock's state cannot be read: %v", err)
	case state == unix.TIME_ERROR:
		d.note("run PTP, chrony or ntpd: times of several nodes cannot be compared without", "the system clock is not synchronised")
	default:
		d.ok("the system clock is synchronised, its largest error by its own account %s", (time.Duration(t.Maxerror) * time.Microsecond).String())
	}
}
