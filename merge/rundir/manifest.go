package rundir

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	_ "embed"

	"golang.org/x/sys/unix"
)

// ManifestVersion is the manifest's major version. Readers refuse newer ones; fields are only ever added to one.
const ManifestVersion = 1

// ManifestSchema is the JSON schema of the manifest.
//
//go:embed manifest.schema.json
var ManifestSchema []byte

// Manifest says what a run was and how complete its trace is.
type Manifest struct {
	Version int             `json:"version"` // major
	Tool    string          `json:"tool"`    // version of sigmatrace that wrote the run
	Run     Run             `json:"run"`
	Profile Profile         `json:"profile"`
	Merge   *Merge          `json:"merge,omitempty"`  // at the run's end; absent where there was none
	Result  json.RawMessage `json:"result,omitempty"` // the merger's account; absent before a merge
}

// Run describes the launched command.
type Run struct {
	Name          string            `json:"name"`
	Command       []string          `json:"command"` // as the user gave it
	Host          string            `json:"host"`
	User          string            `json:"user"`
	Start         time.Time         `json:"start"`
	End           *time.Time        `json:"end"`                // null while running, or where the launcher died
	Status        *int              `json:"status"`             // the command's exit status, 128+n for a signal; null with End
	Signal        *string           `json:"signal"`             // the signal that ended the command, as SIGTERM; null where none did
	Dialect       string            `json:"dialect"`            // how the command was understood: plain, openmpi, srun
	ExpectedRanks *int              `json:"expected_ranks"`     // by the launcher's or scheduler's own count; null where not known
	Preload       string            `json:"ld_preload"`         // LD_PRELOAD as set for the ranks
	Environment   map[string]string `json:"environment"`        // by AllowedEnvironment
	Untraced      []Untraced        `json:"untraced,omitempty"` // nodes whose tasks ran without the recorder
	Nodes         []Node            `json:"nodes,omitempty"`    // where nodes of a step had their captures, and what of them came here
}

// Profile is the profile as resolved.
type Profile struct {
	Name   string                  `json:"name"`
	Files  []string                `json:"files"` // the profile's file and those it extends, the nearest first
	Values map[string]ProfileValue `json:"values"`
}

// ProfileValue is one key's value in the flat file's spelling, and where it came from.
type ProfileValue struct {
	Value  string `json:"value"`
	Source string `json:"source"`
}

// ReadManifest reads the manifest. The error says errors.Is fs.ErrNotExist where there is none.
func (d *Dir) ReadManifest() (*Manifest, error) {
	text, err := d.manifestText()
	if err != nil {
		return nil, err
	}
	var m Manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, d.damaged(err)
	}
	return &m, nil
}

// manifestText is what the manifest's file holds, of a version that can be read.
func (d *Dir) manifestText() ([]byte, error) {
	text, err := readRegular(d.ManifestPath(), MostManifest)
	if err != nil {
		return nil, fmt.Errorf("reading manifest: %w", err)
	}
	if newer, err := checkVersion(text); newer {
		return nil, fmt.Errorf("reading manifest %s: %w", d.ManifestPath(), err)
	} else if err != nil {
		return nil, d.damaged(err)
	}
	return text, nil
}

// damaged says what still can be done: captures tell most of it themselves.
func (d *Dir) damaged(err error) error {
	return fmt.Errorf("reading manifest %s: %w (where it is moved away, captures are merged without it)", d.ManifestPath(), err)
}

// checkVersion looks at the version before anything else, so that a newer manifest is named as such whatever else it holds.
func checkVersion(text []byte) (newer bool, err error) {
	var head struct {
		Version *int `json:"version"`
	}
	if err := json.Unmarshal(text, &head); err != nil {
		return false, err
	}
	if head.Version == nil || *head.Version < 1 {
		return false, errors.New("no version in it: not a manifest")
	}
	if *head.Version > ManifestVersion {
		return true, fmt.Errorf("version %d is newer than %d, the newest this program reads", *head.Version, ManifestVersion)
	}
	return false, nil
}

// WriteManifest writes the manifest, at once or not at all.
func (d *Dir) WriteManifest(m *Manifest) error {
	m.Version = ManifestVersion
	return d.writeJSON(m)
}

// Merge says when the merge at the run's end was through and how long it took. Merges that repeat it leave it as it is: they give the same bytes.
type Merge struct {
	End     time.Time `json:"end"`
	Seconds float64   `json:"seconds"`
}

