package profiles

import (
	"fmt"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

// Kind is the type of a key's value.
type Kind int

const (
	String   Kind = iota // free text, one line
	Enum                 // one of Key.Valid
	List                 // any of Key.Valid, each once
	Size                 // bytes: a number, or a number with KiB, MiB, GiB or TiB
	Bool                 // true or false
	Duration             // "30s"; the flat file's spelling is nanoseconds with their unit, "30000000000ns"
	Number               // a whole number, from 0
	Ranges               // of ranks: "0-7,16"
	Patterns             // list of patterns of executables
	CPUs                 // of processors: "2-3,8"
	Path                 // a directory, may hold placeholders; empty means the default said in Doc
)

// MaxQueue is how many elements the largest queue of an adapter holds (mlx5: log_max_qp_sz of at most 15).
const MaxQueue = 32768

// Key describes one key of a profile. Keys is the only place where a key is declared; the README's table, `explain`, `export`
// and every error message are made from it.
type Key struct {
	Name     string // dotted, as in --set
	Kind     Kind
	Default  string // in the flat file's spelling
	Doc      string
	Valid    []string // for Enum and List
	Min, Max int64    // for Size, in bytes, and Number; Max 0 means no upper bound. Min for Duration, in ns, but that 0 is allowed
	Beyond   string   // for Number: why not more than Max
	Power2   bool     // for Size: a power of two
	Needed   bool     // for List: at least one entry
	FileOnly bool     // describes the file itself: no environment twin, not in --set
}

// Keys is the schema: every key that a profile may hold, in the order of the flat file.
var Keys = []Key{
	{Name: "name", Kind: String, FileOnly: true,
		Doc: "The profile's name. May be left out; must equal the file's name without .toml."},
	{Name: "description", Kind: String, FileOnly: true,
		Doc: "One line for `sigmatrace profile list`."},
	{Name: "extends", Kind: String, FileOnly: true,
		Doc: "Name of the profile, or path of the file (relative to this one), whose values hold where this one says nothing."},
	{Name: "mode", Kind: Enum, Default: "simple", Valid: []string{"aggregate", "simple", "full"},
		Doc: "aggregate: counts and bytes only. simple: one event per communication call. full: every request and completion with all fields."},
	{Name: "providers", Kind: List, Default: "ucx,libfabric,ibverbs,mlx5dv", Valid: providerNames(), Needed: true,
		Doc: "Libraries whose calls are recorded. What a provider needs is added."},
	{Name: "record.budget", Kind: Size, Default: "268435456", Min: 1 << 20,
		Doc: "Most bytes that one process may write. Recording stops there, the job goes on, and the loss is counted."},
	{Name: "record.memory", Kind: Size, Default: "268435456", Min: 1 << 20,
		Doc: "Most memory that the recorder holds in one process, its capture included where that lies in memory (tmpfs); never more than a twentieth of the memory limit of the process's control group. Events that would need more are lost like those beyond the budget."},
	{Name: "record.scratch", Kind: Path, Default: "",
		Doc: "Existing directory, best node-local, in which captures are written during the run; moved to the run directory afterwards, from all nodes of a Slurm allocation. Under the Slurm plugin only where the budget of a node's ranks can be moved in seconds. Empty: the run directory."},
	{Name: "record.place", Kind: Enum, Default: "auto", Valid: []string{"auto", "memory", "disk"},
		Doc: "Where records go first. disk: to the capture's file, mapped; a record may then wait for the disk, since the first write to a page of a file waits for the journal. memory: to shared memory (/dev/shm), from where the launcher copies them to the file within a second; it must run on the ranks' host. auto: memory where that is so and there is ample room, else disk. Under the Slurm plugin memory means that the whole capture is there until the node's last task has ended, where there is room for it; auto is disk."},
	{Name: "record.chunk", Kind: Size, Default: "65536", Min: 16 << 10, Max: 1 << 20, Power2: true,
		Doc: "Size of a thread's chunk, the unit of writing."},
	{Name: "record.back_end", Kind: Enum, Default: "auto", Valid: []string{"auto", "mapped", "written"},
		Doc: "mapped: shared mapping, loses at most one record when killed. written: write(2) of whole chunks, for network file systems. auto: by file system."},
	{Name: "record.nvtx", Kind: Bool, Default: "true",
		Doc: "Record the NVTX ranges and marks of the program as phases, where no other tool has been set for NVTX."},
	{Name: "window.start", Kind: Enum, Default: "open", Valid: []string{"open", "closed"},
		Doc: "closed: events are not recorded until `sigmatrace window start RUN`. Counts and matrix go on in any case."},
	{Name: "window.delay", Kind: Duration, Default: "0ns",
		Doc: "Events are recorded from so long after the run's start."},
	{Name: "window.duration", Kind: Duration, Default: "0ns",
		Doc: "And so long from there; 0 means to the end."},
	{Name: "window.max_events", Kind: Number, Default: "0",
		Doc: "Most events that one process records; then its window closes for good. 0 means no limit."},
	{Name: "window.control", Kind: Bool, Default: "true",
		Doc: "Processes look for the commands of `sigmatrace window`, once a second at most."},
	{Name: "ranks.include", Kind: Ranges,
		Doc: "Only these ranks are recorded; empty: all. Processes without a rank are not meant."},
	{Name: "ranks.exclude", Kind: Ranges,
		Doc: "These ranks are not recorded."},
	{Name: "processes.exclude", Kind: Patterns,
		Doc: "Programs that are not recorded: patterns with *, ? and [...] of the executable's name or, with a slash in the pattern, of its path."},
	{Name: "epoch.interval", Kind: Duration, Default: "0ns", Min: 10_000_000,
		Doc: "Counts and matrix are kept apart for each such interval of the wall clock, beginning at its multiples; 0: they are not."},
	{Name: "epoch.phases", Kind: Bool, Default: "false",
		Doc: "Counts and matrix are kept apart for each phase (NVTX range, sigmatrace_phase_begin) that the calling thread is in, the innermost."},
	{Name: "ucx.level", Kind: Enum, Default: "auto", Valid: []string{"auto", "ucp", "uct"},
		Doc: "How far down provider ucx records. ucp: the calls of UCP. uct: also the operations of UCT that they lead to, on each transport and device. auto: uct in full mode, ucp in the others."},
	{Name: "doorbell.enabled", Kind: Bool, Default: "true",
		Doc: "With provider cuda: GPU kernels ring at a page of the recorder's, from where a thread passes doorbells on to the device. false: they ring at the device, and what they post is not seen."},
	{Name: "doorbell.batch_threshold", Kind: Number, Default: "128", Max: MaxQueue, Beyond: "the largest queue holds,",
		Doc: "Elements that may have been rung for and not yet copied: the doorbell that goes beyond waits for the copies before it is passed on, so that the queue does not go round over them. 0: each waits for its own. Not more than the largest queue holds; for a queue of less than twice as many it is half of what that holds."},
	{Name: "doorbell.poll", Kind: Enum, Default: "auto", Valid: []string{"auto", "pause", "umwait", "mwaitx", "yield"},
		Doc: "How the thread that looks for doorbells waits. umwait, mwaitx: until the page is written to, where the processor has that; else pause, which takes a whole core while doorbells are rung, and yield, which leaves the core to others each time. auto: the first of them that the processor has. After a second without a doorbell it sleeps for a ten-thousandth of the time since the last one."},
	{Name: "doorbell.cpus", Kind: CPUs,
		Doc: "Processors that the threads of a process for doorbells may run on; empty: those of the program's thread that first asks for a page."},
	{Name: "doorbell.threads", Kind: Number, Default: "2",
		Doc: "Most threads that a process may have for doorbells. They are two, however many pages there are: one passes doorbells on and calls nothing that may wait, another copies and decodes. With less, kernels ring at the device, and what they post is not seen."},
	{Name: "gpu.kernels", Kind: Enum, Default: "launches", Valid: []string{"off", "launches", "times"},
		Doc: "What provider cuda records of kernels. launches: each launch, with function, grid, block and stream; counts alone in mode aggregate. times: also when each kernel ran, by CUPTI, NVIDIA's library for tools, where that is there and nothing else in the program uses it; launches take longer then (tests/gpu/kernels.sh measures it). off: nothing."},
	{Name: "gpu.counters", Kind: Bool, Default: "true",
		Doc: "Show in traces how many bytes a second each GPU posts by itself, in all and by queue pair, as counters. It says nothing to the recorder: a merge or export of a run goes by the run's profile."},
	{Name: "nccl.events", Kind: List, Default: "coll,p2p,proxy", Valid: []string{"coll", "p2p", "proxy", "steps"}, Needed: true,
		Doc: "What provider nccl asks NCCL's profiler interface for. coll: collectives. p2p: sends and receives. proxy: what the network proxy does for them, by channel and peer. steps: each of its steps, too, which tells which requests belong to which channel, and takes more time."},
	{Name: "clock.source", Kind: Enum, Default: "auto", Valid: []string{"auto", "calibration", "messages", "system"},
		Doc: "What brings the nodes of a run to one clock when it is merged. calibration: what `sigmatrace calibrate` recorded (PTP, NTP). messages: matched messages, to within a round trip. system: nothing, times are those of the nodes' system clocks. auto: calibrations by PTP, made tighter by messages; else messages; else other calibrations; else the system clocks."},
	{Name: "clock.warn_above", Kind: Duration, Default: "0ns",
		Doc: "Warn of nodes whose clock may be further off than this, or of which that is not known, and mark them in the account; 0: do not."},
	{Name: "clock.repair", Kind: Bool, Default: "false",
		Doc: "Move times where a message was received before it was sent by the run's clock, so that none is; each node's own order stays, and the account says by how much times were moved."},
	{Name: "merge.at_job_end", Kind: Bool, Default: "true",
		Doc: "Merge when the launched command has returned."},
	{Name: "merge.exports", Kind: List, Default: "perfetto,matrix", Valid: []string{"perfetto", "matrix", "json", "parquet"},
		Doc: "What the merge writes: perfetto (trace.pftrace), matrix (matrix.json), json (trace.json, the Chrome trace event format), parquet (events/, tables for DuckDB, Arrow and the like)."},
	{Name: "merge.memory", Kind: Size, Default: "1073741824", Min: 64 << 20,
		Doc: "Most memory that the merge may take, whatever the size of the captures."},
	{Name: "merge.keep_captures", Kind: Bool, Default: "true",
		Doc: "Keep the raw captures after a verified merge."},
	{Name: "merge.slurm_bytes", Kind: Size, Default: "536870912",
		Doc: "Under the Slurm plugin: captures of more than this are not merged by srun's own process, but inside an allocation by a job step over its nodes (`sigmatrace merge --slurm`), and after an srun without one not at all: it prints the sbatch line."},
	{Name: "merge.slurm_time", Kind: Duration, Default: "60000000000ns", Min: 1_000_000_000,
		Doc: "Under the Slurm plugin: longest time that srun merges; the site may allow less. 0: srun does not merge."},
	{Name: "merge.slurm_workers", Kind: Number, Default: "2",
		Doc: "Under the Slurm plugin: cores that srun's own process merges with; 0 means all."},
	{Name: "merge.slurm_nice", Kind: Number, Default: "10",
		Doc: "Under the Slurm plugin: priority (nice) that srun's own process merges with; 19 is the lowest."},
	{Name: "output.directory", Kind: Path, Default: ".",
		Doc: "Directory in which run directories are made; created if missing."},
}

// KeyNames returns the names of all keys, in schema order.
func KeyNames() []string {
	names := make([]string, len(Keys))
	for i := range Keys {
		names[i] = Keys[i].Name
	}
	return names
}

func findKey(name string) *Key {
	for i := range Keys {
		if Keys[i].Name == name {
			return &Keys[i]
		}
	}
	return nil
}

// Variable returns the environment variable that sets the key, or "" where the key describes the file itself.
func (k *Key) Variable() string {
	if k.FileOnly {
		return ""
	}
	return "SIGMATRACE_" + strings.ToUpper(strings.ReplaceAll(k.Name, ".", "_"))
}

// Canonical checks text, as a person would write it in the environment or after --set, and returns the flat file's spelling:
// sizes in bytes, lists joined by commas, booleans as true or false.
func (k *Key) Canonical(text string) (string, error) {
	if err := checkText(text); err != nil {
		return "", err
	}
	switch k.Kind {
	case String:
		return text, nil
	case Path:
		return text, checkPlaceholders(text)
	case Bool:
		switch strings.ToLower(text) {
		case "true", "1", "yes", "on":
			return "true", nil
		case "false", "0", "no", "off":
			return "false", nil
		}
		return "", badValue(text, []string{"true", "false"})
	case Enum:
		for _, v := range k.Valid {
			if text == v {
				return v, nil
			}
		}
		return "", badValue(text, k.Valid)
	case List:
		var items []string
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				items = append(items, item)
			}
		}
		return k.canonicalList(items)
	case Duration:
		return k.canonicalDuration(text)
	case Number:
		return k.canonicalNumber(text)
	case Ranges:
		return canonicalRanges(text, "rank")
	case CPUs:
		return canonicalRanges(text, "processor")
	case Patterns:
		var items []string
		for item := range strings.SplitSeq(text, ",") {
			if item = strings.TrimSpace(item); item != "" {
				items = append(items, item)
			}
		}
		return canonicalPatterns(items)
	case Size:
		n, err := ParseSize(text)
		if err != nil {
			return "", err
		}
		return strconv.FormatInt(n, 10), k.checkSize(n)
	}
	return "", fmt.Errorf("key %s has no kind", k.Name)
}

