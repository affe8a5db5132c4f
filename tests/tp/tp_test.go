package tp

import (
	"encoding/binary"
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

// A few fields of TracePacket, TrackDescriptor, TrackEvent and InternedData, by hand: enough to tell a good trace from
// bad ones without the exporter that this package is to judge.

func number(field int, v uint64) []byte {
	return binary.AppendUvarint(binary.AppendUvarint(nil, uint64(field)<<3), v)
}

func message(field int, parts ...[]byte) []byte {
	var body []byte
	for _, p := range parts {
		body = append(body, p...)
	}
	return append(binary.AppendUvarint(binary.AppendUvarint(nil, uint64(field)<<3|2), uint64(len(body))), body...)
}

func text(field int, s string) []byte { return message(field, []byte(s)) }

const (
	sequence = 7
	track    = 100
	begin    = 1
	end      = 2
)

// packet is a TracePacket on the sequence with SEQ_NEEDS_INCREMENTAL_STATE, or SEQ_INCREMENTAL_STATE_CLEARED for the first.
func packet(first bool, parts ...[]byte) []byte {
	flags := uint64(2)
	if first {
		flags = 1
	}
	return message(1, append(parts, number(10, sequence), number(13, flags))...)
}

func event(ts, kind uint64, parts ...[]byte) []byte {
	return packet(false, number(8, ts), message(11, append(parts, number(9, kind), number(11, track))...))
}

// goodTrace has a named process, one slice of 50 ns with an interned name, and one of 20 ns inside it.
func goodTrace() [][]byte {
	return [][]byte{
		packet(true, message(60, number(1, track), message(3, number(1, 42), text(6, "rank 0")))),
		packet(false, message(12, message(2, number(1, 1), text(2, "put")))),
		event(100, begin, number(10, 1)),
		event(110, begin, text(23, "inner")),
		event(130, end),
		event(150, end),
	}
}

func write(t *testing.T, packets ...[]byte) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "trace.pftrace")
	var all []byte
	for _, p := range packets {
		all = append(all, p...)
	}
	if err := os.WriteFile(name, all, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestCleanTrace(t *testing.T) {
	Need(t)
	trace := write(t, goodTrace()...)
	if err := Check(trace); err != nil {
		t.Error(err)
	}
	got, err := Query(trace, "SELECT s.name, ts, dur, p.name, p.pid, NULL FROM slice s JOIN process_track t ON s.track_id = t.id JOIN process p USING (upid) ORDER BY ts")
	if err != nil {
		t.Fatal(err)
	}
	want := [][]string{{"put", "100", "50", "rank 0", "42", "[NULL]"}, {"inner", "110", "20", "rank 0", "42", "[NULL]"}}
	if !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, want %q", got, want)
	}
}

func TestDamagedTracesFailTheCheck(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	Need(t)
	good := goodTrace()
	for name, c := range map[string]struct {
		packets [][]byte
		want    string
	}{
		"name never interned":        {[][]byte{good[0], good[2], good[5]}, "interned_data_tokenizer_errors"},
		"cleared state never begins": {good[1:], "needs_incremental_state"},
		"tail cut":                   {good[:5], "1 slices without an end"},
	} {
		t.Run(name, func(t *testing.T) {
			err := Check(write(t, c.packets...))
			if !errors.Is(err, ErrProblems) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want a problem with %q", err, c.want)
			}
		})
	}
	if err := Check(write(t, []byte("this is no trace of any kind"))); err == nil || errors.Is(err, ErrProblems) {
		t.Errorf("a file that is no trace: got %v, want it refused", err)
	}
}

func TestWrongSQLIsAnError(t *testing.T) {
	Need(t)
	if _, err := Query(write(t, goodTrace()...), "SELECT nothing FROM nowhere"); err == nil || !strings.Contains(err.Error(), "nowhere") {
		t.Errorf("got %v, want an error that names the table", err)
	}
}

func TestSQLPackage(t *testing.T) {
	if testing.Short() {
		t.Skip("not part of the quick run")
	}
	Need(t)
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "puts.sql"), []byte("CREATE PERFETTO VIEW puts AS SELECT dur FROM slice WHERE name = 'put'"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := QueryWith(write(t, goodTrace()...), "own", dir, "INCLUDE PERFETTO MODULE own.puts; SELECT * FROM puts")
	if want := [][]string{{"50"}}; err != nil || !reflect.DeepEqual(got, want) {
		t.Errorf("got %q, %v, want %q", got, err, want)
	}
}
