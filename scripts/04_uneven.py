"""Rank 0 has fewer batches than the others: without a cure, with Join, and stopping together."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import results
from ddp_course.process_group import process_group


def stream(me):
    """Two batches on rank 0, four on the others. x = rank + 1, so a rank's gradient is rank + 1."""
    for _ in range(2 if me.rank == 0 else 4):
        yield torch.full((1, 1), me.rank + 1.0, device=me.device)


def build(me, group=None):
    model = nn.Linear(1, 1, bias=False).to(me.device)
    return model, DDP(model, process_group=group)


def step(model, ddp, x):
    model.weight.grad = None
    ddp(x).mean().backward()
    return model.weight.grad.item()


def with_join(me, by_initial):
    """The gradient that this rank sees in each of its steps."""
    model, ddp = build(me)
    with Join([ddp], divide_by_initial_world_size=by_initial):
        return [step(model, ddp, x) for x in stream(me)]


def together(me):
    """The same, but all stop as soon as one has nothing more."""
    (model, ddp), batches, gradients = build(me), stream(me), []
    while True:
        x = next(batches, None)
        have = torch.tensor(float(x is not None), device=me.device)
        dist.all_reduce(have, dist.ReduceOp.MIN)
        if not have:
            return gradients
        gradients.append(step(model, ddp, x))


def without(me):
    """The plain loop, in a group with a short timeout: steps done, and the error if any."""
    dist.barrier()  # side by side: making a group is under its timeout, too
    (model, ddp), done = build(me, dist.new_group(timeout=timedelta(seconds=2))), 0
    try:
        for x in stream(me):
            step(model, ddp, x)
            done += 1
    except RuntimeError as error:
        return [done, str(error)]
    return [done, None]


@record
def main():
    with process_group() as me:
        mine = {"join": with_join(me, True), "join, those left": with_join(me, False)}
        mine["together"] = together(me)
        mine["without"] = without(me)  # last: after it that group is broken
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("04_uneven", {"ranks": everyone}, me.device)
        if me.rank == 0:
            print("steps of each rank under Join:", [len(r["join"]) for r in everyone])


if __name__ == "__main__":
    main()
