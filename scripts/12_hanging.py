"""Hangs: a rank waits for one that does not come. Run all, or one: --case NAME [--fixed]."""

import os
import time
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import gallery


def wrap(model, group, **kwargs):
    return DDP(model, process_group=group, **kwargs)


def steps(ddp, n):
    for _ in range(n):
        ddp(torch.randn(4, 6)).square().mean().backward()


def unequal_batches(me, fixed, group):
    ddp = wrap(nn.Linear(6, 2), group)
    batches = 3 if me.rank == 0 else 2
    if fixed:
        with Join([ddp]):
            steps(ddp, batches)
    else:
        steps(ddp, batches)
        dist.barrier(group)


def only_on_rank_0(me, fixed, group):
    loss = torch.tensor(1.0 + me.rank)
    if fixed:
        dist.all_reduce(loss, group=group)  # every rank calls; one prints
    elif me.rank == 0:
        dist.all_reduce(loss, group=group)
    dist.barrier(group)


def hidden_in_a_save(me, fixed, group):
    """Saving is rank 0's business, but collecting the sharded state is everybody's."""
    ddp = wrap(nn.Linear(6, 2), group)
    optimizer = ZeroRedundancyOptimizer(
        ddp.parameters(), torch.optim.Adam, process_group=group, lr=0.1
    )
    steps(ddp, 1)
    optimizer.step()
    if fixed or me.rank == 0:
        optimizer.consolidate_state_dict(to=0)
    dist.barrier(group)


def early_stop(me, fixed, group):
    ddp = wrap(nn.Linear(6, 2), group)
    for step in range(4):
        steps(ddp, 1)
        stop = torch.tensor(float(step == 1 and me.rank == 0))  # its own loss was good enough
        if fixed:
            dist.all_reduce(stop, dist.ReduceOp.MAX, group=group)  # one stops: all stop
        if stop:
            break
    dist.barrier(group)


def skipped_batch(me, fixed, group):
    ddp = wrap(nn.Linear(6, 2), group)
    for step in range(3):
        bad = torch.tensor(float(step == 1 and me.rank == 1))  # a NaN in its data
        if fixed:
            dist.all_reduce(bad, dist.ReduceOp.MAX, group=group)  # one skips: all skip
        if bad:
            continue
        steps(ddp, 1)
    dist.barrier(group)


def swallowed_exception(me, fixed, group):
    ddp = wrap(nn.Linear(6, 2), group)
    for step in range(3):
        try:
            if step == 1 and me.rank == 1:
                raise OSError("cannot read image 17")
            steps(ddp, 1)
        except OSError:
            if fixed:
                steps(ddp, 1)  # with another sample: the step is made all the same
    dist.barrier(group)


def evaluated_on_rank_0(me, fixed, group):
    """BatchNorm's buffers travel in the wrapper's forward, in eval() too."""
    ddp = wrap(nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), group)
    steps(ddp, 2)
    if me.rank == 0:
        model = ddp.module if fixed else ddp
        with torch.no_grad():
            model.eval()(torch.randn(8, 6))
    dist.barrier(group)


def slow_on_rank_0(me, fixed, group):
    limit = timedelta(seconds=20 if fixed else 1)
    ours = dist.new_group(timeout=limit)
    try:
        if me.rank == 0:
            time.sleep(3)  # writes a checkpoint, downloads, evaluates
        dist.barrier(ours)
    finally:
        dist.destroy_process_group(ours)


def other_order(me, fixed, group):
    a, b = torch.ones(4), torch.ones(4)
    if fixed or me.rank == 0:
        dist.all_reduce(a, group=group)
        dist.broadcast(b, 0, group=group)
    else:
        dist.broadcast(b, 0, group=group)
        dist.all_reduce(a, group=group)


def send_and_send(me, fixed, group):
    mine, theirs, peer = torch.ones(2**20), torch.empty(2**20), me.rank ^ 1
    if peer >= me.world_size:
        return
    if fixed:
        wait = [dist.isend(mine, peer, group=group), dist.irecv(theirs, peer, group=group)]
        [work.wait() for work in wait]
    else:
        dist.send(mine, peer, group=group)
        dist.recv(theirs, peer, group=group)


def unused_on_one_rank(me, fixed, group):
    class Chosen(nn.Module):
        def __init__(self):
            super().__init__()
            self.always, self.sometimes = nn.Linear(6, 2), nn.Linear(6, 2)

        def forward(self, x):
            if me.rank == 0:
                return self.always(x) + self.sometimes(x)
            return self.always(x) + 0 * self.sometimes(x) if fixed else self.always(x)

    steps(wrap(Chosen(), group), 2)


def group_on_some_ranks(me, fixed, group):
    ranks = list(range(me.world_size))
    if fixed or me.rank == 0:
        ours = dist.new_group(ranks, timeout=timedelta(seconds=2))
        dist.all_reduce(torch.ones(1), group=ours)
    dist.barrier(group)


CASES = [
    unequal_batches, only_on_rank_0, hidden_in_a_save, early_stop, skipped_batch,
    swallowed_exception, evaluated_on_rank_0, slow_on_rank_0, other_order, send_and_send,
    unused_on_one_rank,
]  # fmt: skip

DEADLY = {"group_on_some_ranks": group_on_some_ranks}  # later groups would have other numbers

if __name__ == "__main__":
    os.environ["DDP_COURSE_DEVICE"] = "cpu"
    gallery.main("12_hanging", {case.__name__: case for case in CASES}, DEADLY)
