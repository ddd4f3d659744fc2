"""Send fewer bytes: four communication hooks beside the plain one."""

import os
import runpy
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, DistributedSampler

from ddp_course import data, results
from ddp_course.process_group import process_group

cells = runpy.run_path(str(Path(__file__).with_name("06_compress.py")))
wrap_with_hook, EPOCHS = cells["wrap_with_hook"], 5


def gradient(me, name, images, steps=3):
    """The averaged gradient of one batch, as a hook passes it on in its third step.

    For PowerSGD that is the first that it compresses: there is no error to feed back yet.
    """
    ddp = wrap_with_hook(me, name)
    x, y = (t.to(me.device) for t in images.train[me.rank * 64 : (me.rank + 1) * 64])
    for _ in range(steps):  # the same batch, the same weights: only the hook's state moves on
        ddp.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
    return torch.cat([p.grad.flatten() for p in ddp.parameters()]).double()


def train(me, name, images, counted):
    """Bytes in the last step, accuracy on the held-out digits."""
    ddp = wrap_with_hook(me, name)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)
    sampler = DistributedSampler(images.train, seed=0, drop_last=True)
    loader = DataLoader(images.train, 64 // me.world_size, sampler=sampler, drop_last=True)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for x, y in loader:
            counted.bytes = 0
            optimizer.zero_grad()
            F.cross_entropy(ddp(x.to(me.device)), y.to(me.device)).backward()
            optimizer.step()
    x, y = (t.to(me.device) for t in images.test[:])
    with torch.no_grad():
        accuracy = (ddp.module(x).argmax(1) == y).double().mean().item()
    return {"bytes": counted.bytes, "accuracy": accuracy}


def compare_hooks(me):
    images = data.load("digits")
    exact, table = gradient(me, "allreduce", images), {}
    counted = dist.all_reduce = cells["CountedAllReduce"]()
    try:
        for name in cells["HOOKS"]:
            table[name] = train(me, name, images, counted)
            error = gradient(me, name, images) - exact
            table[name]["error"] = (error.norm() / exact.norm()).item()
    finally:
        dist.all_reduce = counted.real
    return table


@record
def main():
    with process_group() as me:
        if me.device.type == "cpu":  # PowerSGD's hook synchronises whatever GPU it can see
            os.environ["CUDA_VISIBLE_DEVICES"] = ""
        table = compare_hooks(me)
        results.save("06_hooks", {"hooks": table}, me.device)


if __name__ == "__main__":
    main()
