"""Checks of lesson 03's exercise: is a wrapper that somebody wrote as good as DDP?"""

import copy
from functools import cache

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F

from ddp_course import checks
from ddp_course.collective_exercises import Handle, agree, arguments
from ddp_course.models import SmallCNN

STEPS = 4
IN_BACKWARD = ("Hooks", "Buckets")  # stages that send before backward is through


class Odd(nn.Module):
    """A tied pair, a frozen layer, and two heads."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.head, self.spare = (nn.Linear(16, 16) for _ in range(4))
        self.b.weight = self.a.weight
        self.frozen = nn.Linear(16, 16).requires_grad_(False)

    def forward(self, x):
        x = self.b(self.frozen(self.a(x.flatten(1)[:, :16]).relu())).relu()
        return self.head(x) + self.spare(x)


class Forked(nn.Module):
    """Two branches, begun in another order on every other rank: gradients come in another order."""

    def __init__(self):
        super().__init__()
        self.left, self.right = (nn.Linear(64, 300, bias=False) for _ in range(2))

    def forward(self, x):
        branches = [self.left, lambda x: self.right(x.relu())]  # else both gradients are the same
        if dist.get_rank() % 2:
            branches.reverse()
        return sum(branch(x.flatten(1)) for branch in branches)


def batch(me, step):
    """The global batch of a step, the same on every rank: 8 samples for each."""
    g = torch.Generator().manual_seed(step)
    n = 8 * me.world_size
    x, y = torch.randn(n, 1, 8, 8, generator=g), torch.randint(0, 10, (n,), generator=g)
    return x.to(me.device), y.to(me.device)


class Waited(Handle):
    """A Work that belongs to one step, and notes that somebody waits."""

    def __init__(self, work, sent):
        super().__init__(work, sent.open)
        self.sent = sent

    def wait(self, *args):
        assert self.sent.active, "waits for a message of an earlier step: forget it after finish()"
        self.sent.events.append(("waited",))
        return super().wait(*args)


class Sent:
    """In a ``with`` block, notes each all-reduce: its bytes, and whether it was asynchronous."""

    def __init__(self, events):
        self.events, self.open, self.active = events, [], True

    def __enter__(self):
        self.real = dist.all_reduce

        def all_reduce(tensor, *args, **kwargs):
            waits = not arguments(self.real, (tensor, *args), kwargs).get("async_op")
            self.events.append(("sent", tensor.nbytes, waits))
            out = self.real(tensor, *args, **kwargs)
            return out if waits else Waited(out, self)

        dist.all_reduce = all_reduce
        return self

    def __exit__(self, *_):
        dist.all_reduce, self.active = self.real, False


def one_step(me, step, wrapped, optimizer, events):
    """Forward, backward, finish() and step on this rank's share; `events` gets what happened."""
    x, y = (t.chunk(me.world_size)[me.rank] for t in batch(me, step))
    optimizer.zero_grad()
    with Sent(events) as sent:
        F.cross_entropy(wrapped(x), y).backward()
        events.append(("backward is through",))
        wrapped.finish()
    agree(me, not sent.open, "finish() returned before it waited for every message")
    optimizer.step()


