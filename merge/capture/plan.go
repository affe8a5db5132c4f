package capture

import "github.com/sigmatrace/sigmatrace/merge/catalogue"

// plan is a layout made ready for the decoder.
type plan struct {
	id        uint16
	predicted []uint8 // fields in templates, in order of the mask's bits
	always    []alwaysField
	strides   uint32 // fields predicted by stride
	signed    uint32 // fields of type int
	longMask  bool   // the change mask has two bytes
}

type alwaysField struct {
	field uint8
	kind  uint8
}

// How an always-field is written.
const (
	plainNumber = iota // an int too, as its two's complement
	rawBytes
)

// plansOf prepares the events of a catalogue, by id. An event whose layout no record can have is left out.
func plansOf(c *catalogue.Catalogue) []*plan {
	if len(c.Events) == 0 {
		return nil
	}
	plans := make([]*plan, int(c.Events[len(c.Events)-1].ID)+1)
	for _, e := range c.Events {
		plans[e.ID] = planOf(e)
	}
	return plans
}

func planOf(e *catalogue.Event) *plan {
	l := e.Layout
	if len(l.Fields) > catalogue.MaxFields {
		return nil
	}
	p := &plan{id: e.ID, longMask: len(l.Predicted) > 8}
	for i, f := range l.Fields {
		switch {
		case f.Type == catalogue.String || (f.Type == catalogue.Raw && f.Predict != catalogue.Always):
			return nil
		case f.Predict == catalogue.Always:
			kind := uint8(plainNumber)
			if f.Type == catalogue.Raw {
				kind = rawBytes
			}
			p.always = append(p.always, alwaysField{uint8(i), kind})
		default:
			p.predicted = append(p.predicted, uint8(i))
			if f.Type == catalogue.Int {
				p.signed |= 1 << i
			}
			if f.Predict == catalogue.Stride {
				p.strides |= 1 << i
			}
		}
	}
	return p
}
