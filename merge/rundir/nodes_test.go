package rundir

import (
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
)

func TestNodesComeIntoTheManifest(t *testing.T) {
	d := create(t)
	err := d.MakeNodes()
	if err != nil {
		t.Fatal(err)
	}
	if err := d.WriteManifest(example()); err != nil {
		t.Fatal(err)
	}
	want := []Node{
		{Part: "n1.7.0", Host: "n1", Place: PlaceScratch, Reason: "record.scratch is set", Directory: "/tmp/x", Ranks: 2, Bytes: 1 << 21, Bandwidth: 1 << 30, Seconds: 4, Owner: "7.8",
			Collected: &Collected{Files: 1, Bytes: 5, Packed: 3, Seconds: 0.5, Reason: "the time was over", Left: []LeftOver{{"/tmp/x/n1/1.2.0.capture", 7}, {"/tmp/x/n1/alive", 3}}}},
		{Part: "n2.7.0", Host: "n2", Place: PlaceShared, Reason: "too slow", Ranks: 1},
		{Part: "n3.7.0", Host: "n3", Place: PlaceMemory, Reason: "killed", Directory: "/dev/shm/x", Ranks: 1, Bytes: 1},
		{Part: "n4.7.0", Host: "n4", Place: PlaceScratch, Reason: "well", Directory: "/tmp/x", Ranks: 1, Collected: &Collected{Files: 1}},
	}
	for i := range want {
		if err := d.WriteNode(&want[i]); err != nil {
			t.Fatal(err)
		}
	}
	for range 2 {
		nodes, err := d.TakeNodes()
		if err != nil || !reflect.DeepEqual(nodes, want) {
			t.Errorf("%+v, %v; want %+v", nodes, err, want)
		}
	}
	m, err := d.ReadManifest()
	if err != nil || !reflect.DeepEqual(m.Run.Nodes, want) {
		t.Errorf("the manifest has %+v, %v; want %+v", m.Run.Nodes, err, want)
	}
	if err := validate(t, d); err != nil {
		t.Error(err)
	}
	for i, left := range []bool{true, false, true, false} {
		if want[i].Left() != left {
			t.Errorf("%s: left %v", want[i].Part, !left)
		}
	}
	if n := want[0].LeftBytes(); n != 10 {
		t.Errorf("%d bytes are left, want 10", n)
	}
}

// What cannot be read is told, beside what can.
func TestNodesThatCannotBeRead(t *testing.T) {
	d := create(t)
	err := d.MakeNodes()
	if err == nil {
		err = d.WriteNode(&Node{Part: "n1.7.0", Host: "n1", Place: PlaceShared})
	}
	if err != nil {
		t.Fatal(err)
	}
	for text, want := range map[string]string{"": "unexpected end", "{}": "not the account", `{"version":2,"part":"bad"}`: "version 2 is newer than 1", `{"version":1,"part":"x"}`: "not the account"} {
		if err := os.WriteFile(filepath.Join(d.NodesPath(), "bad.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		nodes, err := d.ReadNodes()
		if err == nil || !strings.Contains(err.Error(), want) || len(nodes) != 1 || nodes[0].Part != "n1.7.0" {
			t.Errorf("%q: %+v, %v; want %q", text, nodes, err, want)
		}
	}
	for _, part := range []string{"", ".x", "../x", "a/b", "a\nb", strings.Repeat("x", 201)} {
		if CheckPart(part) == nil {
			t.Errorf("part %q was taken", part)
		}
	}
	if err := CheckPart("n1.7.batch"); err != nil {
		t.Error(err)
	}
}
