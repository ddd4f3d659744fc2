"""How long does an all-reduce take? Twelve sizes, among two ranks and among all."""

import statistics
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import synchronize

SIZES = [4 * 4**k for k in range(12)]  # bytes: 4 B, 16 B, ... 16 MiB
WARM_UP = 3  # rounds that don't count


def timed(buffer, group):
    """Seconds of one all-reduce, from the moment when all ranks of the group are there."""
    dist.barrier(group)
    synchronize(buffer.device)
    start = time.perf_counter()
    dist.all_reduce(buffer, group=group)
    synchronize(buffer.device)
    return time.perf_counter() - start


def sweep(group, device):
    """Median and quartiles in seconds, by size."""
    found = []
    for nbytes in SIZES:
        buffer = torch.zeros(nbytes // 4, device=device)
        rounds = 100 if nbytes < 2**20 else 10
        seconds = [timed(buffer, group) for _ in range(WARM_UP + rounds)][WARM_UP:]
        found.append(statistics.quantiles(seconds))
    return found


@record
def main():
    with process_group() as me:
        found = {}
        for n in sorted({2, me.world_size}):
            group = dist.new_group(range(n))  # every rank makes it, also those outside
            if me.rank < n:
                found[n] = sweep(group, me.device)
            dist.barrier()
        results.save("00_message_cost", {"sizes": SIZES, "seconds": found}, me.device)
        if me.rank == 0:
            for n, quartiles in found.items():
                small, large = 1e6 * quartiles[0][1], 1e3 * quartiles[-1][1]
                print(f"{n} ranks: 4 bytes {small:.0f} µs, 16 MiB {large:.1f} ms")


if __name__ == "__main__":
    main()
