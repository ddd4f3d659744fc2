"""torch.distributed.checkpoint: every rank writes its part, and training can go on meanwhile."""

import os
import shutil
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import results
from ddp_course.process_group import TIMEOUT, process_group
from ddp_course.tools.collectives import gather


def build():
    """A model of 4.2 million parameters with Adam, after one step: 50 MB of state."""
    torch.manual_seed(0)
    ddp = DDP(nn.Sequential(*[nn.Linear(1024, 1024) for _ in range(4)]))
    optimizer = torch.optim.Adam(ddp.parameters(), lr=1e-3)
    step(ddp, optimizer)
    return ddp, optimizer


def step(ddp, optimizer):
    optimizer.zero_grad()
    ddp(torch.ones(2, 1024)).square().mean().backward()
    optimizer.step()


def state_of(ddp, optimizer):
    """One dict with names instead of numbers, and without module."""
    model, optim = get_state_dict(ddp, optimizer)
    return {"model": model, "optim": optim}


def timed(call, *args, **kwargs):
    start = time.perf_counter()
    result = call(*args, **kwargs)
    return result, time.perf_counter() - start


def compare(me, folder):
    found = {"parameters": 4 * (1024 * 1024 + 1024)}
    ddp, optimizer = build()
    state = state_of(ddp, optimizer)
    found["names"] = list(state["model"])[:2]
    first = [p.clone() for p in ddp.parameters()]

    dist.barrier()
    start = time.perf_counter()
    if me.rank == 0:
        torch.save(state, folder / "plain.pt")
    dist.barrier()
    found["torch.save"] = time.perf_counter() - start

    _, found["dcp.save"] = timed(dcp.save, state, checkpoint_id=folder / "dcp")

    # It runs collectives in a thread: in a group that nobody else uses.
    group = dist.new_group(backend="gloo", timeout=TIMEOUT)
    future, found["async_save, blocked"] = timed(
        dcp.async_save, state, checkpoint_id=folder / "async", process_group=group
    )
    step(ddp, optimizer)  # the weights change while the thread writes
    found["writing when training went on"] = not future.done()
    _, found["async_save, waited"] = timed(future.result)
    changed = max((a - b).abs().max().item() for a, b in zip(first, ddp.parameters()))

    state = state_of(ddp, optimizer)
    dcp.load(state, checkpoint_id=folder / "async", process_group=group)  # into these tensors
    set_state_dict(ddp, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    again = max((a - b).abs().max().item() for a, b in zip(first, ddp.parameters()))
    dist.barrier()
    dist.destroy_process_group(group)
    return found | {"changed": changed, "after loading": again}


@record
def main():
    os.environ["DDP_COURSE_DEVICE"] = "cpu"  # async_save needs a gloo group, with GPUs beside nccl
    folder = Path(results.path("09_dcp").with_suffix(""))
    with process_group() as me:
        if me.rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        dist.barrier()
        mine = compare(me, folder)
        results.save("09_dcp", {"ranks": gather(mine)})
        if me.rank == 0:
            print("saved with torch.save, dcp.save and dcp.async_save")


if __name__ == "__main__":
    main()
