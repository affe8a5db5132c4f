"""Whether a run has every request once: issued.py SIGMATRACE RUN STATS [ISSUED]

STATS is the adapter's account (SOFTHCA_STATS): requests and bytes by operation, of calls and of queues that kernels ring together. ISSUED.RANK, where it is given, is what the
kernels of each rank counted themselves (issued.h). In full mode each element is held against both: its queue, and its operation, peer, bytes and remote address.
"""

import collections
import glob
import json
import subprocess
import sys

NAMES = {"write": "write", "write_imm": "write_imm", "read": "read", "send": "send", "send_imm": "send", "compare_swap": "atomic", "fetch_add": "atomic",
         "masked_compare_swap": "atomic", "masked_fetch_add": "atomic"}
failures = []


def fail(text):
    failures.append(text)


def tell(kind, differences):
    """A counter of what is missing (positive) or too much."""
    for key, n in list(differences.items())[:5]:
        fail(f"{kind}: {key}: {'missing' if n > 0 else 'too often'}: {abs(n)}")
    if len(differences) > 5:
        fail(f"{kind}: {len(differences)} differences in all")


def difference(want, got):
    return {k: want[k] - got[k] for k in want.keys() | got.keys() if want[k] != got[k]}


def totals(info, stats):
    """The adapter's counts with those of the layers that it executes."""
    for operation in sorted(set(NAMES.values())):
        for what, key in (("requests", "count"), ("bytes", "bytes")):
            want = sum(s[what].get(its, 0) for s in stats for its, ours in NAMES.items() if ours == operation)
            got = sum(layer.get(operation, {}).get(key, 0) for name, layer in info["operations"].items() if name in ("verbs", "doorbell"))
            if want != got:
                fail(f"{operation}: {what}: the adapter counted {want}, the run has {got}")


def by_peer(matrix, accounts):
    """The kernels' own counts with the matrix's between ranks, which has in them what the library does for itself."""
    rows = {(r["source"], r["destination"], r["operation"]): r for r in matrix["layers"].get("doorbell", {}).get("rank", [])}
    want = collections.Counter()
    for a in accounts:
        for i in a["issued"]:
            want[a["rank"], i["peer"], i["operation"], "count"] += i["count"]
            want[a["rank"], i["peer"], i["operation"], "bytes"] += i["count"] * i["bytes"]
    for (rank, peer, operation, what), n in want.items():
        got = rows.get((rank, peer, operation), {}).get(what, 0)
        if got < n:
            fail(f"{operation} from {rank} to {peer}: {what}: the kernels counted {n}, the matrix has {got}")


class Elements:
    """What a full run has of the queues that kernels ring."""

    def __init__(self, sigmatrace, run):
        self.rank_of = {}  # queue pair number: rank
        self.all = []  # (queue pair number, event's fields, operation, number of the queue pair that it goes to)
        self.twice = 0
        seen, queues, targets, connected, found, rank, process = set(), {}, {}, [], [], None, None
        dump = subprocess.Popen([sigmatrace, "dump", "--json", run], stdout=subprocess.PIPE, text=True)
        for line in dump.stdout:
            r = json.loads(line)
            if r["type"] == "file":
                process = r["path"]
            elif r["type"] == "process":
                rank = r["rank"]
            elif r["type"] == "definition" and r["name"] == "verbs_qp":
                queues[process, r["fields"]["object"]] = r["fields"]["qpn"]
                self.rank_of[r["fields"]["qpn"]] = rank
            elif r["type"] == "definition" and r["name"] == "verbs_qp_number":
                self.rank_of[r["fields"]["qpn"]] = rank
            elif r["type"] == "definition" and r["name"] == "doorbell_target":
                targets[process, r["fields"]["object"]] = r["fields"]["qpn"]
            elif r["type"] == "definition" and r["name"] == "verbs_qp_modify" and r["fields"]["dest_qpn"]:
                connected.append((process, r["fields"]))
            elif r["type"] == "event" and r.get("name", "").startswith("doorbell_") and "index" in r["fields"]:
                f = r["fields"]
                key = process, f["queue_pair"], f["index"]
                self.twice += key in seen
                seen.add(key)
                name = r["name"][len("doorbell_"):]
                found.append((process, f, "atomic" if name == "signal" else name))
        if dump.wait():
            raise SystemExit(f"sigmatrace dump {run}: status {dump.returncode}")
        peers = {queues[process, f["queue_pair"]]: f["dest_qpn"] for process, f in connected}
        for process, f, operation in found:
            qpn = queues[process, f["queue_pair"]]
            self.all.append((qpn, f, operation, targets.get((process, f.get("target")), peers.get(qpn))))

    def peer(self, qpn, to, ranks):
        """The rank that an element goes to; where a queue is not connected and the element names no target, of two ranks the other."""
        if to is not None:
            return self.rank_of.get(to)
        return 1 - self.rank_of[qpn] if ranks == 2 else None


