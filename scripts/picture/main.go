// Command picture draws a piece of a run as an SVG, for the README: ranks from top to bottom, a band for each layer, operations as
// bars and messages as arrows. Its input is what `sigmatrace export --format json` writes.
//
//	go run ./scripts/picture TRACE.json >picture.svg
package main

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
)

type event struct {
	Ph     string  `json:"ph"`
	Pid    int     `json:"pid"`
	Tid    int     `json:"tid"`
	Ts     float64 `json:"ts"` // microseconds
	Dur    float64 `json:"dur"`
	Name   string  `json:"name"`
	Cat    string  `json:"cat"`
	BindID string  `json:"bind_id"`
	In     bool    `json:"flow_in"`
	Out    bool    `json:"flow_out"`
	Args   struct {
		Name       string `json:"name"`
		Bytes      int64  `json:"bytes"`
		Unfinished bool   `json:"unfinished"`
		Implied    bool   `json:"implied"`
	} `json:"args"`
}

func (e *event) end() float64 { return e.Ts + e.Dur }

// shown are the operations that the picture has colours for; pre-posted receives would cover everything.
var shown = map[string]string{
	"ucp tag_send": "#2563eb", "ucp tag_recv": "#93c5fd", "ucp put": "#7c3aed", "ucp flush": "#94a3b8",
	"verbs send": "#059669", "verbs write": "#d97706", "verbs read": "#dc2626",
}

const (
	width, left = 1100, 170
	band, bar   = 46, 7
	lanes       = 5
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: picture TRACE.json")
		os.Exit(2)
	}
	f, err := os.Open(os.Args[1])
	if err == nil {
		defer f.Close()
		err = draw(f, os.Stdout)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "picture: error:", err)
		os.Exit(1)
	}
}

// read returns the operations in order of time, the ends of flows by their id, and the processes' names by pid.
func read(r io.Reader) (operations []event, flows map[string][2]*event, names map[int]string, err error) {
	flows, names = map[string][2]*event{}, map[int]string{}
	lines := bufio.NewScanner(r)
	lines.Buffer(nil, 1<<22)
	for lines.Scan() {
		line := strings.TrimSuffix(lines.Text(), ",")
		if !strings.HasPrefix(line, `{"ph"`) {
			continue
		}
		var e event
		if err := json.Unmarshal([]byte(strings.TrimSuffix(line, "]}")), &e); err != nil {
			return nil, nil, nil, fmt.Errorf("reading %q: %w", line, err)
		}
		switch {
		case e.Ph == "M" && e.Name == "process_name" && strings.HasPrefix(e.Args.Name, "rank "):
			names[e.Pid] = strings.Split(e.Args.Name, " (")[0]
		case e.BindID != "":
			ends := flows[e.BindID]
			if e.In {
				ends[1] = &e
			} else {
				ends[0] = &e
			}
			flows[e.BindID] = ends
		case e.Ph == "X" && shown[e.Cat+" "+e.Name] != "" && !e.Args.Unfinished:
			if e.Args.Implied { // the end known is that of a later request: only the post is sure
				e.Dur = 0
			}
			operations = append(operations, e)
		}
	}
	slices.SortStableFunc(operations, func(a, b event) int { return cmp.Compare(a.Ts, b.Ts) })
	return operations, flows, names, lines.Err()
}

// window finds the span of the given length in which most messages go from one process to another.
func window(flows map[string][2]*event, span float64) float64 {
	var starts []float64
	for _, f := range flows {
		if f[0] != nil && f[1] != nil && f[0].Pid != f[1].Pid && f[1].Ts-f[0].Ts < span/2 {
			starts = append(starts, f[0].Ts)
		}
	}
	slices.Sort(starts)
	best, from, i := 0, 0.0, 0
	for j, t := range starts {
		for t-starts[i] > span*0.8 {
			i++
		}
		if j-i > best {
			best, from = j-i, starts[i]-span*0.05
		}
	}
	return from
}

