// Package catalogue is the Go side of preload/events.toml: which events, definitions and operations exist and what their fields
// mean. Default holds the committed catalogue; Parse reads another one, for tests.
package catalogue

import (
	"fmt"
	"slices"
	"strings"

	"github.com/BurntSushi/toml"
)

// Type is the type of a field, as listed at the top of events.toml.
type Type uint8

// Field types.
const (
	Uint Type = iota
	Int
	BytesCount
	Address
	Key
	Object
	Enum
	Flags
	Ticks
	Time
	Parent
	Raw
	String
	Name // number of a text that a definition told
)

var typeNames = []string{"uint", "int", "bytes_count", "address", "key", "object", "enum", "flags", "ticks", "time", "parent", "raw", "string", "name"}

func (t Type) String() string { return typeNames[t] }

// Predict says how the encoder guesses a field's next value (FORMAT.md, Event chunks).
type Predict uint8

// Predictions.
const (
	Same Predict = iota
	Stride
	Always
)

// Kind says what an event is to the merger.
type Kind uint8

// Kinds of events.
const (
	Request    Kind = iota + 1 // an accepted request; counts as its operation
	Completion                 // the end of one or more requests
	Call                       // one communication call (simple mode)
	Detail                     // belongs to a request, counts as nothing
	Poll                       // looking for completions
	Control                    // a send-queue request that moves nothing: takes an ordinal, counts as no operation
	Phase                      // what the application says of itself: a mark, the begin or end of a phase
	Launch                     // a kernel or graph was launched on a GPU
	Kernel                     // a kernel ran on a GPU
)

var kindNames = map[string]Kind{"request": Request, "completion": Completion, "call": Call, "detail": Detail, "poll": Poll, "control": Control, "phase": Phase,
	"launch": Launch, "kernel": Kernel}

// Field is one field of a layout or definition. Of is the enumeration's name, or the clock domain of a time.
type Field struct {
	Name    string
	Type    Type
	Of      string
	Predict Predict
	Doc     string
}

// Layout is the list of fields that one or more events share. Predicted and Always hold the indices into Fields of the fields that
// templates predict and of those written in every record. Apart is the index of the field by whose value the encoder keeps templates
// apart, 0 none.
type Layout struct {
	Name      string
	Fields    []Field
	Predicted []int
	Always    []int
	Apart     int
}

// FieldIndex returns the index of the field called name, or -1.
func (l *Layout) FieldIndex(name string) int {
	return slices.IndexFunc(l.Fields, func(f Field) bool { return f.Name == name })
}

// Event is one kind of record of an event chunk.
type Event struct {
	ID        uint16
	Name      string
	Provider  string
	Layer     string
	Operation string // "" where it counts as none
	Kind      Kind
	Control   bool // synchronises, and carries no payload
	Layout    *Layout
	Modes     []string
	Doc       string
}

// Definition is one kind of record of the definition stream.
type Definition struct {
	ID     uint16
	Name   string
	Fields []Field
	Doc    string
}

// Layer is a communication layer with the operations that count in it; Targets are those counted at the receiving side, which only
// cross-check.
type Layer struct {
	Name       string
	Operations []string
	Targets    []string
}

// Catalogue is a whole events.toml.
type Catalogue struct {
	Version     uint32
	Layers      []Layer
	Layouts     []*Layout
	Events      []*Event      // in order of id
	Definitions []*Definition // in order of id
	Enums       map[string]map[string]uint64

	byID    []*Event
	defByID map[uint16]*Definition
}

// Event returns the event with the given id, or nil.
func (c *Catalogue) Event(id uint16) *Event {
	if int(id) < len(c.byID) {
		return c.byID[id]
	}
	return nil
}

// EventNamed returns the event called name, or nil.
func (c *Catalogue) EventNamed(name string) *Event {
	for _, e := range c.Events {
		if e.Name == name {
			return e
		}
	}
	return nil
}

// Definition returns the definition with the given id, or nil.
func (c *Catalogue) Definition(id uint16) *Definition { return c.defByID[id] }

// EnumName returns the name of value v of an enumeration, or its number.
func (c *Catalogue) EnumName(enum string, v uint64) string {
	for n, x := range c.Enums[enum] {
		if x == v {
			return n
		}
	}
	return fmt.Sprint(v)
}

// MaxFields is the most fields a layout may have: a template's change mask has one bit for each.
const MaxFields = 16

type tomlField struct {
	Name, Type, Predict, Doc string
}

type tomlFile struct {
	Version uint32
	Enum    map[string]map[string]uint64
	Layer   []struct {
		Name                string
		Operations, Targets []string
	}
	Layout map[string]struct {
		Apart  string
		Fields []tomlField
	}
	Event []struct {
		ID                                                  uint16
		Name, Provider, Layer, Layout, Kind, Operation, Doc string
		Control                                             bool
		Modes                                               []string
	}
	Definition []struct {
		ID        uint16
		Name, Doc string
		Fields    []tomlField
	}
}