def by_queue(elements, stats):
    """Each queue's elements with what the adapter counted of it."""
    want, got = collections.Counter(), collections.Counter()
    for qpn, f, operation, _ in elements.all:
        if operation in NAMES.values():
            got[qpn, operation, "requests"] += 1
            got[qpn, operation, "bytes"] += f["bytes"]
    ours = {qpn for qpn, _, _, _ in elements.all}
    for s in stats:
        for q in s["queue_pairs"]:
            for its, operation in NAMES.items():
                if its in q and q["qpn"] in ours:
                    want[q["qpn"], operation, "requests"] += q[its][0]
                    want[q["qpn"], operation, "bytes"] += q[its][1]
    tell("queue, operation", difference(want, got))


def by_element(elements, accounts):
    """Each element on an object of the program with what its kernels counted."""
    want, got, unknown = collections.Counter(), collections.Counter(), collections.Counter()
    start = {(a["rank"], o["name"]): o["address"] for a in accounts for o in a["objects"]}
    for a in accounts:
        for i in a["issued"]:
            want[a["rank"], i["operation"], i["peer"], i["bytes"], start[i["peer"], i["object"]] + i["offset"]] += i["count"]
    for qpn, f, operation, to in elements.all:
        peer, address = elements.peer(qpn, to, len(accounts)), int(f["remote_address"], 16)
        if peer is None:
            unknown[qpn, to] += 1
        elif any(a["rank"] == peer and o["address"] <= address < o["address"] + o["bytes"] for a in accounts for o in a["objects"]):
            got[elements.rank_of[qpn], operation, peer, f["bytes"], address] += 1
    tell("rank, operation, peer, bytes, address", difference(want, got))
    tell("elements of no rank: queue, to", {k: -n for k, n in unknown.items()})


def main():
    sigmatrace, run, stats_path = sys.argv[1:4]
    accounts = [json.load(open(p)) for p in sorted(glob.glob(sys.argv[4] + ".*"))] if len(sys.argv) > 4 else []
    stats = [json.loads(line) for line in open(stats_path)]
    info = json.loads(subprocess.run([sigmatrace, "info", "--json", run], check=True, stdout=subprocess.PIPE).stdout)
    if len(sys.argv) > 4 and not accounts:
        fail(f"no account of kernels in {sys.argv[4]}.*")
    if info["lost"]["events"] or not info["exact"]:
        fail(f"lost: {info['lost']}, exact: {info['exact']}")
    totals(info, stats)
    doorbell = info["operations"].get("doorbell", {})
    count = sum(o["count"] for o in doorbell.values())
    if not count:
        fail("nothing in layer doorbell")
    if accounts:
        by_peer(json.load(open(f"{run}/matrix.json")), accounts)
    own = sum(i["count"] for a in accounts for i in a["issued"])
    if info["mode"] == "full":
        elements = Elements(sigmatrace, run)
        if elements.twice:
            fail(f"{elements.twice} elements are there twice")
        by_queue(elements, stats)
        if accounts:
            by_element(elements, accounts)
    for f in failures:
        print("FAIL", f)
    print(f"{count} elements in {info['mode']} mode" + (f", {own} as the kernels counted, the others of the library's own" if accounts else ""))
    return bool(failures)


if __name__ == "__main__":
    sys.exit(main())
