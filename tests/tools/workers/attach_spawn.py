"""Ranks that mp.start_processes forks; rank 1 never comes to the all_reduce others wait in."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp


def train(rank, folder):
    store = dist.FileStore(f"{folder}/store", 3)
    dist.init_process_group("gloo", rank=rank, world_size=3, store=store)
    Path(folder, f"there-{rank}").touch()
    if rank == 1:
        time.sleep(300)
    dist.all_reduce(torch.ones(3), async_op=True).wait()


if __name__ == "__main__":
    mp.start_processes(train, (sys.argv[1],), 3, start_method="fork")
