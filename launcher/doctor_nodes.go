package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// nodesAtOnce is how many nodes are looked at at the same time.
const nodesAtOnce = 16

// nodesDiagnosis is what the nodes of a cluster have said, put together.
type nodesDiagnosis struct {
	Looked      int           `json:"looked_at"`
	Differences []difference  `json:"differences"`
	Findings    []nodeFinding `json:"findings"` // those that are not ok
	Unreachable []unreachable `json:"unreachable"`
	Problems    int           `json:"problems"`
}

// difference is a fact that is not the same on all nodes.
type difference struct {
	Fact   string      `json:"fact"`
	Values []factValue `json:"values"` // that of most nodes first
}

type factValue struct {
	Value string `json:"value"`
	Nodes string `json:"nodes"`
}

type nodeFinding struct {
	finding
	Nodes string `json:"nodes"`
}

type unreachable struct {
	Reason string `json:"reason"`
	Nodes  string `json:"nodes"`
}

// diagnoseNodes has each node look at itself, by a job step of its own that is not traced.
func diagnoseNodes(ctx context.Context, c *cli.Context, here *diagnosis) (*nodesDiagnosis, error) {
	nodes, err := slurmNodes(ctx, c.String("nodelist"))
	if err != nil {
		return nil, err
	}
	exe, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("finding this program: %w", err)
	}
	said := make(map[string]*diagnosis, len(nodes))
	silent := map[string][]string{}
	var lock sync.Mutex
	var group errgroup.Group
	group.SetLimit(nodesAtOnce)
	progress := newProgressLine(os.Stderr)
	done := int64(0)
	for _, node := range nodes {
		group.Go(func() error {
			d, err := askNode(ctx, c, exe, node)
			lock.Lock()
			defer lock.Unlock()
			if err != nil {
				silent[err.Error()] = append(silent[err.Error()], node)
			} else {
				said[node] = d
			}
			done++
			progress.show("looking at nodes", done, int64(len(nodes)))
			return nil
		})
	}
	group.Wait() //nolint:errcheck // none returns one
	progress.end()
	if err := ctx.Err(); err != nil {
		return nil, fmt.Errorf("looking at nodes: %w", err)
	}
	return compareNodes(said, silent), nil
}

