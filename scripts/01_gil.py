"""The same work in N threads of one process, and in N processes: who waits for whom?"""

import statistics
import threading
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.process_group import process_group


def python_only(steps=500_000):
    """Bookkeeping between kernels: nothing but Python."""
    s = 0
    for i in range(steps):
        s = (s * 31 + i) % 1_000_003


def small_ops(steps=2000):
    """A recurrent forward, a Python loop over tiny tensors."""
    w, u, h = torch.ones(8, 8), torch.ones(8, 8), torch.zeros(4, 8)
    for _ in range(steps):
        h = torch.tanh(h @ u + h @ w)


def large_ops(steps=8):
    """A few matrix products that keep a core busy."""
    h = w = torch.ones(600, 600)
    for _ in range(steps):
        h = torch.tanh(h @ w)


def timed(work, threads=1):
    """Seconds for `threads` copies of work."""
    crew = [threading.Thread(target=work) for _ in range(threads)]
    start = time.perf_counter()
    for t in crew:
        t.start()
    for t in crew:
        t.join()
    return time.perf_counter() - start


def one_round(work, me):
    """Rank 0 alone, rank 0 with a thread per rank, then all ranks at once."""
    alone = threads = 0.0
    if me.rank == 0:
        alone, threads = timed(work), timed(work, me.world_size)
    dist.barrier()
    slowest = torch.tensor(timed(work), device=me.device)
    dist.all_reduce(slowest, dist.ReduceOp.MAX)
    return {"alone": alone, "threads": threads, "processes": slowest.item()}


@record
@torch.no_grad()
def main():
    torch.set_num_threads(1)
    found = {}
    with process_group() as me:
        for work in (python_only, small_ops, large_ops):
            one_round(work, me)  # warm up
            found[work.__name__] = [one_round(work, me) for _ in range(9)]
        results.save("01_gil", found, me.device)
    if me.rank == 0:
        print(f"time of {me.world_size} at once, divided by the time of one:")
        for name, rounds in found.items():
            threads = statistics.median(r["threads"] / r["alone"] for r in rounds)
            processes = statistics.median(r["processes"] / r["alone"] for r in rounds)
            print(f"{name:12} threads {threads:.2f}  processes {processes:.2f}")


if __name__ == "__main__":
    main()
