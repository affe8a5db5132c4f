package nccl

import (
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/sigmatrace/sigmatrace/merge"
	"github.com/sigmatrace/sigmatrace/merge/ops"
	"github.com/sigmatrace/sigmatrace/tests/needs"
)

func plugin(t *testing.T, name string) string {
	return "NCCL_PROFILER_PLUGIN=" + needs.Built(t, filepath.Join("tests/nccl", name))
}

// together adds up what the plugin in both processes got.
func together(all []saw) (sum saw) {
	for _, s := range all {
		sum.Bad += s.Bad
		sum.Left += s.Left
		sum.States += s.States
		sum.Inits += s.Inits
		sum.Finalized += s.Finalized
		sum.Group += s.Group
		sum.Coll += s.Coll
		sum.P2P += s.P2P
		sum.Op += s.Op
		sum.Step += s.Step
		sum.Ctrl += s.Ctrl
		sum.GroupAPI += s.GroupAPI
		sum.CollAPI += s.CollAPI
	}
	return sum
}

// A plugin that the program has set gets what it gets without us: the same events, with parents of its own, whatever its mask; and we get ours.
func TestOtherPluginGetsWhatItGetsWithoutUs(t *testing.T) {
	for version := 2; version <= 6; version++ {
		for _, mask := range []int{0, 2, 16, 47} {
			if version != 5 && mask != 47 {
				continue // all of them once
			}
			t.Run(strconv.Itoa(version)+"/"+strconv.Itoa(mask), func(t *testing.T) {
				env := []string{plugin(t, "all.so"), "PLUGIN_MASK=" + strconv.Itoa(mask)}
				without := job{name: "normal", newest: version, env: env, bare: true}.do(t)
				with := job{mode: "full", name: "normal", newest: version, env: env}.do(t)
				a, b := together(without.saw), together(with.saw)
				if a.Inits != 2 || a.Bad != 0 || mask != 0 && a.Coll == 0 {
					t.Fatalf("without us: %+v", a)
				}
				if a != b {
					t.Errorf("without us %+v, with us %+v", a, b)
				}
				for _, s := range with.said {
					if s.Plugin != "sigmatrace" || s.Mask != mask|14 || s.Version != version {
						t.Errorf("NCCL found %+v", s)
					}
				}
				want := merge.Plugin{Interface: uint64(version), Events: uint64(mask | 14), Chained: "other", Processes: 2}
				if n := with.info.NCCL; len(n.Plugins) != 1 || n.Plugins[0] != want {
					t.Errorf("plugins: %+v", n.Plugins)
				}
				if g := with.group(t, "AllReduce"); g.Count != 2*rounds || g.Traffic["verbs"].Count != 2*rounds*channels*2*steps {
					t.Errorf("collectives: %+v", g)
				}
			})
		}
	}
}

// How a plugin is found, by what is set: NCCL gets the version that both speak; one that we do not speak is left to it; none is none. Nothing set finds us, and a plugin of the usual name in
// the program's search path is called as if we were not there, also in a process that is not recorded.
func TestHowItIsFound(t *testing.T) {
	hidden := func(name string) string {
		return "LD_LIBRARY_PATH+=" + filepath.Dir(needs.Built(t, "tests/nccl/"+name+"/libnccl-profiler.so"))
	}
	for _, c := range []struct {
		name            string
		newest, version int
		plugin, chained string
		env, set, by    []string
	}{
		{name: "nothing is set", newest: 6, version: 6, plugin: "sigmatrace"},
		{name: "empty", newest: 5, version: 5, plugin: "sigmatrace", env: []string{"NCCL_PROFILER_PLUGIN="}},
		{name: "none", newest: 5, env: []string{"NCCL_PROFILER_PLUGIN=none"}},
		{name: "one that is not there", newest: 5, env: []string{"NCCL_PROFILER_PLUGIN=/nonexistent/x.so"}},
		{name: "the program itself, which has none", newest: 5, env: []string{"NCCL_PROFILER_PLUGIN=STATIC_PLUGIN"}},
		{name: "the newest that both speak", newest: 6, version: 4, plugin: "sigmatrace", chained: "other", env: []string{plugin(t, "old.so")}},
		{name: "a version that we do not speak", newest: 5, version: 1, plugin: "other", env: []string{plugin(t, "v1.so")}},
		{name: "of the usual name", newest: 6, version: 6, plugin: "sigmatrace", chained: "other", env: []string{hidden("hidden")}},
		{name: "of the usual name, a version that we do not speak", newest: 5, version: 1, plugin: "other", env: []string{hidden("hidden-v1")}},
		{name: "of the usual name, not recorded", newest: 5, version: 5, plugin: "other", env: []string{hidden("hidden")}, set: []string{"processes.exclude=nccl-client"}},
		{name: "not recorded", newest: 5, set: []string{"processes.exclude=nccl-client"}},
		{name: "of the usual name, SIGMATRACE=off", newest: 5, version: 5, plugin: "other", env: []string{hidden("hidden")}, by: []string{"env", "SIGMATRACE=off"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := job{mode: "simple", name: "normal", newest: c.newest, env: append(c.env, "PLUGIN_MASK=14"), set: c.set, by: c.by}.do(t)
			for _, s := range r.said {
				if s.Plugin != c.plugin || s.Version != c.version || s.Result != 0 {
					t.Errorf("NCCL found %+v", s)
				}
			}
			if c.plugin != "sigmatrace" {
				if r.info.NCCL != nil {
					t.Errorf("recorded: %+v", r.info.NCCL)
				}
			} else if n := r.info.NCCL; n == nil || len(n.Plugins) != 1 || n.Plugins[0].Chained != c.chained {
				t.Errorf("recorded: %+v", n)
			}
			if c.plugin == "other" || c.chained != "" {
				if s := together(r.saw); s.Inits != 2 || s.Finalized != 2 || c.version > 1 && s.Coll != 2*rounds || s.Bad != 0 {
					t.Errorf("the other plugin got %+v", s)
				}
			}
		})
	}
}

