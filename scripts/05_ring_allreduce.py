"""The four all-reduces of 05_algorithms.py beside torch's own: right to the bit, and how fast?

The ranks talk over gloo on the CPU, also where there are GPUs: nccl's point-to-point calls can't
be posted one by one like these (it has dist.batch_isend_irecv).
"""

import argparse
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
algorithms = runpy.run_path(str(Path(__file__).with_name("05_algorithms.py")))["algorithms"]


def compare(group, length, whole):
    """{name: (equal to torch's to the bit, equal on all ranks to the bit)}, on random numbers."""
    g = torch.Generator().manual_seed(group.rank())
    mine = torch.randn(length, generator=g) * 1000
    mine = mine.round() if whole else mine
    expected = mine.clone()
    dist.all_reduce(expected, group=group)
    found = {}
    x = torch.empty(length)
    for name, run in algorithms(x, group).items():
        x.copy_(mine)
        run()
        first = x.clone()
        dist.broadcast(first, group_src=0, group=group)
        verdict = torch.tensor([torch.equal(x, expected), torch.equal(x, first)]).int()
        dist.all_reduce(verdict, dist.ReduceOp.MIN, group=group)  # one rank's no is everybody's
        found[name] = verdict.bool().tolist()
    return found


def benchmark(group, sizes, budget):
    """{name: {bytes: seconds of each round}}; in a round all algorithms have their turn."""
    seconds = {}
    for nbytes in sizes:
        x = torch.empty(nbytes // 4)
        runs = algorithms(x, group)
        rounds, spent = 0, torch.zeros(1)
        while rounds < 6 or (rounds < 15 and spent < budget):
            for name, run in runs.items():
                x.fill_(1)
                dist.barrier(group)
                start = time.perf_counter()
                run()
                took = torch.tensor([time.perf_counter() - start])
                dist.all_reduce(took, dist.ReduceOp.MAX, group=group)  # the slowest rank's
                spent += took
                seconds.setdefault(name, {}).setdefault(nbytes, []).append(took.item())
            rounds += 1
    return {k: {n: v[1:] for n, v in by.items()} for k, by in seconds.items()}  # less the first


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--largest-mib", type=int, default=64)
    parser.add_argument("--budget", type=float, default=0.3, help="seconds for each size")
    args = parser.parse_args()
    sizes = [2**k for k in (10, 14, 18, 20, 22, 24, 26) if 2**k <= args.largest_mib * 2**20]
    os.environ["DDP_COURSE_DEVICE"] = "cpu"
    torch.set_num_threads(1)
    with process_group(WAIT) as me:
        if me.world_size < 2:
            raise CourseError("one rank has nobody to talk to: type  --nproc-per-node 4")
        found = {}
        for n in (n for n in (2, 4, 8) if n <= me.world_size):
            group = dist.new_group(range(n), backend="gloo", timeout=WAIT)
            if me.rank < n:
                whole = {k: compare(group, k, whole=True) for k in (1, 5, 1000, 3_000_001)}
                found[n] = {"whole": whole, "floats": compare(group, 100_000, whole=False)}
                found[n]["seconds"] = benchmark(group, sizes, args.budget)
            dist.barrier()  # ranks that are not in the group wait here
        results.save("05_ring_allreduce", {"by_ranks": found})
        if me.rank == 0:
            print(f"compared and timed on {', '.join(map(str, found))} ranks")


if __name__ == "__main__":
    main()
