"""Silent: all ranks agree, on something wrong. Run all, or one: --case NAME [--fixed].

Each case returns the harm as a number: what it is, the case says.
"""

import os
from importlib import import_module

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import gallery

drift = import_module("12_drift")
batch, build, loss_of, train = drift.batch, drift.build, drift.loss_of, drift.train


def clipped_before_unscale(me, fixed, group):
    ddp = DDP(build(), process_group=group)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def step(i):
        scaler.scale(loss_of(ddp, *batch(me, i))).backward()
        if fixed:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(ddp.parameters(), 0.5)

    def too_short(ddp, group):
        """How many times shorter than 0.5 the last step's gradient was."""
        return 0.5 / norm(ddp)

    return train(me, group, ddp, step, optimizer, too_short, scaler)


def norm(model):
    return torch.stack([p.grad.norm() for p in model.parameters()]).norm().item()


def against_one_process(me, group, ddp, step):
    """Gradient length over that of one process with all ranks' samples: 1 is right."""
    step()
    alone = build()
    x, y = zip(*(batch(me._replace(rank=r), 0) for r in range(me.world_size)))
    loss_of(alone, torch.cat(x), torch.cat(y)).backward()
    return {"harm": norm(ddp) / norm(alone)}


def summed_loss(me, fixed, group):
    ddp = DDP(build(), process_group=group)
    x, y = batch(me, 0)
    reduce = torch.mean if fixed else torch.sum
    return against_one_process(me, group, ddp, lambda: reduce((ddp(x) - y).square()).backward())


def loss_times_world_size(me, fixed, group):
    """Because "DDP sums": it averages."""
    ddp = DDP(build(), process_group=group)
    factor = 1 if fixed else me.world_size
    return against_one_process(
        me, group, ddp, lambda: (factor * loss_of(ddp, *batch(me, 0))).backward()
    )


def micro_batches_not_divided(me, fixed, group):
    ddp = DDP(build(), process_group=group)
    x, y = batch(me, 0)

    def step():
        for half in (slice(0, 4), slice(4, 8)):
            (loss_of(ddp, x[half], y[half]) / (2 if fixed else 1)).backward()

    return against_one_process(me, group, ddp, step)


def nan_on_one_rank(me, fixed, group):
    ddp = DDP(build(), process_group=group)

    def step(i):
        x, y = batch(me, i)
        if me.rank == 1 and i == 2:
            x[0, 0] = torch.nan  # one broken sample
        bad = x.isnan().any().float()
        dist.all_reduce(bad, dist.ReduceOp.MAX, group=group)
        if not (fixed and bad):  # one skips: all skip
            loss_of(ddp, x, y).backward()

    def broken(ddp, group):
        return sum(p.isnan().sum().item() for p in ddp.parameters())

    return train(me, group, ddp, step, harm=broken)


def batchnorm_of_rank_0(me, fixed, group):
    """Each forward begins with rank 0's running statistics; the other ranks' are lost."""
    model = nn.Sequential(nn.BatchNorm1d(6, momentum=None), nn.Linear(6, 2))
    ddp = DDP(model, process_group=group, forward_sync_buffers=not fixed)
    for step in range(drift.STEPS):
        x, y = batch(me, step)
        loss_of(ddp, x + 10 * me.rank, y).backward()
    mean = model[0].running_mean.clone()
    if fixed:
        dist.all_reduce(mean, dist.ReduceOp.AVG, group=group)
    true = 10 * (me.world_size - 1) / 2
    kept = mean.mean()
    dist.broadcast(kept, 0, group=group)  # what rank 0 will save
    return {"harm": abs(kept.item() - true)}


def swapped_broadcasts(me, fixed, group):
    rate, ceiling = torch.full((1,), 0.1), torch.full((1,), 5.0)
    first, second = (rate, ceiling) if fixed or me.rank == 0 else (ceiling, rate)
    if me.rank:
        rate.zero_(), ceiling.zero_()
    dist.broadcast(first, 0, group=group)
    dist.broadcast(second, 0, group=group)
    return {"harm": abs(rate.item() - 0.1)}


def integer_division(me, fixed, group):
    samples = torch.tensor([3 + me.rank])  # 3 on rank 0, 4 on rank 1
    dist.all_reduce(samples, group=group)
    mean = samples / me.world_size if fixed else samples // me.world_size
    return {"harm": 3 + (me.world_size - 1) / 2 - mean.item()}


CASES = [
    clipped_before_unscale, summed_loss, loss_times_world_size, micro_batches_not_divided,
    nan_on_one_rank, batchnorm_of_rank_0, swapped_broadcasts, integer_division,
]  # fmt: skip

if __name__ == "__main__":
    os.environ["DDP_COURSE_DEVICE"] = "cpu"
    gallery.main("12_agreed", {case.__name__: case for case in CASES})
