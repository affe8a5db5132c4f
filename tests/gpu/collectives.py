"""All-reduce and all-to-all of PyTorch over NCCL, checked and timed; the environment is that of ranks.sh. Ranks tell NCCL that they are of different hosts."""

import json
import os
import time

rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
os.environ["NCCL_HOSTID"] = f"host{rank}"

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402


def timed(f, times):
    f()
    torch.cuda.synchronize()
    dist.barrier()
    taken = []
    for _ in range(times):
        begin = time.perf_counter()
        f()
        torch.cuda.synchronize()
        taken.append(time.perf_counter() - begin)
    taken.sort()
    return taken


def check(good, name):
    print(("ok " if good else "FAIL ") + name, flush=True)
    return good


def main():
    torch.cuda.set_device(rank % torch.cuda.device_count())
    dist.init_process_group("nccl", rank=rank, world_size=ranks)
    good = True
    for mb, times in ((1, 50), (128, 10)):
        n = (mb << 20) // 4
        base = torch.arange(n, device="cuda", dtype=torch.float32) % 1000
        x = base + rank
        dist.all_reduce(x)
        torch.cuda.synchronize()  # kernels are loaded when first used, and that waits for those that run
        good &= check(bool((x == base * ranks + sum(range(ranks))).all()), f"all-reduce of {mb} MB")
        y = torch.zeros(n, device="cuda")
        taken = timed(lambda: dist.all_reduce(y), times)
        if rank == 0:
            print(json.dumps({"name": f"all-reduce of {mb} MB median", "value": round(taken[len(taken) // 2] * 1e6, 1), "unit": "us",
                              "least": round(taken[0] * 1e6, 1), "most": round(taken[-1] * 1e6, 1)}), flush=True)
        part = n // ranks
        send = torch.cat([torch.full((part,), float(rank * ranks + i), device="cuda") for i in range(ranks)])
        got = torch.empty_like(send)
        torch.cuda.synchronize()
        dist.all_to_all_single(got, send)
        torch.cuda.synchronize()
        good &= check(all(bool((got[i * part:(i + 1) * part] == i * ranks + rank).all()) for i in range(ranks)), f"all-to-all of {mb} MB")
    dist.destroy_process_group()
    return 0 if good else 1


if __name__ == "__main__":
    raise SystemExit(main())