def trained(me, wrapper, build):
    """Train a wrapped module; the weights after each step, and the events of the last step."""
    torch.manual_seed(me.rank)  # wrapping must make the starts equal
    module = build().to(me.device)
    names = {id(p): name for name, p in module.named_parameters()}
    events = []
    for p in module.parameters():
        if p.requires_grad:  # before the wrapper's own hooks, so that "ready" comes before "sent"
            p.register_post_accumulate_grad_hook(lambda p: events.append(("ready", names[id(p)])))
    wrapped = wrapper(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    weights = []
    for step in range(STEPS):
        events.clear()
        one_step(me, step, wrapped, optimizer, events)
        weights.append(copy.deepcopy(module.state_dict()))
    return wrapped, weights, list(events)


@cache  # every stage is compared with it
def one_process(me, build):
    """The same steps on the whole batch, in this process: the weights after each."""
    torch.manual_seed(0)
    module = build().to(me.device)
    optimizer, weights = torch.optim.SGD(module.parameters(), lr=0.1), []
    for step in range(STEPS):
        x, y = batch(me, step)
        optimizer.zero_grad()
        F.cross_entropy(module(x), y).backward()
        optimizer.step()
        weights.append(copy.deepcopy(module.state_dict()))
    return weights


def check(me, stage, wrapper):
    """Compare a stage with one process, step by step.

    Parameters
    ----------
    me : Ranks
    stage : {"PerParameter", "Flat", "Hooks", "Buckets"}
    wrapper : class
        Takes a module; an nn.Module with ``forward`` and ``finish``.

    Returns
    -------
    dict
        gap: the largest difference to one process, over all steps and both models; events: what
        happened in the last step of the SmallCNN, in order.

    Raises
    ------
    AssertionError
        Something is wrong; says what to look at. The same on every rank.
    """
    torch.backends.cudnn.allow_tf32 = False  # 10 bits of fraction would hide a gap of 1e-5
    gap, kept = 0.0, None
    for build in (SmallCNN, Odd, *([Forked] if stage == "Buckets" else [])):
        wrapped, weights, events = trained(me, wrapper, build)
        agree(me, isinstance(wrapped, nn.Module), "make the wrapper an nn.Module, as DDP is")
        for step, expected in enumerate(one_process(me, build)):
            found = checks.parity(expected, [weights[step]])
            look_at = "are the starts equal, is it the mean, in every step?"
            if build is Forked:
                look_at = "on rank 1 gradients come in another order: does bucket b wait for b - 1?"
            agree(
                me,
                found.value < 1e-5,
                f"{build.__name__}, step {step}: {found.name} is {found.value:.1e} off one process "
                f"on the full batch: {look_at}",
            )
            gap = max(gap, found.value)
        check_messages(me, stage, wrapped, events)
        if stage in IN_BACKWARD and build is SmallCNN:  # the other may fit into one bucket
            check_overlap(me, events)
        kept = kept or [event for event in events if event != ("waited",)]
    return {"gap": gap, "events": kept}


def check_messages(me, stage, wrapped, events, cap=64 * 1024):
    """Is it the stage that its name says?"""
    sizes = [event[1] for event in events if event[0] == "sent"]
    each = [p.nbytes for p in wrapped.parameters() if p.requires_grad]
    agree(me, sizes, "no dist.all_reduce was seen: write dist.all_reduce(...), as Flat does")
    agree(me, sum(sizes) == sum(each), f"{sum(sizes)} bytes sent, the gradients have {sum(each)}")
    if stage in ("PerParameter", "Hooks"):
        agree(
            me, sorted(sizes) == sorted(each), f"{len(sizes)} messages for {len(each)} parameters"
        )
    if stage == "Buckets":
        agree(me, max(sizes) < cap + max(each), "a bucket is much larger than cap")
        both = [a + b for a, b in zip(sizes, sizes[1:])]
        small = sum(each) <= cap  # then one bucket would do, and two are no harm
        agree(me, small or all(b > cap for b in both), "two neighbouring buckets fit into one")


def check_overlap(me, events):
    end = events.index(("backward is through",))
    sent = [i for i, event in enumerate(events) if event[0] == "sent"]
    last_ready = max(i for i, event in enumerate(events) if event[0] == "ready")
    agree(me, all(i < end for i in sent), "something is sent after backward: send when it is ready")
    agree(
        me,
        not any(e == ("waited",) for e in events[:end]),
        "it waits in backward: wait in finish()",
    )
    agree(me, sent[0] < last_ready, "nothing is sent before the last gradient is ready")
    agree(me, not any(events[i][2] for i in sent), "use async_op=True, or backward waits")
