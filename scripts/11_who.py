"""Who is who on several nodes, and what `rank=LOCAL_RANK` does there."""

import os
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results

NAMES = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_WORLD_SIZE",
         "MASTER_ADDR", "MASTER_PORT")  # fmt: skip


def join_by_local_rank():
    """The bug: right on one node, on two there are two ranks 0 and nobody else."""
    rank = int(os.environ["LOCAL_RANK"])
    world_size = int(os.environ["WORLD_SIZE"])
    try:
        dist.init_process_group(
            "gloo", rank=rank, world_size=world_size, timeout=timedelta(seconds=3)
        )
        dist.all_reduce(torch.ones(1))
        said = "joined"
    except Exception as error:
        said = f"{type(error).__name__}: {str(error).splitlines()[0]}"
    if dist.is_initialized():
        dist.destroy_process_group()
    return said


@record
def main():
    mine = {name: os.environ.get(name) for name in NAMES} | {"bug": join_by_local_rank()}
    results.save(f"11_who_{os.environ['RANK']}", mine)  # each for itself: there is no group
    if os.environ["RANK"] == "0":
        print(os.environ["WORLD_SIZE"], "ranks on", os.environ["GROUP_WORLD_SIZE"], "nodes")


if __name__ == "__main__":
    main()
