"""Cases of audit_loops.py that aren't its loop with one thing changed."""

from contextlib import suppress
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from audit_data import DATA, split
from audit_loops import loop, said, sgd
from audit_models import build
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from ddp_course.tools import audit
from ddp_course.tools.audit import exchange

IMPORTED = dist.all_reduce  # before any block: not seen


def join(me):
    """Ranks with unequally many batches."""
    ddp = DDP(build(me))
    opt, loader = sgd(ddp, me), DataLoader(DATA, 4, sampler=range(me.rank, 48 - 8 * me.rank, 2))
    with audit.watch(ddp, opt, loader) as report, ddp.join():
        for x, y in loader:
            opt.zero_grad()
            (ddp(x) - y).square().mean().backward()
            opt.step()
    return said(report)


def adversaries(me, fault=None, first="d"):
    """A GAN, each half with an audit: {half: report}. `fault` leaves gradients in one of them."""
    g, d = DDP(build(me)), DDP(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)))
    for_g, for_d, loader = sgd(g, me), sgd(d, me), split(me)

    def train_d(x, y):
        if fault != "d":
            for_d.zero_grad()
        fake = g(x)
        both = d(torch.cat([y, fake if fault == "g" else fake.detach()]))
        (both[: len(y)].mean() - both[len(y) :].mean()).backward()
        for_d.step()

    def train_g(x, y):
        if fault != "g":
            for_g.zero_grad()
        d(g(x)).square().mean().backward()
        for_g.step()

    halves = (train_d, train_g) if first == "d" else (train_g, train_d)
    with audit.watch(g, for_g, loader) as on_g, audit.watch(d, for_d, loader) as on_d:
        for x, y in loader:
            if fault:  # at the beginning only
                for_g.zero_grad()
                for_d.zero_grad()
            for half in halves:
                half(x, y)
    return said(on_g), said(on_d)


def real_and_fake(me):
    """A discriminator with two losses, two backwards, one step: usual, and right."""
    d, loader = DDP(build(me)), split(me)
    opt = sgd(d, me)
    with audit.watch(d, opt, loader) as report:
        for x, _ in loader:
            opt.zero_grad()
            d(x).mean().backward()
            (-d(x + 1)).square().mean().backward()
            opt.step()
    return said(report)


def nothing(*args, **kwargs):
    """In the place of a collective that would hang, since nobody answers it."""


def call(me, body):
    """A report on `body(me)`, which calls collectives that do nothing."""
    model, real = nn.Linear(2, 1), {}
    for name in ("all_reduce", "broadcast", "barrier"):
        real[name] = getattr(dist, name)

        def fake(*args, real=real[name], **kwargs):
            return nothing(*args, **kwargs)

        fake.__wrapped__ = real[name]  # with its signature
        setattr(dist, name, fake)
    try:
        with audit.watch(model, sgd(model, me)) as report:
            body(me)
    except ArithmeticError:
        return said(report)
    finally:
        for name, function in real.items():
            setattr(dist, name, function)
    return said(report)


def extra_on_rank_0(me):
    dist.all_reduce(torch.ones(3))
    if me.rank == 0:
        dist.barrier()


def other_kind(me):
    dist.all_reduce(torch.ones(3))
    dist.all_reduce(torch.ones(3)) if me.rank else dist.broadcast(torch.ones(3), 0)


def other_count(me):
    dist.all_reduce(torch.ones(3 + me.rank))


def other_type(me):
    dist.all_reduce(torch.ones(3, dtype=torch.int32 if me.rank else torch.float32))


def other_operation(me):
    dist.all_reduce(torch.ones(3), op=dist.ReduceOp.MAX if me.rank else dist.ReduceOp.SUM)


def other_root(me):
    dist.broadcast(torch.ones(3), src=me.rank)


def other_order(me):
    """Alike in kind and size: only the lines tell."""
    for turn in (0, 1) if me.rank == 0 else (1, 0):
        if turn == 0:
            dist.broadcast(torch.ones(3), 0)
        else:
            dist.broadcast(torch.zeros(3), 0)


def branches(me):
    """Two lines, one for each rank, with every root in turn: right."""
    for root in range(me.world_size):
        if me.rank == root:
            dist.broadcast(torch.ones(3), root)
        else:
            dist.broadcast(torch.empty(3), root)