// A plugin that passes its events on to another one finds that one, or itself, and not us, whenever it looks; both get what they get without us.
func TestPluginThatPassesOn(t *testing.T) {
	to := "PASS_TO=" + needs.Built(t, "tests/nccl/all.so")
	for name, env := range map[string][]string{
		"late": {to}, "early": {to, "PASS_EARLY=1"}, "itself": {}, "itself, early": {"PASS_EARLY=1"},
		"of the usual name": {"PASS_TO=libnccl-profiler.so", "LD_LIBRARY_PATH+=" + filepath.Dir(needs.Built(t, "tests/nccl/hidden/libnccl-profiler.so"))},
	} {
		t.Run(name, func(t *testing.T) {
			env = append(env, plugin(t, "pass.so"), "PLUGIN_MASK=14")
			without := job{name: "normal", newest: 6, env: env, bare: true}.do(t)
			with := job{mode: "full", name: "normal", newest: 6, env: env}.do(t)
			a, b := together(without.saw), together(with.saw)
			if passes := !strings.HasPrefix(name, "itself"); a != b || a.Bad != 0 || passes != (a.Coll == 2*rounds) {
				t.Errorf("without us %+v, with us %+v", a, b)
			}
			for _, s := range with.said {
				if s.Plugin != "sigmatrace" || s.Version != 5 || s.Result != 0 {
					t.Errorf("NCCL found %+v", s)
				}
			}
			if n := with.info.NCCL; n == nil || len(n.Plugins) != 1 || n.Plugins[0].Chained != "passes on" || with.group(t, "AllReduce").Count != 2*rounds {
				t.Errorf("recorded: %+v", n)
			}
		})
	}
}

// A plugin whose init fails is not called again, and that it failed is said; one that changes its mask meanwhile gets more events from then on.
func TestOtherPluginRefusesOrChangesItsMind(t *testing.T) {
	r := job{mode: "full", name: "normal", newest: 5, env: []string{plugin(t, "all.so"), "PLUGIN_REFUSE=1"}}.do(t)
	if len(r.saw) != 0 || len(r.info.NCCL.Plugins) != 1 || r.info.NCCL.Plugins[0].Refused != 3 {
		t.Errorf("refused: %+v, %+v", r.info.NCCL.Plugins, r.saw)
	}
	if g := r.group(t, "AllReduce"); g.Count != 2*rounds || r.said[0].Result != 0 {
		t.Errorf("refused: %+v", g)
	}
	r = job{mode: "full", name: "normal", newest: 5, env: []string{plugin(t, "all.so"), "PLUGIN_MASK=2", "PLUGIN_LATER=30"}}.do(t)
	if s := together(r.saw); s.Bad != 0 || s.Left != 0 || s.Step == 0 || s.Step >= allWrites {
		t.Errorf("the other plugin got %+v", s)
	}
}

