"""The five stages of 03_own_ddp.py and the real DDP, each beside one process on the full batch."""

import runpy
import statistics
import time
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, results
from ddp_course.models import SmallCNN
from ddp_course.process_group import process_group

own = runpy.run_path(str(Path(__file__).with_name("03_own_ddp.py")))


class Real:
    """The real one, with our interface; it has finished when backward returns."""

    def __init__(self, module):
        cuda = next(module.parameters()).is_cuda
        self.module = DDP(module, device_ids=[torch.cuda.current_device()] if cuda else None)

    def __call__(self, *inputs):
        return self.module(*inputs)

    def no_sync(self):
        return self.module.no_sync()

    def finish(self):
        pass


STAGES = [own[k] for k in ("PerParameter", "Flat", "Hooks", "Buckets", "NoSync")] + [Real]


def data(me, step, samples=32, shape=(1, 28, 28)):
    """The global batch of a step, the same on every rank."""
    g = torch.Generator().manual_seed(step)
    x, y = torch.randn(samples, *shape, generator=g), torch.randint(0, 10, (samples,), generator=g)
    return x.to(me.device), y.to(me.device)


def train(me, kind, build, steps, micro=1):
    """Weights after some steps, and the seconds of each; kind None is one process, full batch."""
    torch.manual_seed(0 if kind is None else me.rank)  # wrapping must make the starts equal
    if kind is None:
        wrapped = module = build().to(me.device)
    else:
        module = build().to(me.device)
        wrapped = kind(module)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    seconds = []
    for step in range(steps):
        x, y = data(me, step)
        if kind is not None:
            x, y = x.chunk(me.world_size)[me.rank], y.chunk(me.world_size)[me.rank]
        optimizer.zero_grad()
        start = time.perf_counter()
        parts = list(zip(x.chunk(micro), y.chunk(micro)))
        for xs, ys in parts[:-1]:
            with wrapped.no_sync():
                (F.cross_entropy(wrapped(xs), ys) / micro).backward()
        (F.cross_entropy(wrapped(parts[-1][0]), parts[-1][1]) / micro).backward()
        if kind is not None:
            wrapped.finish()
        optimizer.step()
        seconds.append(time.perf_counter() - start)
    return {name: p.detach().clone() for name, p in module.named_parameters()}, seconds


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
    one, _ = train(me, None, lambda: Odd(False), 3)
    gap = {k.__name__: checks.parity(one, [train(me, k, lambda: Odd(False), 3)[0]]).value
           for k in STAGES}  # fmt: skip
    errors = {}
    for kind in STAGES:
        try:
            train(me, kind, lambda: Odd(True), 3)
            errors[kind.__name__] = None
        except RuntimeError as error:
            errors[kind.__name__] = str(error).splitlines()[0]
    return gap, errors


@record
def main():
    with process_group() as me:
        torch.manual_seed(0)
        build = lambda: SmallCNN((1, 28, 28))  # noqa: E731
        one, _ = train(me, None, build, 6)
        gap, ms = {}, {}
        for kind in STAGES:
            weights, seconds = train(me, kind, build, 6)
            gap[kind.__name__] = checks.parity(one, [weights]).value
            ms[kind.__name__] = 1000 * statistics.median(seconds[2:])
        accumulated = {k.__name__: checks.parity(one, [train(me, k, build, 6, micro=4)[0]]).value
                       for k in STAGES[-2:]}  # fmt: skip
        odd_gap, errors = odd_models(me)
        found = {"gap": gap, "ms": ms, "accumulated": accumulated}
        found |= {"odd_gap": odd_gap, "errors": errors}
        results.save("03_own_ddp_check", found, me.device)
        if me.rank == 0:
            for name in gap:
                print(f"{name:13} gap to one process {gap[name]:.1e}, step {ms[name]:5.1f} ms")


if __name__ == "__main__":
    main()
