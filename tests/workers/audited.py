"""Training loops, right and wrong, each under ddp_course.audit; run by test_audit.py."""

from datetime import timedelta
from itertools import islice

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint
from torch.utils.data import (
    ConcatDataset,
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
)

from ddp_course import results
from ddp_course.process_group import process_group
from ddp_course.tools import audit
from ddp_course.tools.collectives import gather

DATA = TensorDataset(
    torch.randn(48, 6, generator=torch.Generator().manual_seed(0)),
    torch.randn(48, 2, generator=torch.Generator().manual_seed(1)),
)


class Everything(IterableDataset):
    """The same stream on every rank."""

    def __iter__(self):
        return (DATA[i] for i in range(24))


def build(me, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 2))
    torch.manual_seed(100 + me.rank)
    return model


def split(me, dataset=DATA, **kwargs):
    sampler = DistributedSampler(dataset, me.world_size, me.rank, **kwargs)
    return DataLoader(dataset, 4, sampler=sampler)


def backward(ddp, x, y, scale=1.0):
    (scale * (ddp(x) - y).square().mean()).backward()


def run(me, case, watched=True):
    model = build(me)
    wrapped = case not in ("by hand", "sum by hand", "no averaging")
    if case == "other start":
        with torch.no_grad():
            model[0].weight += me.rank
    if case == "unfrozen late":
        model[3].weight.requires_grad = False
    ddp = DDP(model) if wrapped else model
    if case == "loaded on rank 0" and me.rank == 0:
        model.load_state_dict(build(me, seed=7).state_dict())
    if case == "fp16 hook":
        ddp.register_comm_hook(None, fp16_compress_hook)
    kind = torch.optim.AdamW if case == "other optimizer state" else torch.optim.SGD
    optimizer = kind(model.parameters(), lr=0.05 * (1 + (case == "own rate") * me.rank))
    if case == "other optimizer state":
        for p in model.parameters():  # as after loading it on one rank only
            optimizer.state[p] = {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(p),
                                  "exp_avg_sq": torch.full_like(p, 1e-3 * me.rank)}  # fmt: skip
    scaler = torch.amp.GradScaler("cpu", init_scale=64.0) if "scaler" in case else None
    loader, validation = split(me), None
    if case == "no sampler":
        loader = DataLoader(DATA, 4, shuffle=True)
    if case == "own seed":
        loader = split(me, seed=me.rank)
    if case == "same data":  # and no dropout: local gradients agree
        model[2].p, loader = 0.0, DataLoader(DATA, 4)
    if case == "data cut up beforehand":
        loader = DataLoader(TensorDataset(*(t.chunk(2)[me.rank] for t in DATA.tensors)), 4)
    if case == "with replacement":
        loader = DataLoader(DATA, 4, sampler=RandomSampler(DATA, replacement=True, num_samples=24))
    if case == "stream":
        loader = DataLoader(Everything(), 4)
    if case == "padding":
        loader = split(me, Subset(DATA, range(47)))
    if case == "leak":
        loader = split(me, Subset(DATA, range(0, 40)))
        validation = DataLoader(Subset(DATA, range(36, 48)), 4)

    def loop():
        for epoch in range(2):
            if isinstance(loader.sampler, DistributedSampler) and case != "set_epoch forgotten":
                loader.sampler.set_epoch(epoch)
            for i, (x, y) in enumerate(loader):
                step(epoch, i, x, y)
            for x, _ in validation or ():
                model.eval()(x)
            model.train()

    def step(epoch, i, x, y):
        if case == "one step more on rank 1" and me.rank == 1 and i == 0:
            optimizer.step()
        optimizer.zero_grad()
        if case == "unfrozen late" and epoch == 1:
            model[3].weight.requires_grad = True
        if case == "module":
            backward(ddp.module, x, y)
        elif case in ("no_sync", "accumulated"):
            with ddp.no_sync():
                backward(ddp, x[:2], y[:2])
            if case == "accumulated":
                backward(ddp, x[2:], y[2:])
        elif scaler:
            scaler.scale((ddp(x) - y).square().mean()).backward()
        else:
            backward(ddp, x, y, me.world_size if case == "loss times N" else 1.0)
        if case == "no gradient on rank 1" and me.rank == 1:
            model[0].bias.grad = None
        if case == "NaN":
            model[0].bias.grad[0] = torch.nan
        if case == "last layer by hand twice":
            dist.all_reduce(model[3].weight.grad)
        if "by hand" in case and not wrapped:
            for p in model.parameters():
                dist.all_reduce(p.grad)
                p.grad /= me.world_size if case == "by hand" else 1
        if case == "reduces parameters":
            for p in model.parameters():
                p.grad.mul_(1 + 0.5 * me.rank)
        if scaler:
            scaler.unscale_(optimizer) if "clip" in case else None
        if "clip" in case:
            nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if scaler:
            scaler.step(optimizer)
            scaler.update()
        else:
            optimizer.step()

    if watched:
        given = None if case == "no loader given" else loader
        with audit.watch(ddp, optimizer, given, validation, scaler) as report:
            loop()
        return said(report)
    loop()
    return [p.detach().clone() for p in model.parameters()]