// askNode runs doctor on one node.
func askNode(ctx context.Context, c *cli.Context, exe, node string) (*diagnosis, error) {
	most := c.Duration("timeout")
	within, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	seconds := strconv.Itoa(max(1, int(most/time.Second)))
	line := []string{"--nodes=1", "--ntasks=1", "--nodelist=" + node, "--immediate=" + seconds, "--input=none", "--export=ALL", "--job-name=sigmatrace-doctor"}
	if os.Getenv("SLURM_JOB_ID") != "" {
		line = append(line, "--overlap")
	} else {
		line = append(line, "--time=2")
	}
	line = append(line, exe, "doctor", "--json")
	for _, option := range []string{"plugstack", "output"} {
		if c.IsSet(option) {
			line = append(line, "--"+option, c.String(option))
		}
	}
	cmd := exec.CommandContext(within, "srun", line...)
	cmd.Env = untracedEnvironment()
	// srun gives its job up when it is told to end; it is killed only where that does not help.
	cmd.Cancel = func() error { return cmd.Process.Signal(unix.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var d diagnosis
	if json.Unmarshal(out.Bytes(), &d) == nil && d.Host != "" {
		if d.Version > doctorVersion {
			return nil, fmt.Errorf("its answer is of version %d, newer than %d", d.Version, doctorVersion)
		}
		return &d, nil
	}
	switch {
	case within.Err() != nil:
		return nil, fmt.Errorf("no answer within %v", most)
	case err == nil:
		return nil, errors.New("its answer is not one of doctor's")
	}
	return nil, errors.New(lastOf(errs.String(), err, node))
}

// lastOf is the most telling line of what srun said: the first error that is not about the job's end, without the names that differ by node.
func lastOf(text string, err error, node string) string {
	for line := range strings.Lines(text) {
		_, what, is := strings.Cut(strings.TrimSpace(line), "error: ")
		if is && !strings.HasPrefix(what, node+": task") {
			return strings.ReplaceAll(what, node, "NODE")
		}
	}
	return err.Error()
}

// slurmNodes are the nodes that a list means, or all.
func slurmNodes(ctx context.Context, list string) ([]string, error) {
	args := []string{"--noheader", "--Node", "--format=%N"}
	if list != "" {
		args = append(args, "--nodes="+list)
	}
	out, err := bounded(ctx, 30*time.Second, "sinfo", args...)
	if err != nil {
		return nil, failf("run it where Slurm's commands work, or without --nodes", "asking Slurm for its nodes: %w", err)
	}
	nodes := strings.Fields(out)
	slices.Sort(nodes)
	if nodes = slices.Compact(nodes); len(nodes) == 0 {
		return nil, failf("", "Slurm has no node %s", list)
	}
	return nodes, nil
}

// compareNodes puts together what nodes have said.
func compareNodes(said map[string]*diagnosis, silent map[string][]string) *nodesDiagnosis {
	n := &nodesDiagnosis{Looked: len(said), Differences: []difference{}, Findings: []nodeFinding{}, Unreachable: []unreachable{}}
	facts := map[string]map[string][]string{}
	found := map[finding][]string{}
	for _, node := range slices.Sorted(maps.Keys(said)) {
		for fact := range said[node].Facts {
			facts[fact] = map[string][]string{}
		}
		for _, f := range said[node].Findings {
			if f.Verdict != verdictOK {
				found[f] = append(found[f], node)
			}
		}
	}
	for _, fact := range slices.Sorted(maps.Keys(facts)) {
		values := facts[fact]
		for _, node := range slices.Sorted(maps.Keys(said)) {
			value, has := said[node].Facts[fact]
			if !has {
				value = "missing"
			}
			values[value] = append(values[value], node)
		}
		if len(values) > 1 {
			n.Differences = append(n.Differences, difference{fact, mostFirst(values)})
			n.Problems++
		}
	}
	for f, nodes := range found {
		n.Findings = append(n.Findings, nodeFinding{f, nodeList(nodes)})
		if f.Verdict == verdictProblem {
			n.Problems++
		}
	}
	slices.SortFunc(n.Findings, func(a, b nodeFinding) int {
		return strings.Compare(a.Area+a.What+a.Nodes, b.Area+b.What+b.Nodes)
	})
	for _, v := range mostFirst(silent) {
		n.Unreachable = append(n.Unreachable, unreachable{v.Value, v.Nodes})
		n.Problems++
	}
	return n
}

func mostFirst(values map[string][]string) []factValue {
	keys := slices.SortedFunc(maps.Keys(values), func(a, b string) int {
		if d := len(values[b]) - len(values[a]); d != 0 {
			return d
		}
		return strings.Compare(a, b)
	})
	var list []factValue
	for _, k := range keys {
		list = append(list, factValue{k, nodeList(values[k])})
	}
	return list
}

// nodeList writes nodes as Slurm does: n[1-3,7].
func nodeList(nodes []string) string {
	type group struct {
		prefix string
		width  int
	}
	var order []group
	members := map[group][]int{}
	var plain []string
	for _, node := range nodes {
		prefix := strings.TrimRight(node, "0123456789")
		digits := node[len(prefix):]
		n, err := strconv.Atoi(digits)
		if err != nil {
			plain = append(plain, node)
			continue
		}
		g := group{prefix, 0}
		if strings.HasPrefix(digits, "0") {
			g.width = len(digits)
		}
		if members[g] == nil {
			order = append(order, g)
		}
		members[g] = append(members[g], n)
	}
	for _, g := range order {
		list := members[g]
		slices.Sort(list)
		var ranges []string
		for i := 0; i < len(list); {
			last := i
			for last+1 < len(list) && list[last+1] == list[last]+1 {
				last++
			}
			text := fmt.Sprintf("%0*d", g.width, list[i])
			if last > i {
				text += fmt.Sprintf("-%0*d", g.width, list[last])
			}
			ranges = append(ranges, text)
			i = last + 1
		}
		text := strings.Join(ranges, ",")
		if len(list) > 1 {
			text = "[" + text + "]"
		}
		plain = append(plain, g.prefix+text)
	}
	return strings.Join(plain, ",")
}
