"""The five stages of 03_own_ddp.py and the real DDP, each beside one process on the full batch."""

import runpy
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, results
from ddp_course.models import SmallCNN
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import synchronize

own = runpy.run_path(str(Path(__file__).with_name("03_own_ddp.py")))


class Real:
    """The real one, with our interface; it has finished when backward returns."""

    def __init__(self, module):
        self.module = DDP(module)

    def __call__(self, *inputs):
        return self.module(*inputs)

    def no_sync(self):
        return self.module.no_sync()

    def finish(self):
        pass


STAGES = [own[k] for k in ("PerParameter", "Flat", "Hooks", "Buckets", "NoSync")] + [Real]


def data(me, step):
    """The global batch of a step, the same on every rank: 16 samples for each."""
    g = torch.Generator().manual_seed(step)
    n = 16 * me.world_size
    x, y = torch.randn(n, 1, 28, 28, generator=g), torch.randint(0, 10, (n,), generator=g)
    return x.to(me.device), y.to(me.device)


def begin(me, kind, build):
    """Module, wrapper and optimizer; kind None is one process, full batch."""
    torch.manual_seed(0 if kind is None else me.rank)  # wrapping must make the starts equal
    module = build().to(me.device)
    wrapped = module if kind is None else kind(module)
    return module, wrapped, torch.optim.SGD(module.parameters(), lr=0.1)


def one_step(me, step, module, wrapped, optimizer, micro=1):
    x, y = data(me, step)
    if wrapped is not module:
        x, y = x.chunk(me.world_size)[me.rank], y.chunk(me.world_size)[me.rank]
    optimizer.zero_grad()
    parts = list(zip(x.chunk(micro), y.chunk(micro)))
    for xs, ys in parts[:-1]:
        with wrapped.no_sync():
            (F.cross_entropy(wrapped(xs), ys) / micro).backward()
    (F.cross_entropy(wrapped(parts[-1][0]), parts[-1][1]) / micro).backward()
    if wrapped is not module:
        wrapped.finish()
    optimizer.step()


def train(me, kind, build, steps, micro=1):
    """Weights after some steps, by name."""
    begun = begin(me, kind, build)
    for step in range(steps):
        one_step(me, step, *begun, micro)
    return {name: p.detach().clone() for name, p in begun[0].named_parameters()}


def race(me, build, rounds=15):
    """Milliseconds of each step. A round runs one step of each stage, so all share the noise."""
    begun = {kind.__name__: begin(me, kind, build) for kind in STAGES}
    ms = {name: [] for name in begun}
    for step in range(rounds):
        for name, run in begun.items():
            synchronize(me.device)
            start = time.perf_counter()
            one_step(me, step, *run)
            synchronize(me.device)
            ms[name].append(1000 * (time.perf_counter() - start))
    tensors = len(list(build().parameters()))
    messages = {"PerParameter": tensors, "Flat": 1, "Hooks": tensors}
    messages["Buckets"] = len(begun["Buckets"][1].buckets)
    return {name: times[3:] for name, times in ms.items()}, messages


class Odd(nn.Module):
    """A tied pair, a frozen layer, and one that forward may leave out."""

    def __init__(self, unused):
        super().__init__()
        self.a, self.b, self.out = (nn.Linear(28, 28) for _ in range(3))
        self.b.weight = self.a.weight
        self.frozen = nn.Linear(28, 28).requires_grad_(False)
        self.spare = nn.Linear(28, 10)
        self.head = nn.Linear(28, 10)
        self.unused = unused

    def forward(self, x):
        x = self.out(self.b(self.frozen(self.a(x.mean((1, 2))).relu())).relu())
        return self.head(x) if self.unused else self.head(x) + self.spare(x)


def odd_models(me):
    """Parity on the tied and frozen model; the error on the unused one."""
    one = train(me, None, lambda: Odd(False), 3)
    gap, errors = {}, {}
    for kind in STAGES:
        gap[kind.__name__] = checks.parity(one, [train(me, kind, lambda: Odd(False), 3)]).value
        try:
            train(me, kind, lambda: Odd(True), 3)
            errors[kind.__name__] = None
        except RuntimeError as error:
            errors[kind.__name__] = str(error).splitlines()[0]
    return gap, errors


def first_step_with_unused(me):
    """A gradient after the first backward of the real DDP, with a parameter left out."""
    module, wrapped, _ = begin(me, Real, lambda: Odd(True))
    x, y = data(me, 0)
    x, y = x.chunk(me.world_size)[me.rank], y.chunk(me.world_size)[me.rank]
    F.cross_entropy(wrapped(x), y).backward()
    return module.head.bias.grad.tolist()


@record
def main():
    with process_group() as me:

        def build():
            return SmallCNN((1, 28, 28))

        one = train(me, None, build, 6)
        gap = {k.__name__: checks.parity(one, [train(me, k, build, 6)]).value for k in STAGES}
        accumulated = {}
        for kind in STAGES[-2:]:
            weights = train(me, kind, build, 6, micro=4)
            accumulated[kind.__name__] = checks.parity(one, [weights]).value
        odd_gap, errors = odd_models(me)
        ms, messages = race(me, build)
        mine = {"gap": gap, "accumulated": accumulated, "odd_gap": odd_gap, "errors": errors}
        mine |= {"ms": ms, "messages": messages, "unused": first_step_with_unused(me)}
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("03_own_ddp_check", {"ranks": everyone}, me.device)
        if me.rank == 0:
            for name in gap:
                worst = max(r["gap"][name] for r in everyone)
                print(f"{name:13} gap {worst:.1e}, step {statistics.median(ms[name]):5.1f} ms")


if __name__ == "__main__":
    main()