def operation_left_out(me):
    """The same, said in two ways."""
    dist.all_reduce(torch.ones(3), dist.ReduceOp.SUM) if me.rank else dist.all_reduce(torch.ones(3))
    dist.barrier(None) if me.rank else dist.barrier()


def raises_on_rank_1(me):
    dist.all_reduce(torch.ones(3))
    if me.rank:
        raise ArithmeticError
    dist.all_reduce(torch.ones(3))


def raises_on_rank_1_too_late(me):
    dist.all_reduce(torch.ones(3))
    if me.rank:
        dist.all_reduce(torch.ones(3))
        raise ArithmeticError


def raises_in_between(me):
    dist.all_reduce(torch.ones(3 + me.rank))
    raise ArithmeticError


def roots(me):
    """Of real collectives: root and others give unlike arguments, all in order."""
    mine, first = torch.ones(3), me.rank == 0
    model = nn.Linear(2, 1)
    with audit.watch(model, sgd(model, me)) as report:
        dist.scatter(mine, [torch.ones(3)] * me.world_size if first else None, src=0)
        dist.gather(mine, [torch.ones(3) for _ in range(me.world_size)] if first else None, dst=0)
        found = [None] * me.world_size
        with suppress(RuntimeError):  # without numpy torch sends objects, but can't unpack them
            dist.all_gather_object(found, "x" * (1 + 50 * me.rank))
        with suppress(RuntimeError):
            dist.broadcast_object_list(found, src=0)
        parts = [torch.empty(3) for _ in range(me.world_size)]
        dist.all_gather(parts, mine)
        IMPORTED(mine)
        own = dist.new_group([0], use_local_synchronization=True) if first else None
        if first:
            dist.all_reduce(mine, group=own)
        dist.barrier()
    return said(report)


def skipped(me):
    """Rank 1 passes by one `watch`: no word of it there, and the next one is paired again."""
    wait, exchange.WAIT, report = exchange.WAIT, timedelta(seconds=1), "passed by"
    model = build(me)
    if me.rank == 0:
        with audit.watch(model, sgd(model, me)) as report:
            pass
    dist.barrier()
    exchange.WAIT = wait
    return str(report)


def raises(me):
    """The loop raises on rank 1: both go on, and the next watch is paired again."""
    model = build(me)
    optimizer = torch.optim.LBFGS(model.parameters())  # its state holds more than tensors
    try:
        with audit.watch(model, optimizer) as report:
            if me.rank == 1:
                raise ZeroDivisionError
    except ZeroDivisionError:
        return "raised"
    return str(report)


def bits(me):
    """The same weights with the audit and without; nothing stays behind."""
    kept = []

    def keep(me):
        kept.append(DDP(build(me)))
        return kept[-1]

    plain, loader = loop(me, watched=False), split(me)
    loop(me, wrap=keep, data=lambda me: loader)
    parameters = list(kept[0].parameters())
    return {
        "same": all(torch.equal(a, b) for a, b in zip(plain, parameters)),
        "hooks left": sum(len(p._post_accumulate_grad_hooks or ()) for p in parameters),
        "sampler": type(loader.batch_sampler).__name__,
    }


def keys():
    """What audits have left in the store."""
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    try:
        left = [key for key in store.list_keys() if "audit" in key]
    except Exception:  # torch 2.4 can only count them
        left = None
    dist.barrier()  # the next case posts again
    return left


CALLS = {
    "extra on rank 0": extra_on_rank_0,
    "other kind": other_kind,
    "other count": other_count,
    "other type": other_type,
    "other operation": other_operation,
    "other root": other_root,
    "other order of calls": other_order,
    "branches": branches,
    "operation left out": operation_left_out,
    "raises in between": raises_in_between,
    "raises on rank 1": raises_on_rank_1,
    "raises on rank 1, and rank 0 ends": raises_on_rank_1_too_late,
}


def run(me):
    found = {"Join": join(me), "real and fake": real_and_fake(me), "roots": roots(me)}
    found["generator"], found["discriminator"] = adversaries(me)
    found["g first: generator"], found["g first: discriminator"] = adversaries(me, first="g")
    found["left in d: generator"], found["left in d"] = adversaries(me, "d", first="g")
    found["left in g"], found["left in g: discriminator"] = adversaries(me, "g", first="d")
    return found | {case: call(me, body) for case, body in CALLS.items()}
