package merge

import (
	"testing"

	"github.com/sigmatrace/sigmatrace/merge/catalogue"
)

func TestSummaryLayer(t *testing.T) {
	type ranks [][]string
	for _, c := range []struct {
		name  string
		ranks ranks
		want  string
	}{
		{"nobody communicates", ranks{{}, {}}, ""},
		{"UCX over verbs", ranks{{"ucp_put", "verbs_write"}, {"verbs_write", "ucp_put"}}, "ucp"},
		{"libfabric over UCX", ranks{{"ucp_tag_send", "ofi_tagged_send"}, {"ofi_tagged_send", "ucp_tag_send"}}, "ofi"},
		{"one rank posts itself", ranks{{"ofi_send", "verbs_send"}, {"verbs_send"}}, "verbs"},
		{"who is silent does not count", ranks{{"ofi_send"}, {}}, "ofi"},
		{"nothing in common", ranks{{"ucp_put"}, {"verbs_write"}, {"verbs_write"}}, "verbs"},
		{"opened only", ranks{{"verbs_write", "ofi_completion"}}, "verbs"},
	} {
		in := &inventory{}
		for _, events := range c.ranks {
			p := &process{}
			for _, name := range events {
				e := catalogue.Default.EventNamed(name)
				if e == nil {
					t.Fatalf("no event %s", name)
				}
				p.totals = append(p.totals, total{event: e.ID, count: 1})
			}
			in.processes = append(in.processes, p)
		}
		got := ""
		if l := in.summaryLayer(catalogue.Default); l != nil {
			got = *l
		}
		if got != c.want {
			t.Errorf("%s: %q, want %q", c.name, got, c.want)
		}
	}
}