// Parse reads a catalogue and checks it: unique ids and names, known types, layouts, layers, operations and enumerations.
func Parse(text string) (*Catalogue, error) {
	var t tomlFile
	md, err := toml.Decode(text, &t)
	if err != nil {
		return nil, fmt.Errorf("reading the event catalogue: %w", err)
	}
	if u := md.Undecoded(); len(u) > 0 {
		return nil, fmt.Errorf("reading the event catalogue: unknown key %s", u[0])
	}
	c := &Catalogue{Version: t.Version, Enums: t.Enum}
	layouts := map[string]*Layout{}
	for _, k := range md.Keys() {
		if len(k) != 2 || k[0] != "layout" || layouts[k[1]] != nil {
			continue
		}
		fields, err := c.fields(t.Layout[k[1]].Fields)
		if err != nil {
			return nil, fmt.Errorf("layout %s: %w", k[1], err)
		}
		if len(fields) == 0 || len(fields) > MaxFields || fields[0].Type != Object {
			return nil, fmt.Errorf("layout %s: needs 1 to %d fields, the first an object", k[1], MaxFields)
		}
		l := NewLayout(k[1], fields)
		for _, f := range fields {
			if f.Type == String || f.Type == Raw && f.Predict != Always {
				return nil, fmt.Errorf("layout %s: field %s: an event cannot hold a %s that is not written always", k[1], f.Name, f.Type)
			}
		}
		if a := t.Layout[k[1]].Apart; a != "" {
			if l.Apart = l.FieldIndex(a); l.Apart <= 0 {
				return nil, fmt.Errorf("layout %s: no field %q to keep templates apart by", k[1], a)
			}
		}
		layouts[k[1]] = l
		c.Layouts = append(c.Layouts, l)
	}
	for _, l := range t.Layer {
		c.Layers = append(c.Layers, Layer(l))
	}
	for _, e := range t.Event {
		ev := &Event{ID: e.ID, Name: e.Name, Provider: e.Provider, Layer: e.Layer, Operation: e.Operation, Control: e.Control, Modes: e.Modes, Doc: e.Doc}
		if ev.Layout = layouts[e.Layout]; ev.Layout == nil {
			return nil, fmt.Errorf("event %s: no layout %q", e.Name, e.Layout)
		}
		if ev.Kind = kindNames[e.Kind]; ev.Kind == 0 {
			return nil, fmt.Errorf("event %s: no kind %q", e.Name, e.Kind)
		}
		i := slices.IndexFunc(c.Layers, func(l Layer) bool { return l.Name == e.Layer })
		if i < 0 || (e.Operation != "" && !slices.Contains(c.Layers[i].Operations, e.Operation)) {
			return nil, fmt.Errorf("event %s: no operation %q in layer %q", e.Name, e.Operation, e.Layer)
		}
		if e.ID == 0 || c.EventNamed(e.Name) != nil || slices.ContainsFunc(c.Events, func(x *Event) bool { return x.ID == e.ID }) {
			return nil, fmt.Errorf("event %s: id %d or name is zero or taken", e.Name, e.ID)
		}
		c.Events = append(c.Events, ev)
	}
	for _, d := range t.Definition {
		fields, err := c.fields(d.Fields)
		if err != nil {
			return nil, fmt.Errorf("definition %s: %w", d.Name, err)
		}
		if d.ID == 0 || slices.ContainsFunc(c.Definitions, func(x *Definition) bool { return x.ID == d.ID || x.Name == d.Name }) {
			return nil, fmt.Errorf("definition %s: id %d or name is zero or taken", d.Name, d.ID)
		}
		c.Definitions = append(c.Definitions, &Definition{d.ID, d.Name, fields, d.Doc})
	}
	return c.Index(), nil
}

func (c *Catalogue) fields(in []tomlField) ([]Field, error) {
	var out []Field
	for _, f := range in {
		name, of, _ := strings.Cut(f.Type, ":")
		i := slices.Index(typeNames, name)
		if i < 0 {
			return nil, fmt.Errorf("field %s: no type %q", f.Name, f.Type)
		}
		g := Field{Name: f.Name, Type: Type(i), Of: of, Doc: f.Doc}
		switch {
		case g.Type == Enum || g.Type == Flags:
			if c.Enums[of] == nil {
				return nil, fmt.Errorf("field %s: no enumeration %q", f.Name, of)
			}
		case g.Type == Time:
			if _, ok := c.Enums["domain"][of]; !ok {
				return nil, fmt.Errorf("field %s: no clock domain %q", f.Name, of)
			}
		}
		switch f.Predict {
		case "", "same":
		case "stride":
			g.Predict = Stride
		case "always":
			g.Predict = Always
		default:
			return nil, fmt.Errorf("field %s: no prediction %q", f.Name, f.Predict)
		}
		if (g.Type == Ticks || g.Type == Time || g.Type == Raw || g.Type == Parent) && f.Predict == "" {
			g.Predict = Always
		}
		out = append(out, g)
	}
	return out, nil
}

// NewLayout makes a layout of fields, whose predicted and always-written fields it lists.
func NewLayout(name string, fields []Field) *Layout {
	l := &Layout{Name: name, Fields: fields}
	for i, f := range fields {
		if f.Predict == Always {
			l.Always = append(l.Always, i)
		} else {
			l.Predicted = append(l.Predicted, i)
		}
	}
	return l
}

// Index sorts a catalogue and prepares its look-ups. It returns c.
func (c *Catalogue) Index() *Catalogue {
	slices.SortFunc(c.Events, func(a, b *Event) int { return int(a.ID) - int(b.ID) })
	slices.SortFunc(c.Definitions, func(a, b *Definition) int { return int(a.ID) - int(b.ID) })
	if n := len(c.Events); n > 0 {
		c.byID = make([]*Event, c.Events[n-1].ID+1)
	}
	for _, e := range c.Events {
		c.byID[e.ID] = e
	}
	c.defByID = map[uint16]*Definition{}
	for _, d := range c.Definitions {
		c.defByID[d.ID] = d
	}
	return c
}
