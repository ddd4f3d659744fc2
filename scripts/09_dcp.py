"""torch.distributed.checkpoint: every rank writes its part, and training can go on meanwhile."""

import os
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import results
from ddp_course.process_group import TIMEOUT, process_group
from ddp_course.tools.collectives import gather


def step(ddp, optimizer):
    optimizer.zero_grad()
    ddp(torch.ones(2, 1024)).square().mean().backward()
    optimizer.step()


def plain(state, path):
    """torch.save, and on the disk before it returns, as dcp.save does by default."""
    if dist.get_rank() == 0:
        with open(path, "wb") as file:
            torch.save(state, file)
            file.flush()
            os.fsync(file.fileno())
    dist.barrier()


def timed(call, *args, **kwargs):
    dist.barrier()
    start = time.perf_counter()
    result = call(*args, **kwargs)
    return result, time.perf_counter() - start


def compare(folder):
    """Save 4.2 million parameters with Adam's state, 50 MB, in three ways; how long each blocks."""
    torch.manual_seed(0)
    ddp = DDP(nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]))
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    step(ddp, optimizer)
    model, optim = get_state_dict(ddp, optimizer)  # names instead of numbers, without module.
    state, found = {"model": model, "optim": optim}, {"names": list(model)[:2]}
    _, found["torch.save"] = timed(plain, state, folder / "plain.pt")
    _, found["dcp.save"] = timed(dcp.save, state, checkpoint_id=folder / "dcp")

    # It runs collectives in a thread: in a group that nobody else uses.
    group = dist.new_group(backend="gloo", timeout=TIMEOUT)
    save = {"checkpoint_id": folder / "async", "process_group": group}
    future, found["async_save, blocked"] = timed(dcp.async_save, state, **save)
    step(ddp, optimizer)  # the weights change while the thread writes
    future.result()
    dist.barrier()
    dist.destroy_process_group(group)
    return found


@record
def main():
    os.environ["DDP_COURSE_DEVICE"] = "cpu"  # async_save needs a gloo group, with GPUs beside nccl
    folder = Path(results.path("09_dcp").with_suffix(""))
    with process_group() as me:
        if me.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        dist.barrier()
        results.save("09_dcp", {"ranks": gather(compare(folder))})


if __name__ == "__main__":
    main()
