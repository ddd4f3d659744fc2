"""Silent: the ranks drift apart. Run all, or one: --case NAME [--fixed].

Each case returns the harm as a number, and what ddp_course.audit says of the loop.
"""

import copy
import os

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import gallery
from ddp_course.tools import audit

STEPS = 4


def build():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))


def batch(me, step, scale=1.0):
    """Other samples on each rank, the same ones in every run."""
    torch.manual_seed(1000 * me.rank + step)
    return torch.randn(8, 6), scale * torch.randn(8, 2)


def loss_of(model, x, y):
    return (model(x) - y).square().mean()


def spread(model, group):
    """The largest difference of a weight between any two ranks."""
    flat = torch.cat([p.detach().flatten() for p in model.parameters()])
    high, low = flat.clone(), flat.clone()
    dist.all_reduce(high, dist.ReduceOp.MAX, group=group)
    dist.all_reduce(low, dist.ReduceOp.MIN, group=group)
    return (high - low).max().item()


def train(me, group, ddp, step=None, optimizer=None, harm=spread, scaler=None):
    """The loop of the course: a step is a backward unless the case has its own."""
    optimizer = optimizer or torch.optim.SGD(ddp.parameters(), lr=0.1)
    with audit.watch(ddp, optimizer, scaler=scaler) as report:
        for i in range(STEPS):
            optimizer.zero_grad()
            if step:
                step(i)
            else:
                loss_of(ddp, *batch(me, i)).backward()
            if scaler:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
    return {"harm": harm(ddp, group), "audit": gallery.answers(report)}


def forward_through_module(me, fixed, group):
    ddp = DDP(build(), process_group=group)
    model = ddp if fixed else ddp.module
    return train(me, group, ddp, lambda i: loss_of(model, *batch(me, i)).backward())


def unfrozen_after_the_wrap(me, fixed, group):
    model = build()
    model[2].requires_grad_(fixed)  # fixed: decided before DDP looks
    ddp = DDP(model, process_group=group)
    model[2].requires_grad_(True)
    return train(me, group, ddp)


def no_sync_off_by_one(me, fixed, group):
    ddp = DDP(build(), process_group=group)

    def step(i):
        for micro in range(2):
            last = micro == 1
            silent = not last if fixed else last
            with ddp.no_sync() if silent else torch.enable_grad():
                (loss_of(ddp, *batch(me, 2 * i + micro)) / 2).backward()

    return train(me, group, ddp, step)


def loaded_on_rank_0_after_the_wrap(me, fixed, group):
    torch.manual_seed(1)
    checkpoint = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2)).state_dict()
    ddp = DDP(build(), process_group=group)
    if fixed or me.rank == 0:
        ddp.module.load_state_dict(checkpoint)
    return train(me, group, ddp)


def optimizer_state_on_rank_0(me, fixed, group):
    ddp = DDP(build(), process_group=group)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    loss_of(ddp, *batch(me, 0)).backward()
    optimizer.step()
    saved, fresh = (
        copy.deepcopy(optimizer.state_dict()),
        torch.optim.Adam(ddp.parameters(), lr=0.01),
    )
    if fixed or me.rank == 0:
        fresh.load_state_dict(saved)
    return train(me, group, ddp, optimizer=fresh)


def scheduler_on_the_local_loss(me, fixed, group):
    ddp = DDP(build(), process_group=group)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.1)

    def step(i):
        loss = loss_of(ddp, *batch(me, i, scale=1 + (i > 0) * me.rank))
        loss.backward()
        seen = loss.detach()
        if fixed:
            dist.all_reduce(seen, dist.ReduceOp.AVG, group=group)
        plateau.step(seen)

    return train(me, group, ddp, step, optimizer)


def other_registration_order(me, fixed, group):
    """The same layers, but one rank lists them in another order; DDP pairs them by place."""

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            for name in "ab" if fixed or me.rank == 0 else "ba":
                setattr(self, name, nn.Linear(6, 6))

        def forward(self, x):
            return self.b(self.a(x).tanh())[:, :2]

    return train(me, group, DDP(Two(), process_group=group), harm=disagreement)


def disagreement(ddp, group):
    """How far apart the ranks' answers to one question are."""
    answer = ddp.module(torch.ones(1, 6)).detach()
    mean = answer.clone()
    dist.all_reduce(mean, dist.ReduceOp.AVG, group=group)
    return (answer - mean).abs().max().item()


def parameters_averaged_too_early(me, fixed, group):
    """Somebody's own DDP: it averages the parameter in place of its gradient."""
    model = build()

    def step(i):
        loss_of(model, *batch(me, i)).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad if fixed else p.data, dist.ReduceOp.AVG, group=group)

    return train(me, group, model, step)


CASES = [
    forward_through_module, unfrozen_after_the_wrap, no_sync_off_by_one,
    loaded_on_rank_0_after_the_wrap, optimizer_state_on_rank_0, scheduler_on_the_local_loss,
    other_registration_order, parameters_averaged_too_early,
]  # fmt: skip

if __name__ == "__main__":
    os.environ["DDP_COURSE_DEVICE"] = "cpu"
    gallery.main("12_drift", {case.__name__: case for case in CASES})
