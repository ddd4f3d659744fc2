"""Ranks that torchrun did not start, for diagnose: python diagnose_spawned.py CASE PORT."""

import os
import queue
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.utils.data import DataLoader


def join(rank, port, world_size=2):
    dist.init_process_group(
        "gloo", f"tcp://127.0.0.1:{port}", timedelta(seconds=100), world_size, rank
    )


def one_waits(rank, port):
    """A loader's worker is no rank."""
    join(rank, port)
    for _ in DataLoader(torch.ones(4), num_workers=1, persistent_workers=True):
        dist.barrier()
        if rank == 1:
            queue.Queue().get()
        dist.all_reduce(torch.ones(2))


def one_raises(rank, port):
    join(rank, port)
    if rank == 1:
        {}["label"]
    dist.barrier()


def after_threads(rank, port):
    """With the parent's threads gone the first large product waits for ever, before init."""
    work_in_threads()
    join(rank, port)


def by_variables():
    """As two shells do: everything comes from RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT."""
    dist.init_process_group("gloo", timeout=timedelta(seconds=100))
    if dist.get_rank() == 1:
        queue.Queue().get()
    dist.barrier()


def alone():
    dist.init_process_group("gloo", timeout=timedelta(seconds=100))


def work_in_threads():
    torch.set_num_threads(2)
    torch.rand(600, 600) @ torch.rand(600, 600)
    (torch.rand(2_000_000) * 2).sum()


def main():
    case, port = sys.argv[1:]
    if case in ("by_variables", "alone"):
        globals()[case]()
    elif case == "after_threads":
        work_in_threads()
        mp.start_processes(after_threads, (port,), nprocs=2, start_method="fork")
    else:
        start_method = os.environ.get("START_METHOD", "spawn")
        mp.start_processes(globals()[case], (port,), nprocs=2, start_method=start_method)


if __name__ == "__main__":
    main()
