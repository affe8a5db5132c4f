"""What was recorded of kernels, held against what they told themselves: kernels.py RUN OUTPUT LAUNCHES GRAPHS KERNELS"""

import json
import statistics
import sys

run, output, launches, graphs, kernels = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
failed = False


def result(good, name, why=""):
    global failed
    failed |= not good
    print(f"{'ok' if good else 'FAIL'} {name}{'' if good else ': ' + str(why)}")


told = [line.split()[1:] for line in open(output) if line.startswith("ran ")]
told = [(f[0], *map(int, f[1:])) for f in told]
info = json.load(open(run + "/manifest.json"))["result"]
trace = json.load(open(run + "/trace.json"))
begin = int(trace["otherData"]["begin_ns"])
slices = [e for e in trace["traceEvents"] if e.get("cat", "").startswith("gpu")]
seen = sorted((e for e in slices if "registers" in e["args"] and "spin" in e["name"]), key=lambda e: e["ts"])
seen = [(e["name"], begin + round(e["ts"] * 1000), begin + round((e["ts"] + e["dur"]) * 1000)) for e in seen]
g = info.get("gpus") or {}

result(not info["blind"], "nothing unseen", info["blind"])
result(g.get("launches") == launches, "launches", f"{g.get('launches')} of {launches}")
result(g.get("graph_launches") == graphs, "graph launches", f"{g.get('graph_launches')} of {graphs}")
result(g.get("kernels") == kernels and not g.get("kernels_lost") and not g.get("unplaced"), "kernels timed", f"{g}, {kernels} ran")
result(all(d["uuid"].startswith("GPU-") and d["pci"] for d in g.get("devices", [])), "devices", g.get("devices"))
flows = [e["bind_id"] for e in trace["traceEvents"] if e.get("flow_in")]
out = {e["bind_id"] for e in trace["traceEvents"] if e.get("flow_out")}
result(len(flows) == kernels and set(flows) == out, "each kernel has its launch", f"{len(flows)} kernels with one, {len(out)} launches, {len(set(flows) - out)} that are not there")
result([t[0] for t in told] == [n for n, _, _ in seen], "names, in order", f"{len(told)} told, {len(seen)} seen: {sorted(set(n for n, _, _ in seen))}")
if len(told) == len(seen) and told:
    window = [(t, s) for t, s in zip(told, seen) if s[1] < t[1] - 20000 or s[2] > t[2] + 20000]
    result(not window, "between launch and end as the host saw them, to 20 us", window[:2])
    longer = [(s[2] - s[1]) - (t[4] - t[3]) for t, s in zip(told, seen)]
    result(min(longer) > -1500 and statistics.median(longer) < 10000, "as long as by the globaltimer, to 10 us", f"{min(longer)} to {max(longer)} ns longer")
    events = [t[5] - (s[2] - s[1]) for t, s in zip(told, seen) if t[5] >= 0]
    result(min(events) > -5000 and statistics.median(events) < 50000, "as long as between events, to 50 us", f"{min(events)} to {max(events)} ns shorter")
    apart = [s[1] - t[3] for t, s in zip(told, seen)]
    drift = max(apart) - min(apart)
    result(drift < 20000, "begun when the globaltimer says, one constant apart, to 20 us", f"from {min(apart)} to {max(apart)} ns")
    print(json.dumps({"name": "kernel_length_over_globaltimer", "median_ns": statistics.median(longer), "min_ns": min(longer), "max_ns": max(longer)}))
    print(json.dumps({"name": "start_against_globaltimer", "spread_ns": drift, "reading_error_ns": g.get("clock_error_ns")}))
sys.exit(failed)
