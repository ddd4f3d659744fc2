"""The same processes without torchrun: mp.spawn, and three ways to meet."""

import argparse
import socket
import tempfile
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from ddp_course import results


def worker(rank, world_size, methods):
    """Runs in each process; mp.spawn passes the rank first."""
    torch.set_num_threads(1)
    sums = {}
    for name, init_method in methods.items():
        dist.init_process_group(
            "gloo", init_method, rank=rank, world_size=world_size, timeout=timedelta(seconds=30)
        )
        number = torch.tensor([rank + 1.0])
        dist.all_reduce(number)
        sums[name] = number.item()
        if name == list(methods)[-1]:
            results.save("02_spawn", {"sums": sums})
        dist.destroy_process_group()
    if rank == 0:
        print("sum over the ranks:", sums)


def free_port():
    """Chosen once, by the parent: a port that each rank picks for itself never meets."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


if __name__ == "__main__":  # spawned processes import this file; they must not spawn again
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        methods = {
            "tcp://": f"tcp://127.0.0.1:{free_port()}",
            "file://": f"file://{Path(folder) / 'meeting_point'}",  # must not exist yet
        }
        mp.spawn(worker, args=(args.ranks, methods), nprocs=args.ranks)