def said(report):
    verdicts = {
        name: {"answer": v.answer, "evidence": v.evidence}
        for name, v in vars(report).items()
        if name != "notes"
    }
    return verdicts | {"notes": report.notes, "text": str(report)}


CASES = [
    "right", "accumulated", "fp16 hook", "clip", "scaler", "scaler, clip", "by hand", "padding",
    "module", "no_sync", "unfrozen late", "loaded on rank 0", "other start", "own rate",
    "no averaging", "sum by hand", "last layer by hand twice", "reduces parameters",
    "no sampler", "own seed", "stream", "set_epoch forgotten", "leak", "other optimizer state",
    "one step more on rank 1", "loss times N", "no gradient on rank 1", "NaN", "same data",
    "no loader given", "data cut up beforehand", "with replacement",
]  # fmt: skip


class Branches(nn.Module):
    """Ranks use other branches at a step; a third of them nobody uses."""

    def __init__(self, me):
        super().__init__()
        self.branches, self.turn = nn.ModuleList(nn.Linear(6, 2) for _ in range(3)), me.rank

    def forward(self, x):
        self.turn += 1
        return self.branches[self.turn % 3](x)


class Checkpointed(nn.Module):
    """Gradient checkpoints, and a weight that two layers share."""

    def __init__(self, reentrant):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 2)
        self.b.weight, self.reentrant = self.a.weight, reentrant

    def forward(self, x):
        x = checkpoint(self.b, self.a(x).tanh(), use_reentrant=self.reentrant)
        return checkpoint(self.c, x, use_reentrant=self.reentrant)


class Blurred(Dataset):
    """An augmentation: the same sample never has the same bits."""

    def __len__(self):
        return len(DATA)

    def __getitem__(self, i):
        return DATA[i][0] + 0.1 * torch.randn(6), DATA[i][1]


class Deaf(Blurred):
    """Gives the next sample, whatever the index."""

    at = 0

    def __getitem__(self, i):
        self.at += 1
        return DATA[self.at % len(DATA)]


def with_batch_norm():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


def other_order(me):
    order = torch.randperm(48, generator=torch.Generator().manual_seed(me.rank))
    return TensorDataset(*(t[order] for t in DATA.tensors))


def reduce(tensors, by=1.0):
    for tensor in tensors:
        dist.all_reduce(tensor)
        tensor /= by


def gradients(model):
    return [p.grad for p in model.parameters()]


def by_hand(model, by):
    reduce(gradients(model), by)


def average_parameters(model, i=0, every=1):
    if i % every == every - 1:
        reduce([p.data for p in model.parameters()], dist.get_world_size())


def clip(model, norm=0.01):
    nn.utils.clip_grad_norm_(model.parameters(), norm)


def summing(state, bucket):
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    return work.get_future().then(lambda done: done.value()[0])


def hooked(ddp, hook):
    ddp.register_comm_hook(None, hook)
    return ddp


def alone(me):
    return [dist.new_group([rank]) for rank in range(me.world_size)][me.rank]


def look_aside(ddp, x):
    """Gradients for a plot or a penalty, that must not count."""
    torch.autograd.grad(ddp.module(x).sum() * 7, list(ddp.parameters()))


def spoil(tensor, at):
    if at:
        tensor[0] = torch.nan


def sgd(model, **kwargs):
    return torch.optim.SGD(model.parameters(), lr=0.05, **kwargs)


