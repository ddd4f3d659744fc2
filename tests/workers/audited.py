"""Training loops, right and wrong, each under ddp_course.audit; run by test_audit.py."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import fp16_compress_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import (
    DataLoader,
    DistributedSampler,
    IterableDataset,
    RandomSampler,
    Subset,
    TensorDataset,
)

from ddp_course import audit, results
from ddp_course.process_group import process_group

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
        said = {
            name: {"answer": v.answer, "evidence": v.evidence}
            for name, v in vars(report).items()
            if name != "notes"
        }
        return said | {"notes": report.notes, "text": str(report)}
    loop()
    return [p.detach().clone() for p in model.parameters()]


CASES = [
    "right", "accumulated", "fp16 hook", "clip", "scaler", "scaler, clip", "by hand", "padding",
    "module", "no_sync", "unfrozen late", "loaded on rank 0", "other start", "own rate",
    "no averaging", "sum by hand", "last layer by hand twice", "reduces parameters",
    "no sampler", "own seed", "stream", "set_epoch forgotten", "leak", "other optimizer state",
    "one step more on rank 1", "loss times N", "no gradient on rank 1", "NaN", "same data",
    "no loader given", "data cut up beforehand", "with replacement",
]  # fmt: skip


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
    hooks = sum(len(p._backward_hooks or ()) for p in model.parameters())
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


def main():
    with process_group() as me:
        found = {"raises": raises(me)} | {case: run(me, case) for case in CASES}
        found["bits"] = bits(me)
        results.save("audited", {"ranks": results.gather(found)})


if __name__ == "__main__":
    main()
