"""The measurements of bench.sh, which makes the programs and sets the environment: bench.py --machine|GROUP"""

import datetime
import glob
import json
import os
import platform
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
WORK, LIBRARIES, RECORDER = os.environ["WORK"], os.environ["LIBRARIES"], os.environ["RECORDER"]
IBGDA = ["NVSHMEM_DISABLE_P2P=1", "NVSHMEM_IB_ENABLE_IBGDA=1", "NVSHMEM_BOOTSTRAP_UID_SOCK_IFNAME=lo", os.environ["RANKS_SHARE"]]
NETWORK = ["NCCL_P2P_DISABLE=1", "NCCL_SHM_DISABLE=1", "NCCL_SOCKET_IFNAME=lo"]
QUEUES = {"without": "n", "forward": "f", "record": "r"}
jobs = 0


class Failure(Exception):
    """Of a program, or a measurement that would not be what it is called."""


def median(values):
    values = sorted(values)
    return values[len(values) // 2]


def job(program, *arguments, variables=(), mode=None, choose=None):
    """Two ranks of a program over the software HCA: what they printed as JSON, the run directory, what was chosen."""
    global jobs
    jobs += 1
    name = f"{WORK}/bench-{jobs}"
    command = [f"{HERE}/with-hca.sh", LIBRARIES]
    if mode:
        command += [f"{RECORDER}/bin/sigmatrace", "launch", "-p", mode, "--set", f"providers={os.environ['PROVIDERS']}", "-o", f"{name}.run", "--"]
    command += [f"{HERE}/ranks.sh", "2", "90", name]
    if choose:
        command += ["sh", "-c", 'export LD_PRELOAD="$0${LD_PRELOAD:+:$LD_PRELOAD}"; exec "$@"', f"{RECORDER}/gpu/choose.so"]
    command += [f"{WORK}/{program}", f"{name}.id", *arguments]
    environment = os.environ | dict(v.split("=", 1) for v in variables) | {"SOFTHCA_SHM": f"{name}.segment", "CHOOSE_LOG": f"{name}.pages"}
    if choose:
        environment["CHOOSE"] = choose
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    lines = [line for path in sorted(glob.glob(f"{name}.[0-9]*")) for line in open(path).read().splitlines()]
    if done.returncode or any(line.startswith("FAIL") for line in lines):
        where = next((i for i, line in enumerate(lines) if line.startswith("crash: ")), len(lines))  # crash.so tells where each thread was
        raise Failure("\n".join([f"{program} {' '.join(arguments)} ({mode}): status {done.returncode}", *lines[max(0, where - 10) : where + 100], done.stdout[-2000:]]))
    pages = [json.loads(line) for path in glob.glob(f"{name}.pages.*") for line in open(path)]
    return [json.loads(line) for line in lines if line.startswith("{")], f"{name}.run", pages


def recorded(run):
    """Writes at layer doorbell, and what was lost."""
    info = json.loads(subprocess.run([f"{RECORDER}/bin/sigmatrace", "info", "--json", run], check=True, stdout=subprocess.PIPE).stdout)
    return info["operations"].get("doorbell", {}).get("write", {}).get("count", 0), info["lost"]["events"]


def letters(variables):
    """What choose.so is told. NVSHMEM takes pages for itself too, and which are those of its queues to the other rank a job without the recorder tells."""
    queues, _, pages = job("put", str(len(QUEUES)), "1", "1", variables=variables, choose="n")
    found = ["r"] * (1 + max(p["page"] for p in pages))  # all that come later are recorded
    for q, letter in zip(queues, QUEUES.values()):
        at = [p["page"] for p in pages if (p["pid"], p["address"]) == (q["pid"], q["bell"])]
        if not at:
            raise Failure(f"queue {q['queue']} rings at {q['bell']:#x}, where no page is: {pages}")
        found[max(at)] = letter  # of pages that had one address, one after the other, the last
    return "".join(found) + "r"


def show(name, value, unit, baseline=None, of=None, command="", **more):
    line = {"name": name, "value": round(value, 3), "unit": unit, "baseline": baseline and round(baseline, 3), "ratio": baseline and round(value / baseline, 4), "baseline_of": of,
            "command": "tests/gpu/" + command, **more}
    print(json.dumps({k: v for k, v in line.items() if v is not None or k in ("baseline", "ratio")}), flush=True)


def put():
    """A put of 8 bytes and its quiet on three queues of one process, in turns: without the recorder, its page with doorbells passed on, all of it."""
    rounds, times = 150, 20
    for where, variables in (("host", ["NVSHMEM_IBGDA_FORCE_NIC_BUF_MEMTYPE=hostmem"]), ("GPU", [])):
        variables = [*IBGDA, "NVSHMEM_IBGDA_NUM_RC_PER_PE=3", *variables]
        command = f"put 3 {rounds} {times}, queues in the {where}'s memory"
        alone, _, _ = job("put", "3", str(rounds), str(times), variables=variables)
        show(f"put_quiet_{where.lower()}_alone_median", median(q["median"] for q in alone), "us", command=command + ", no recorder in the process", p99=median(q["p99"] for q in alone),
             of_queues=[q["median"] for q in alone])
        chosen = letters(variables)
        for mode in ("full", "simple", "aggregate"):
            queues, run, pages = job("put", "3", str(rounds), str(times), variables=variables, mode=mode, choose=chosen)
            by = {way: queues[i] for i, way in enumerate(QUEUES)}
            registers = {(p["pid"], p["address"]): p["letter"] for p in pages}
            for way, q in by.items():  # the others ring a page of the recorder's
                if registers.get((q["pid"], q["bell"])) != ("n" if way == "without" else None):
                    raise Failure(f"queue {q['queue']} ({way}) rings at {q['bell']:#x}; letters {chosen}, pages: {pages}")
            writes, lost = recorded(run)
            if lost or not by["record"]["puts"] <= writes < 2 * by["record"]["puts"]:
                raise Failure(f"{by['record']['puts']} puts on the recorded queue, {writes} writes in the run, {lost} lost")
            base = by["without"]
            for way in QUEUES:
                q = by[way]
                more = {}
                if way != "without":
                    added = [a - b for a, b in zip(q["rounds"], base["rounds"])]
                    more = {"adds_ns": round((q["median"] - base["median"]) * 1000), "adds_ns_median_of_rounds": round(median(added) * 1000), "p99_baseline": base["p99"]}
                show(f"put_quiet_{where.lower()}_{mode}_{way}_median", q["median"], "us", None if way == "without" else base["median"], None if way == "without" else "queue without the recorder",
                     command=command + f", mode {mode}", p99=q["p99"], **more)


def bfs():
    """Searches in one process, from each root once over each of three queues; and whole processes, in turns."""
    scale, roots, rounds = 18, 10, 3
    variables = [*IBGDA, "NVSHMEM_IBGDA_NUM_RC_PER_PE=3"]
    command = f"bfs {scale} {3 * roots} 3"
    searches, run, _ = job("bfs", str(scale), str(3 * roots), "3", variables=variables, mode="full", choose=letters(variables))
    times = {}
    for s in searches:  # the slower rank's, by root and queue; the first root warms up
        key = s["search"] // 3, list(QUEUES)[s["queue"]]
        times[key] = max(times.get(key, 0), s["value"])
    of = {way: [times[r, way] for r in range(1, roots)] for way in QUEUES}
    writes, lost = recorded(run)
    for way in QUEUES:
        ratios = sorted(a / b for a, b in zip(of[way], of["without"]))
        show(f"bfs_search_{way}_median", median(of[way]), "us", None if way == "without" else median(of["without"]), None if way == "without" else "searches over the queue without the recorder",
             command=command + ", mode full", ratio_of_each_root={"least": round(ratios[0], 4), "median": round(median(ratios), 4), "most": round(ratios[-1], 4)}, writes_recorded=writes, lost=lost)
    whole = {"none": [], "full": []}
    for _ in range(rounds):
        for mode in whole:
            searches, run, _ = job("bfs", str(scale), str(roots), variables=IBGDA, mode=None if mode == "none" else mode)
            slower = {}
            for s in searches:
                slower[s["search"]] = max(slower.get(s["search"], 0), s["value"])
            whole[mode].append(median(v for n, v in slower.items() if n))
    for mode, values in whole.items():
        show(f"bfs_process_{mode}_median", median(values), "us", None if mode == "none" else median(whole["none"]), None if mode == "none" else "processes without the recorder",
             command=f"bfs {scale} {roots}, {rounds} processes each in turns", least=min(values), most=max(values))


def nccl():
    """All-reduce of 1 and 128 MB, processes in turns."""
    rounds = 5
    medians = {}
    for _ in range(rounds):
        for mode in ("none", "aggregate", "simple", "full"):
            for line in job("allreduce", variables=NETWORK, mode=None if mode == "none" else mode)[0]:
                medians.setdefault((line["name"], mode), []).append(line["median"])
    for (name, mode), values in medians.items():
        base = median(medians[name, "none"])
        show(f"{name.replace(' ', '_').lower()}_{mode}_median", median(values), "us", None if mode == "none" else base, None if mode == "none" else "processes without the recorder",
             command=f"allreduce, {rounds} processes each in turns", least=min(values), most=max(values))


GROUPS = {"put": put, "bfs": bfs, "nccl": nccl}


def machine():
    """The first line of the output."""
    gpus = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"], stdout=subprocess.PIPE, text=True).stdout.split("\n")
    model = [line.split(":", 1)[1].strip() for line in open("/proc/cpuinfo") if line.startswith("model name")]
    print(json.dumps({"command": "make bench-gpu", "machine": f"{len([g for g in gpus if g])} x {gpus[0]}; {os.cpu_count()} x {model[0] if model else platform.machine()}",
                      "date": datetime.date.today().isoformat(), "ranks": f"2, {os.environ['RANKS_SHARE']}"}), flush=True)


def main(word):
    if word == "--machine":
        machine()
        return 0
    if word not in GROUPS:
        print(f"bench.sh: no group {word}: {', '.join(GROUPS)}", file=sys.stderr)
        return 2
    try:
        GROUPS[word]()
    except Failure as e:
        print(f"bench.sh: {word}: {e}", file=sys.stderr, flush=True)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