# case: the model, and in the loop: forwards (default: one), what comes between backward and step,
# what after it, optimizer, data, and more for `watched`. m is the model, me the rank, i the step.
LOOPS = {
    "clip by value": dict(
        reduced=lambda m, me, i: nn.utils.clip_grad_value_(m.parameters(), 0.02)
    ),
    "clip each": dict(reduced=lambda m, me, i: [clip(m.module[k]) for k in (0, 3)]),
    "bucket view": dict(wrap=lambda me: DDP(build(me), gradient_as_bucket_view=True)),
    "static graph": dict(wrap=lambda me: DDP(build(me), static_graph=True)),
    "rotating branches": dict(wrap=lambda me: DDP(Branches(me), find_unused_parameters=True)),
    "rotating, accumulated": dict(
        wrap=lambda me: DDP(Branches(me), find_unused_parameters=True), forwards=2, to_none=False
    ),
    "BatchNorm": dict(wrap=lambda me: DDP(with_batch_norm())),
    "foreach": dict(optimizer=lambda m: sgd(m, foreach=True, momentum=0.9)),
    "fused": dict(optimizer=lambda m: torch.optim.AdamW(m.parameters(), fused=True)),
    "groups of parameters": dict(
        optimizer=lambda m: torch.optim.SGD([{"params": [p]} for p in m.parameters()], lr=0.05)
    ),
    "ZeRO": dict(optimizer=lambda m: ZeroRedundancyOptimizer(m.parameters(), torch.optim.Adam)),
    "LBFGS": dict(optimizer=lambda m: torch.optim.LBFGS(m.parameters(), max_iter=2), closure=True),
    "closure": dict(closure=True),
    "zeros, not None": dict(to_none=False),
    "checkpointed": dict(wrap=lambda me: DDP(Checkpointed(False))),
    "checkpointed, reentrant": dict(wrap=lambda me: DDP(Checkpointed(True), static_graph=True)),
    "compiled": dict(wrap=lambda me: torch.compile(DDP(build(me)), backend="eager")),
    "autograd.grad": dict(reduced=lambda m, me, i: look_aside(m, DATA.tensors[0])),
    "built inside": dict(wrap=build, late=True),
    "weight decay by hand": dict(
        reduced=lambda m, me, i: [p.grad.add_(p.detach()) for p in m.parameters()]
    ),
    "by hand, at times clipped": dict(
        wrap=build,
        reduced=lambda m, me, i: by_hand(m, 2) if i % 2 else (by_hand(m, 2), clip(m)),
    ),
    "NaN from rank 1": dict(
        forward=lambda m, x, me, i: m(x * torch.nan if me.rank and i == 4 else x)
    ),
    "own group": dict(wrap=lambda me: DDP(build(me), process_group=alone(me))),
    "averages parameters": dict(wrap=build, after=lambda m, me, i: average_parameters(m)),
    "local SGD": dict(wrap=build, after=lambda m, me, i: average_parameters(m, i, 3)),
    "sum in a hook, clipped": dict(
        wrap=lambda me: hooked(DDP(build(me)), summing), reduced=lambda m, me, i: clip(m)
    ),
    "sum by hand, clipped": dict(
        wrap=build, reduced=lambda m, me, i: (by_hand(m, 1), clip(m))
    ),
    "summed again": dict(reduced=lambda m, me, i: (by_hand(m, 1), clip(m, 1e9))),
    "divided by 8": dict(wrap=build, reduced=lambda m, me, i: by_hand(m, 8)),
    "rank 0 clips": dict(reduced=lambda m, me, i: me.rank or clip(m)),
    "every second step": dict(wrap=build, reduced=lambda m, me, i: i % 2 and by_hand(m, 2)),
    "no sync of the second": dict(forwards=2, synced=1),
    "nudged once": dict(after=lambda m, me, i: m.module[0].weight.data.add_(me.rank * (i == 3))),
    "NaN on rank 1": dict(reduced=lambda m, me, i: spoil(m.module[0].bias.grad, me.rank and i > 3)),
    "another's optimizer": dict(optimizer=lambda m: sgd(nn.Linear(6, 2))),
    "augmented": dict(data=lambda me: split(me, Blurred())),
    "twins": dict(data=lambda me: split(me, ConcatDataset([Subset(DATA, range(24))] * 2))),
    "twins in order": dict(
        data=lambda me: split(me, ConcatDataset([Subset(DATA, range(23))] * 2), shuffle=False)
    ),
    "oversampled": dict(data=lambda me: split(me, Subset(DATA, [*range(24), *range(24)]))),
    "own part": dict(
        data=lambda me: DataLoader(Subset(DATA, range(24 * me.rank, 24 * me.rank + 24)), 4)
    ),
    "drop_last": dict(
        data=lambda me: DataLoader(DATA, 5, sampler=split(me).sampler, drop_last=True)
    ),
    "three batches an epoch": dict(batches=3),
    "a look at the data": dict(evaluate=True),
    "other order": dict(data=lambda me: split(me, other_order(me))),
    "index ignored": dict(data=lambda me: split(me, Deaf())),
    "four replicas": dict(data=lambda me: split(me._replace(world_size=4))),
}  # fmt: skip