func (k *Key) canonicalList(items []string) (string, error) {
	if len(items) == 0 && k.Needed {
		return "", &Problem{What: "an empty list", Valid: k.Valid}
	}
	seen := map[string]bool{}
	for _, item := range items {
		if !contains(k.Valid, item) {
			return "", badValue(item, k.Valid)
		}
		if seen[item] {
			return "", &Problem{What: fmt.Sprintf("%q is there twice", item)}
		}
		seen[item] = true
	}
	return strings.Join(items, ","), nil
}

func (k *Key) checkSize(n int64) error {
	switch {
	case n < k.Min:
		return &Problem{What: fmt.Sprintf("%s is less than %s", FormatSize(n), FormatSize(k.Min))}
	case k.Max > 0 && n > k.Max:
		return &Problem{What: fmt.Sprintf("%s is more than %s", FormatSize(n), FormatSize(k.Max))}
	case k.Power2 && n&(n-1) != 0:
		return &Problem{What: fmt.Sprintf("%s is not a power of two", FormatSize(n))}
	}
	return nil
}

// Describe says in words which values the key takes.
func (k *Key) Describe() string {
	switch k.Kind {
	case Enum:
		return strings.Join(k.Valid, ", ")
	case List:
		return "list of " + strings.Join(k.Valid, ", ")
	case Bool:
		return "true or false"
	case Size:
		s := "bytes, from " + FormatSize(k.Min)
		if k.Max > 0 {
			s += " to " + FormatSize(k.Max)
		}
		if k.Power2 {
			s += ", a power of two"
		}
		return s
	case Duration:
		s := "duration"
		if k.Min > 0 {
			s += ", 0 or from " + time.Duration(k.Min).String()
		}
		return s
	case Number:
		s := fmt.Sprintf("number, from %d", k.Min)
		if k.Max > 0 {
			s += fmt.Sprintf(" to %d", k.Max)
		}
		return s
	case Ranges:
		return "ranks and ranges, such as 0-7,16"
	case CPUs:
		return "processors and ranges, such as 2-3,8"
	case Patterns:
		return "list of patterns"
	case Path:
		return "directory; " + placeholderList() + " are replaced"
	}
	return "text"
}

// Readable turns a canonical value into the spelling a person would write: 256MiB for 268435456.
func (k *Key) Readable(canonical string) string {
	if k.Kind == Size {
		if n, err := strconv.ParseInt(canonical, 10, 64); err == nil {
			return FormatSize(n)
		}
	}
	if k.Kind == Duration {
		if d, err := parseDuration(canonical); err == nil {
			return d.String()
		}
	}
	return canonical
}

// maxValue bounds one value: a path of PATH_MAX without its end; the reader in C has a buffer for it.
const maxValue = 4095

func checkText(text string) error {
	if len(text) > maxValue {
		return &Problem{What: fmt.Sprintf("value of %d bytes; at most %d fit", len(text), maxValue)}
	}
	if !utf8.ValidString(text) {
		return &Problem{What: "the value is not UTF-8"}
	}
	for i := 0; i < len(text); i++ {
		if c := text[i]; c < ' ' || c == 0x7f {
			return &Problem{What: fmt.Sprintf("control character 0x%02x in the value", c)}
		}
	}
	return nil
}

func contains(list []string, s string) bool {
	for _, v := range list {
		if v == s {
			return true
		}
	}
	return false
}