// SetResult stores the merger's account in the manifest, with what it is of the merge itself where that is given, and leaves all else in it as it is, fields of other versions included. A
// run without a manifest gets one that holds the result only.
func (d *Dir) SetResult(result json.RawMessage, of ...Merge) error {
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	text, err := d.manifestText()
	if errors.Is(err, fs.ErrNotExist) {
		fields := map[string]any{"version": ManifestVersion, "result": result}
		for _, m := range of {
			fields["merge"] = m
		}
		return d.writeJSON(fields)
	}
	if err != nil {
		return err
	}
	fields := map[string]json.RawMessage{}
	if err := json.Unmarshal(text, &fields); err != nil {
		return d.damaged(err)
	}
	fields["result"] = result
	for _, m := range of {
		if fields["merge"], err = json.Marshal(m); err != nil {
			return fmt.Errorf("writing manifest: %w", err)
		}
	}
	return d.writeJSON(fields)
}

// Update reads the manifest, lets change alter it, and writes it back, alone among this machine's processes.
func (d *Dir) Update(change func(*Manifest)) error {
	unlock, err := d.lock()
	if err != nil {
		return err
	}
	defer unlock()
	m, err := d.ReadManifest()
	if err != nil {
		return err
	}
	change(m)
	return d.WriteManifest(m)
}

// lock keeps two writers of one manifest apart. File systems without locks are taken as they are: the rename alone then keeps
// the file whole.
func (d *Dir) lock() (unlock func(), err error) {
	f, err := os.Open(d.path)
	if err != nil {
		return nil, fmt.Errorf("opening run directory: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err != unix.EINTR {
			break
		}
	}
	return func() { f.Close() }, nil
}

func (d *Dir) writeJSON(v any) error {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	if err := e.Encode(v); err != nil {
		return fmt.Errorf("writing manifest: %w", err)
	}
	err := WriteWhole(d.ManifestPath(), func(w io.Writer) error {
		_, err := b.WriteTo(w)
		return err
	})
	if err != nil {
		return fmt.Errorf("writing manifest: %w", err)
	}
	return nil
}

// Variables that explain a run's communication. Everything else stays out: environments hold tokens and passwords.
var (
	allowedNames = []string{
		"CUDA_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "MASTER_ADDR", "MASTER_PORT", "OMP_NUM_THREADS",
		"LOCAL_RANK", "RANK", "WORLD_SIZE", "SIGMATRACE", "SIGMATRACE_PROFILE", "SIGMATRACE_PROFILE_PATH", "SIGMATRACE_LIBDIR",
		"SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID", "SLURM_CLUSTER_NAME", "SLURM_CPUS_PER_TASK", "SLURM_JOB_ID", "SLURM_JOB_NAME",
		"SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_JOB_PARTITION", "SLURM_NTASKS", "SLURM_NTASKS_PER_NODE", "SLURM_PROCID",
		"SLURM_RESTART_COUNT", "SLURM_STEP_ID", "SLURM_STEP_NODELIST", "SLURM_STEP_NUM_TASKS", "SLURM_TASKS_PER_NODE",
	}
	allowedPrefixes = []string{"FI_", "MLX5_", "NCCL_", "NVSHMEM_", "OMPI_MCA_", "RCCL_", "RDMAV_", "IBV_", "UCX_",
		"SIGMATRACE_CLOCK_", "SIGMATRACE_EPOCH_", "SIGMATRACE_MERGE_", "SIGMATRACE_MODE", "SIGMATRACE_OUTPUT_", "SIGMATRACE_PROVIDERS", "SIGMATRACE_RANKS_", "SIGMATRACE_RECORD_", "SIGMATRACE_WINDOW_"}
	secretWords = []string{"AUTH", "COOKIE", "CREDENTIAL", "JWT", "PASS", "PRIVATE", "SECRET", "TOKEN"}
)

// AllowedEnvironment returns those of environ's variables that a manifest may hold.
func AllowedEnvironment(environ map[string]string) map[string]string {
	kept := map[string]string{}
	for name, value := range environ {
		if allowed(name) {
			kept[name] = strings.ToValidUTF8(value, "\ufffd")
		}
	}
	return kept
}

func allowed(name string) bool {
	for _, word := range secretWords {
		if strings.Contains(strings.ToUpper(name), word) {
			return false
		}
	}
	if slices.Contains(allowedNames, name) {
		return true
	}
	for _, prefix := range allowedPrefixes {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
