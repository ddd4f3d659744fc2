"""Every rank says who it is, then all of them add up their numbers.

The first script to run on a new machine:
    torchrun --standalone --nproc-per-node 2 scripts/00_hello.py
"""

import argparse
import os
import socket
import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.process_group import process_group


def add_up(me):
    """Rank r brings r + 1; after the all-reduce every rank holds the sum."""
    number = torch.tensor([me.rank + 1.0], device=me.device)
    dist.all_reduce(number)
    return number.item()


def introduce(me, total):
    """Every rank learns what every other rank says of itself, in rank order."""
    mine = {"rank": me.rank, "local_rank": me.local_rank, "device": str(me.device)}
    mine |= {"host": socket.gethostname(), "pid": os.getpid(), "sum": total}
    everyone = [None] * me.world_size
    dist.all_gather_object(everyone, mine)
    return everyone


@record  # a traceback of this rank lands in torchrun's report
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--wait", type=float, default=0, help="then do nothing for so many seconds")
    args = parser.parse_args()
    with process_group() as me:
        total = add_up(me)
        everyone = introduce(me, total)
        if me.rank == 0:
            line = "rank {rank}: local rank {local_rank}, device {device}, host {host}, pid {pid}"
            print("\n".join(line.format(**r) for r in everyone))
            print(f"1 + ... + {me.world_size} = {total:g}, so the ranks talk to each other")
        results.save("00_hello", {"ranks": everyone}, me.device)
        time.sleep(args.wait)


if __name__ == "__main__":
    main()
