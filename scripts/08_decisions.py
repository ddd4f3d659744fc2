"""What ranks must agree on: the loss that is logged, the metric that decides."""

import runpy
import warnings
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, data, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

cells = runpy.run_path(str(Path(__file__).with_name("08_model.py")))
mlp, weights = cells["mlp"], cells["weights"]


def logging(me, train):
    """The local loss, the global one, and the length of the gradient for two ways to log it."""
    x, y = (t.to(me.device) for t in train[me.rank * 16 : (me.rank + 1) * 16])
    found = {}
    for way in ("detached copy", "in place, divided"):
        ddp = DDP(model := mlp(me.device))
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
    ddp = DDP(model := mlp(me.device))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
    x, y = (t.to(me.device) for t in images.train[me.rank :: me.world_size])
    xv, yv = (t.to(me.device) for t in images.test[me.rank * 30 : (me.rank + 1) * 30])
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
    everyone, rate = gather(weights(model)), optimizer.param_groups[0]["lr"]
    return {"rate": rate, "drift": checks.parity(everyone[0], everyone).value}


@record
def main():
    torch.set_num_threads(1)
    with process_group() as me:
        images = data.load("digits")
        mine = {"logging": logging(me, images.train)}
        mine["own metric"] = plateau(me, images, reduce=False)
        mine["global metric"] = plateau(me, images, reduce=True)
        results.save("08_decisions", {"ranks": gather(mine)}, me.device)


if __name__ == "__main__":
    main()