func draw(r io.Reader, w io.Writer) error {
	operations, flows, names, err := read(r)
	if err != nil {
		return err
	}
	const span = 600.0 // microseconds
	from := window(flows, span)
	pids := make([]int, 0, len(names))
	for pid := range names {
		pids = append(pids, pid)
	}
	slices.SortFunc(pids, func(a, b int) int { return cmp.Compare(names[a], names[b]) })
	layers := []string{"ucp", "verbs"}
	row := func(pid int, layer string) float64 {
		return 40 + float64(slices.Index(pids, pid)*(len(layers)*band+14)+slices.Index(layers, layer)*band)
	}
	x := func(t float64) float64 { return left + (t-from)/span*(width-left-10) }
	height := 40 + len(pids)*(len(layers)*band+14) + 30
	fmt.Fprintf(w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" font-family="sans-serif" font-size="12">`+"\n", width, height)
	fmt.Fprintf(w, `<rect width="%d" height="%d" fill="#fff"/>`+"\n", width, height)
	for i := range 7 {
		t := from + span*float64(i)/6
		fmt.Fprintf(w, `<path d="M%.1f 30V%d" stroke="#e2e8f0"/><text x="%.1f" y="22" fill="#64748b" text-anchor="middle">%.0f µs</text>`+"\n", x(t), height-30, x(t), t-from)
	}
	for _, pid := range pids {
		fmt.Fprintf(w, `<text x="8" y="%.0f" font-weight="bold">%s</text>`+"\n", row(pid, "ucp")+18, names[pid])
		for _, l := range layers {
			fmt.Fprintf(w, `<text x="%d" y="%.0f" fill="#64748b" text-anchor="end">%s</text><rect x="%d" y="%.0f" width="%d" height="%d" fill="#f8fafc"/>`+"\n",
				left-8, row(pid, l)+18, l, left, row(pid, l), width-left-10, band-6)
		}
	}
	free := map[[2]any][lanes]float64{}
	at := map[[2]any]float64{} // where an operation that begins then is drawn
	for _, e := range operations {
		if e.end() < from || e.Ts > from+span || names[e.Pid] == "" {
			continue
		}
		k := [2]any{e.Pid, e.Cat}
		ends, lane := free[k], 0
		for lane < lanes-1 && ends[lane] > e.Ts {
			lane++
		}
		ends[lane] = e.end()
		free[k] = ends
		y := row(e.Pid, e.Cat) + 2 + float64(lane*(bar+1))
		at[[2]any{e.Pid, e.Ts}] = y
		a, b := max(x(e.Ts), left), min(x(e.end()), width-10)
		fmt.Fprintf(w, `<rect x="%.1f" y="%.1f" width="%.1f" height="%d" fill="%s"><title>%s %s, %d bytes, %.3f µs</title></rect>`+"\n",
			a, y, max(b-a, 1.5), bar, shown[e.Cat+" "+e.Name], e.Cat, e.Name, e.Args.Bytes, e.Dur)
	}
	ids := make([]string, 0, len(flows))
	for id := range flows {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	for _, id := range ids {
		f := flows[id]
		if f[0] == nil || f[1] == nil || f[0].Pid == f[1].Pid || f[0].Ts < from || f[1].Ts > from+span {
			continue
		}
		y, ok := at[[2]any{f[0].Pid, f[0].Ts}]
		if !ok {
			continue
		}
		// The arrow ends in the band of the layer that it began in.
		layer := layers[0]
		if y >= row(f[0].Pid, "verbs") {
			layer = layers[1]
		}
		to := row(f[1].Pid, layer) + band/3
		fmt.Fprintf(w, `<path d="M%.1f %.1fC%.1f %.1f %.1f %.1f %.1f %.1f" fill="none" stroke="#0f172a" stroke-opacity=".35"/><circle cx="%.1f" cy="%.1f" r="1.8" fill="#0f172a" fill-opacity=".6"/>`+"\n",
			x(f[0].Ts), y+bar/2, x(f[0].Ts)+12, y+bar/2, x(f[1].Ts)-12, to, x(f[1].Ts), to, x(f[1].Ts), to)
	}
	legend := left
	for _, k := range []string{"ucp tag_send", "ucp tag_recv", "verbs send", "verbs write", "verbs read"} {
		fmt.Fprintf(w, `<rect x="%d" y="%d" width="12" height="8" fill="%s"/><text x="%d" y="%d" fill="#334155">%s</text>`+"\n", legend, height-18, shown[k], legend+17, height-10, k)
		legend += 120
	}
	_, err = fmt.Fprintf(w, `<text x="%d" y="%d" fill="#64748b" text-anchor="end">arrows: matched messages</text></svg>`+"\n", width-12, height-10)
	return err
}
