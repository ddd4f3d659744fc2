"""A global batch of ranks × accumulation × micro-batch; logging, plateaus, seeds and bits."""

import hashlib
import warnings

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, data, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

MICRO, ACCUMULATION = 16, 8


def mlp(device, dropout=0.0):
    torch.manual_seed(0)
    layers = (nn.Flatten(), nn.Linear(64, 128), nn.ReLU(), nn.Dropout(dropout), nn.Linear(128, 10))
    return nn.Sequential(*layers).to(device)


def weights(model):
    return {name: p.detach().cpu().clone() for name, p in model.named_parameters()}


def large_batch(me, train, steps=5):
    """The same large batches on all ranks with accumulation, and on one process alone."""
    size = MICRO * ACCUMULATION * me.world_size
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    batches = [
        train[order[torch.arange(i * size, (i + 1) * size) % len(order)]] for i in range(steps)
    ]
    alone, shared = mlp(me.device), mlp(me.device)
    ddp = DDP(shared)
    for model in (alone, ddp):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for x, y in batches:
            x, y = x.to(me.device), y.to(me.device)
            optimizer.zero_grad()
            if model is alone:
                F.cross_entropy(model(x), y).backward()
            else:
                own = slice(me.rank * size // me.world_size, (me.rank + 1) * size // me.world_size)
                parts = list(zip(x[own].split(MICRO), y[own].split(MICRO)))
                with ddp.no_sync():
                    for part in parts[:-1]:
                        (F.cross_entropy(ddp(part[0]), part[1]) / len(parts)).backward()
                (F.cross_entropy(ddp(parts[-1][0]), parts[-1][1]) / len(parts)).backward()
            optimizer.step()
    gap = checks.parity(weights(alone), gather(weights(shared))).value
    return {"size": size, "gap": gap}


def logging(me, train):
    """The local loss, the global one, and the length of the gradient for two ways to log it."""
    x, y = (t.to(me.device) for t in train[me.rank * MICRO : (me.rank + 1) * MICRO])
    found = {}
    for way in ("detached copy", "in place, divided"):
        model = mlp(me.device)
        ddp = DDP(model)
        loss = F.cross_entropy(ddp(x), y)
        found["local"] = loss.item()
        if way == "detached copy":
            logged = loss.detach().clone()
            dist.all_reduce(logged)
            found["global"] = (logged / me.world_size).item()
        else:
            dist.all_reduce(loss)
            loss = loss / me.world_size  # the right number, and autograd has seen the division
            found["in place, number"] = loss.item()
        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            loss.backward()
        found["warning"] = str(warned[0].message).split(". ")[0] if warned else "none"
        found[way] = torch.cat([p.grad.flatten() for p in model.parameters()]).norm().item()
    return found


def plateau(me, images, reduce, epochs=12):
    """ReduceLROnPlateau on each rank's own validation loss, or on everybody's."""
    model = mlp(me.device)
    ddp = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    x, y = (t.to(me.device) for t in images.train[me.rank :: me.world_size])
    xv, yv = (t.to(me.device) for t in images.test[me.rank * 30 : (me.rank + 1) * 30])
    rates = []
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for batch in order.split(64):
            optimizer.zero_grad()
            F.cross_entropy(ddp(x[batch]), y[batch]).backward()
            optimizer.step()
        with torch.no_grad():
            metric = F.cross_entropy(model(xv), yv)
        if reduce:
            dist.all_reduce(metric)
            metric /= me.world_size
        scheduler.step(metric)
        rates.append(optimizer.param_groups[0]["lr"])
    everyone = gather(weights(model))
    return {"rates": rates, "drift": checks.parity(everyone[0], everyone).value}


def noise(me, seed):
    """Which of eight units dropout keeps, and how far four images are shifted, after seeding."""
    torch.manual_seed(seed)
    kept = F.dropout(torch.ones(8, device=me.device), 0.5).bool().int().tolist()
    return {"kept": kept, "shifts": torch.randint(-2, 3, (4,)).tolist()}


def trained_bits(me, train, seed, steps=6):
    """A digest of the weights after a few steps with dropout: equal digests, equal bits."""
    model = mlp(me.device, dropout=0.3)
    ddp = DDP(model)
    torch.manual_seed(seed + me.rank)  # dropout differs from rank to rank, and can be repeated
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        first = (step * me.world_size + me.rank) * MICRO
        x, y = (t.to(me.device) for t in train[torch.arange(first, first + MICRO) % len(train)])
        optimizer.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()
    bits = b"".join(p.numpy().tobytes() for p in weights(model).values())
    return hashlib.sha256(bits).hexdigest()[:8]


@record
def main():
    torch.set_num_threads(1)
    with process_group() as me:
        if me.device.type == "cuda":  # CUBLAS_WORKSPACE_CONFIG=:4096:8 goes with it
            torch.use_deterministic_algorithms(True, warn_only=True)
        images = data.load("digits")
        train = images.train
        mine = {"large batch": large_batch(me, train), "logging": logging(me, train)}
        mine["plateau"] = {
            name: plateau(me, images, reduce)
            for name, reduce in (("own metric", False), ("global metric", True))
        }
        mine["noise"] = {"same seed": noise(me, 7), "seed + rank": noise(me, 7 + me.rank)}
        mine["bits"] = {
            "run": trained_bits(me, train, seed=1),
            "same again": trained_bits(me, train, seed=1),
            "other dropout seed": trained_bits(me, train, seed=2),
        }
        results.save("08_batch", {"ranks": gather(mine)}, me.device)
        if me.rank == 0:
            print("measured", ", ".join(mine))


if __name__ == "__main__":
    main()
