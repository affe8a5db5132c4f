//go:build full

package doorbell

import "testing"

// As many doorbells as the searches of the paper rang; a queue of 1024 slots that goes round 10,000 times; 10^7 doorbells of two queues at one page. Each element is decoded, and none lost.
func TestFullCounts(t *testing.T) {
	for _, c := range []struct {
		name, kernel, how string
		want              int64
	}{
		{"2.7 million doorbells", "stream", "2700000,10,1,512", 2700000},
		{"10,000 laps of 1024 slots", "stream", "10240000,10,16,512", 10240000},
		{"10 million doorbells of two queues at one page", "pair", "5000000,10,1,20", 10000000},
	} {
		t.Run(c.name, func(t *testing.T) {
			_, info, want := bells(t, "simple", c.kernel, c.how, recording{set: []string{"merge.exports=json"}})
			if got := want["write"].Count; got != c.want {
				t.Errorf("the adapter carried out %d of %d", got, c.want)
			}
			accounted(t, info, c.want, true)
		})
	}
}