// Two communicators: with a thread each, what is posted is each one's own. One thread that works for both at once: until each step tells, it is not known for which of the two, and that is said.
func TestTwoCommunicators(t *testing.T) {
	for name, exact := range map[string]bool{"threads": true, "overlap": false} {
		t.Run(name, func(t *testing.T) {
			r := job{mode: "full", name: name, newest: 5}.do(t)
			if r.info.NCCL.Communicators != 2 {
				t.Errorf("%d communicators", r.info.NCCL.Communicators)
			}
			known, unknown := r.group(t, "AllReduce"), r.group(t, "")
			traffic := known.Traffic["verbs"].Count + unknown.Traffic["verbs"].Count
			vague := known.Ambiguous["verbs"].Count + unknown.Ambiguous["verbs"].Count
			if traffic != r.wrote.Count || exact && vague != 0 || !exact && vague != traffic {
				t.Errorf("%d requests of %d, %d of which may be for one or the other", traffic, r.wrote.Count, vague)
			}
			r.requests(t, func(op *ops.Op, run *ops.Run, _ bool, sequence, _ uint64, _ bool) {
				if x := op.For; exact && (x.Sequence != sequence || x.Communicator == 0) || !exact && (x.Communicator != 0 || x.Task != 0 || x.Candidates < 2) {
					t.Errorf("a request for collective %d is said to be for %+v", sequence, x)
				}
			})
		})
	}
	r := job{mode: "full", name: "overlap", newest: 5, set: []string{"nccl.events=coll,p2p,steps"}}.do(t)
	vague := r.group(t, "AllReduce").Ambiguous["verbs"].Count
	if first := uint64(2 * 2 * channels * 2); vague == 0 || vague > first {
		t.Errorf("with the events of steps %d requests may be for one or the other", vague)
	}
	r.requests(t, func(op *ops.Op, run *ops.Run, _ bool, sequence, channel uint64, _ bool) {
		if x := op.For; x.Candidates == 1 && (x.Sequence != sequence || uint64(x.Channel-1) != channel) {
			t.Errorf("a request for collective %d on channel %d is said to be for %+v", sequence, channel, x)
		}
	})
}

// In the modes that record less: simple has each call's collective; aggregate has no events, and says which communicators there were.
func TestModes(t *testing.T) {
	r := job{mode: "simple", name: "normal", newest: 5}.do(t)
	if x, y := r.group(t, "AllReduce"), r.group(t, "Send"); x.Traffic["verbs"].Bytes+y.Traffic["verbs"].Bytes != r.wrote.Bytes {
		t.Errorf("simple: %+v and %+v, the adapter carried out %+v", x, y, r.wrote)
	}
	r = job{mode: "aggregate", name: "normal", newest: 5}.do(t)
	if n := r.info.NCCL; n == nil || n.Communicators != 1 || len(n.Groups) != 0 || r.info.Operations["verbs"]["write"].Bytes != r.wrote.Bytes {
		t.Errorf("aggregate: %+v", n)
	}
}

// More operations at once than are remembered are counted as not recorded; the other plugin gets them all.
func TestMoreThanIsRemembered(t *testing.T) {
	r := job{mode: "full", name: "many", newest: 5, env: []string{plugin(t, "all.so"), "PLUGIN_MASK=2"}}.do(t)
	if g := r.group(t, "AllReduce"); g.Count+r.info.NCCL.Unrecorded != 2*70000 || r.info.NCCL.Unrecorded == 0 || g.Unfinished != 0 {
		t.Errorf("%d recorded, %d not", g.Count, r.info.NCCL.Unrecorded)
	}
	if s := together(r.saw); s.Coll != 2*70000 {
		t.Errorf("the other plugin got %+v", s)
	}
}

// A child that was forked by a process with communicators has its own capture, with its own communicator and all names, and the parent's stay as they were.
func TestFork(t *testing.T) {
	r := job{mode: "full", name: "fork", newest: 5}.do(t)
	own := map[string]uint64{}
	for _, g := range r.info.NCCL.Groups {
		if g.Function == "AllReduce" && g.Unfinished == 0 {
			own[g.Name] += g.Count
		}
	}
	// one hash, so one sum, called after the first process that has it
	if sum := own["world"] + own["child's"]; sum != 4*rounds || len(r.info.NCCL.Plugins) != 1 || r.info.NCCL.Plugins[0].Processes != 4 {
		t.Errorf("collectives %v, plugins %+v", own, r.info.NCCL.Plugins)
	}
	if r.wrote.Count != allWrites {
		t.Errorf("the adapter carried out %+v", r.wrote)
	}
}

// A proxy that works for another process knows neither its communicator nor its task, and takes none of its own for them.
func TestForAnotherProcess(t *testing.T) {
	r := job{mode: "full", name: "elsewhere", newest: 5}.do(t)
	r.requests(t, func(op *ops.Op, run *ops.Run, _ bool, sequence, channel uint64, _ bool) {
		x := op.For
		if x.Task != 0 || x.Communicator != 0 && !strings.Contains(run.Endpoints[x.Communicator-1].Name, "unknown") {
			t.Errorf("a request is said to be for %+v", x)
		}
	})
	if g := r.group(t, ""); g.Traffic["verbs"].Count != r.wrote.Count || g.Ambiguous["verbs"].Count != r.wrote.Count {
		t.Errorf("%+v of %+v", g, r.wrote)
	}
}
