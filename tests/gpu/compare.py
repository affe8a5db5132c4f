"""Whether a run's totals of layer verbs are those that the adapter counted: compare.py STATS INFO, the files of SOFTHCA_STATS and `sigmatrace info --json`.

The adapter counts what queues of programs' own ran as well, so only jobs that post by calls can be compared.
"""

import json
import sys

stats = [json.loads(line) for line in open(sys.argv[1])]
info = json.load(open(sys.argv[2]))
bad = 0
for operation, seen in info["operations"]["verbs"].items():
    if operation in ("recv", "atomic"):
        continue
    for what, key in (("requests", "count"), ("bytes", "bytes")):
        counted = sum(s[what].get(operation, 0) for s in stats)
        if operation == "send":
            counted += sum(s[what].get("send_imm", 0) for s in stats)
        if counted != seen[key]:
            print(f"FAIL {operation}: {what}: the adapter counted {counted}, the run has {seen[key]}")
            bad = 1
total = sum(v["count"] for k, v in info["operations"]["verbs"].items() if k != "recv")
print(f"{total} requests, {info['events']} events, ranks {info['ranks']}")
sys.exit(bad or total == 0)
