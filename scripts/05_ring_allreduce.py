"""The four all-reduces of 05_algorithms.py beside torch's own: right to the bit, and how fast?

The ranks talk over gloo on the CPU, also where there are GPUs: nccl's point-to-point calls can't
be posted one by one like these (it has dist.batch_isend_irecv).
"""

import argparse
import runpy
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.process_group import process_group

algorithms = runpy.run_path(str(Path(__file__).with_name("05_algorithms.py")))["algorithms"]


def fill(x, me):
    """Whole numbers: their sum is exact in any order, so results can be compared to the bit."""
    torch.arange(len(x), out=x).remainder_(1000).add_(me)


def wrong_bits(group, lengths):
    """Names of algorithms that don't give to the bit what torch's all_reduce gives."""
    wrong = set()
    for length in lengths:
        x = torch.empty(length)
        fill(x, group.rank())
        expected = x.clone()
        dist.all_reduce(expected, group=group)
        for name, run in algorithms(x, group).items():
            fill(x, group.rank())
            run()
            if not torch.equal(x, expected):
                wrong.add(f"{name}, {length}")
    return sorted(wrong)


def benchmark(group, sizes, budget):
    """{name: {bytes: seconds of each round}}; in a round all algorithms have their turn."""
    seconds = {}
    for nbytes in sizes:
        x = torch.empty(nbytes // 4)
        runs = algorithms(x, group)
        rounds, spent = 0, torch.zeros(1)
        while rounds < 3 or (rounds < 15 and spent < budget):
            for name, run in runs.items():
                fill(x, group.rank())
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
    parser.add_argument("--budget", type=float, default=1.0, help="seconds for each size")
    args = parser.parse_args()
    sizes = [2**k for k in range(10, 27, 2) if 2**k <= args.largest_mib * 2**20]
    torch.set_num_threads(1)
    with process_group() as me:
        found = {}
        for n in (n for n in (2, 4, 8) if n <= me.world_size):
            group = dist.new_group(range(n), backend="gloo")
            if me.rank < n:
                wrong = wrong_bits(group, (1, 5, 1000, 3_000_001))
                found[n] = {"wrong": wrong, "seconds": benchmark(group, sizes, args.budget)}
            dist.barrier()  # ranks that are not in the group wait here
        results.save("05_ring_allreduce", {"by_ranks": found})
        if me.rank == 0:
            for n, run in found.items():
                print(f"{n} ranks: not equal to torch's to the bit: {run['wrong'] or 'none'}")


if __name__ == "__main__":
    main()
