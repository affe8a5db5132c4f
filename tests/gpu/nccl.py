"""Whether what provider nccl recorded of two ranks of collectives.py is right: nccl.py NAME TRACE INFO STATS, the run's trace.json, `sigmatrace info --json`, and the file of SOFTHCA_STATS."""

import collections
import json
import sys

name, trace, info, stats = sys.argv[1], json.load(open(sys.argv[2])), json.load(open(sys.argv[3])), [json.loads(x) for x in open(sys.argv[4])]
bad = 0


def check(good, what, found):
    global bad
    bad |= not good
    print(f"{'ok' if good else 'FAIL'} {name}: {what}" + (f" ({found})" if good else f": {found}"))


nccl = info["nccl"]
check(nccl is not None, "NCCL found the plugin", nccl and nccl["plugins"])
if nccl is None:
    sys.exit(1)
tasks = collections.defaultdict(list)  # of a process and communicator: sequence and bytes of each all-reduce
for e in trace["traceEvents"]:
    a = e.get("args", {})
    if e.get("cat") == "nccl" and e.get("name") == "AllReduce":
        tasks[e["pid"], a["communicator"].split(",")[0]].append((a["sequence"], a["bytes"]))
communicators = {c for _, c in tasks}
for c in sorted(communicators):
    each = [sorted(v) for (_, d), v in sorted(tasks.items()) if d == c]
    check(len(each) == 2 and each[0] == each[1], f"{c}: both ranks have the same all-reduces", [len(x) for x in each])
    check([s for s, _ in each[0]] == list(range(len(each[0]))), f"{c}: each sequence number once, from 0", each[0][:2])
# collectives.py: one that is checked, one before those that are timed, 50 or 10
sizes = collections.Counter(b for v in tasks.values() for _, b in v)
for mb, n in ((1, 52), (128, 12)):
    check(sizes[mb << 20] == 2 * n, f"all-reduces of {mb} MB", sizes[mb << 20])
sent = sum(g["count"] for g in nccl["groups"] if g["function"] in ("Send", "Recv", "SendRecv", "AlltoAll"))
check(sent >= 2 * 2, "sends and receives of the all-to-all", sent)
verbs = sum(g["traffic"].get("verbs", {}).get("bytes", 0) for g in nccl["groups"])
vague = sum(g["ambiguous"].get("verbs", {}).get("bytes", 0) for g in nccl["groups"])
counted = sum(sum(s["bytes"].values()) for s in stats)
check(0.999 * counted <= verbs <= counted, "bytes that were posted for NCCL's operations, of what the adapter carried out", f"{verbs} of {counted}, {vague} of them for one of several")
moved = sum(g["proxy_bytes"] or 0 for g in nccl["groups"])
if "steps" in name:
    check(moved <= verbs <= 1.05 * moved, "bytes that NCCL says its proxies sent", f"{moved}, posted {verbs}")
check(nccl["unrecorded"] == 0 and nccl["unrelated"] == 0 and info["lost"]["events"] == 0, "nothing is missing", f"{nccl['unrecorded']} {nccl['unrelated']} {info['lost']}")
sys.exit(bad)
