"""The all-reduces of 05_algorithms.py beside torch's own: right to the bit, and how fast?"""

import os
import runpy
import time
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.process_group import process_group
from ddp_course.tools.errors import CourseError

WAIT = timedelta(minutes=3)  # the ranks outside the group wait while the others measure
SIZES = [2**k for k in (10, 14, 18, 20, 22, 24, 26)]  # bytes, 1 KiB to 64 MiB
own = runpy.run_path(str(Path(__file__).with_name("05_algorithms.py")))
ALGORITHMS = {"gloo": lambda x, tmp, group: dist.all_reduce(x, group=group)}
ALGORITHMS |= {n: own[n.replace("-", "_")] for n in ("ring", "star", "tree", "halving-doubling")}


def compare(group, length, whole):
    """{name: (equal to torch's to the bit, equal on all ranks to the bit)}, on random numbers."""
    g = torch.Generator().manual_seed(group.rank())
    mine = torch.randn(length, generator=g) * 1000
    mine = mine.round() if whole else mine
    expected, found = mine.clone(), {}
    dist.all_reduce(expected, group=group)
    for name, run in ALGORITHMS.items():
        x = mine.clone()
        run(x, torch.empty_like(x), group)
        first = x.clone()
        dist.broadcast(first, group_src=0, group=group)
        verdict = torch.tensor([torch.equal(x, expected), torch.equal(x, first)]).int()
        dist.all_reduce(verdict, dist.ReduceOp.MIN, group=group)  # one rank's no is everybody's
        found[name] = verdict.bool().tolist()
    return found


def benchmark(group, rounds=8):
    """{name: {bytes: seconds of each round}}; in a round all algorithms have their turn."""
    seconds = {name: {nbytes: [] for nbytes in SIZES} for name in ALGORITHMS}
    for nbytes in SIZES:
        x, tmp = torch.empty(nbytes // 4), torch.empty(nbytes // 4)
        for round_number in range(rounds):
            for name, run in ALGORITHMS.items():
                x.fill_(1)
                dist.barrier(group)
                start = time.perf_counter()
                run(x, tmp, group)
                took = torch.tensor([time.perf_counter() - start])
                dist.all_reduce(took, dist.ReduceOp.MAX, group=group)  # the slowest rank's
                if round_number:  # the first warms up
                    seconds[name][nbytes].append(took.item())
    return seconds


@record
def main():
    os.environ["DDP_COURSE_DEVICE"] = "cpu"  # nccl's isend and irecv can't be posted one by one
    with process_group(WAIT) as me:
        if me.world_size < 2:
            raise CourseError("one rank has nobody to talk to: type  --nproc-per-node 4")
        found = {}
        for n in (n for n in (2, 4, 8) if n <= me.world_size):
            group = dist.new_group(range(n), backend="gloo", timeout=WAIT)
            if me.rank < n:
                whole = {k: compare(group, k, whole=True) for k in (1, 5, 1000, 3_000_001)}
                floats = compare(group, 100_000, whole=False)
                found[n] = {"whole": whole, "floats": floats, "seconds": benchmark(group)}
            dist.barrier()  # ranks that are not in the group wait here
        results.save("05_ring_allreduce", {"by_ranks": found})
        if me.rank == 0:
            print(f"compared and timed on {', '.join(map(str, found))} ranks")


if __name__ == "__main__":
    main()