def loop(
    me, wrap=lambda me: DDP(build(me)), optimizer=sgd, data=split, forward=lambda m, x, me, i: m(x),
    reduced=None, after=None, forwards=1, synced=2, closure=False, to_none=True, late=False,
    batches=None, evaluate=False,
):  # fmt: skip
    """Two epochs of a loop; most LOOPS change one thing in it."""
    torch.manual_seed(0)
    model, loader = wrap(me), data(me)
    torch.manual_seed(100 + me.rank)
    opt = optimizer(model)

    def backwards(x, y, i):
        opt.zero_grad(set_to_none=to_none)
        for k in range(forwards):
            if isinstance(model, DDP):
                model.require_backward_grad_sync = k < synced
            loss = (forward(model, x, me, i) - y).square().mean()
            loss.backward()
        return loss

    with audit.watch(model, opt, loader) as report:
        if late:
            model = DDP(model)
        for epoch in range(2):
            loader.sampler.set_epoch(epoch) if hasattr(loader.sampler, "set_epoch") else None
            for i, (x, y) in enumerate(islice(loader, batches)):
                if closure:
                    opt.step(lambda x=x, y=y, i=i: backwards(x, y, i))
                    continue
                backwards(x, y, i)
                if reduced:
                    reduced(model, me, i)
                opt.step()
                if after:
                    after(model, me, i)
            for x, _ in loader if evaluate else ():
                model.module.eval()(x)
            model.train()
    return said(report)


def join(me):
    """Ranks with unequally many batches."""
    ddp = DDP(build(me))
    optimizer, loader = sgd(ddp), DataLoader(DATA, 4, sampler=range(me.rank, 48 - 8 * me.rank, 2))
    with audit.watch(ddp, optimizer, loader) as report, ddp.join():
        for x, y in loader:
            optimizer.zero_grad()
            backward(ddp, x, y)
            optimizer.step()
    return said(report)


def adversaries(me):
    """A GAN's generator and discriminator, each with an audit."""
    g, d = DDP(build(me)), DDP(nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)))
    for_g, for_d, loader = sgd(g), sgd(d), split(me)
    with audit.watch(g, for_g, loader) as report, audit.watch(d, for_d, loader) as other:
        for x, y in loader:
            for_d.zero_grad()
            d(y).mean().backward()
            (-d(g(x).detach())).mean().backward()
            for_d.step()
            for_g.zero_grad()
            d(g(x)).square().mean().backward()
            for_g.step()
    return said(report), said(other)


def skipped(me):
    """Rank 1 passes by one `watch`: no word of it there, and the next one is paired again."""
    audit.WAIT, report = timedelta(seconds=1), "passed by"
    model = build(me)
    if me.rank == 0:
        with audit.watch(model, sgd(model)) as report:
            pass
    dist.barrier()
    audit.WAIT = timedelta(seconds=30)
    return str(report)


def bits(me):
    """The same weights with the audit and without."""
    plain = run(me, "right", watched=False)
    model = build(me)
    with_audit = DDP(model)
    optimizer, loader = torch.optim.SGD(model.parameters(), lr=0.05), split(me)
    with audit.watch(with_audit, optimizer, loader):
        for epoch in range(2):
            loader.sampler.set_epoch(epoch)
            for x, y in loader:
                optimizer.zero_grad()
                backward(with_audit, x, y)
                optimizer.step()
    hooks = sum(len(p._post_accumulate_grad_hooks or ()) for p in model.parameters())
    same = all(torch.equal(a, b) for a, b in zip(plain, model.parameters()))
    return {"same": same, "hooks left": hooks, "sampler": type(loader.batch_sampler).__name__}


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


def keys():
    """What audits have left in the store."""
    dist.barrier()
    store = dist.distributed_c10d._get_default_store()
    left = [key for key in store.list_keys() if "audit" in key]
    dist.barrier()  # the next case posts again
    return left


def main():
    with process_group() as me:
        found = {"raises": raises(me)} | {case: run(me, case) for case in CASES}
        found |= {case: loop(me, **how) for case, how in LOOPS.items()}
        found["Join"] = join(me)
        found["generator"], found["discriminator"] = adversaries(me)
        found["bits"] = bits(me)
        found["keys left"] = keys()
        found["skipped"] = skipped(me)
        results.save("audited", {"ranks": gather(found)})


if __name__ == "__main__":
    main()
