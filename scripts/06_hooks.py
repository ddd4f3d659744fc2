"""Send fewer bytes: four communication hooks beside the plain one."""

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from ddp_course import data, results
from ddp_course.process_group import process_group

EPOCHS = 5
HOOKS = ("allreduce", "fp16", "bf16", "PowerSGD 4", "PowerSGD 1", "PowerSGD 1, no feedback")


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
        nn.Linear(512, 10),
    )  # fmt: skip


def wrap_with_hook(me, name):
    # One bucket: PowerSGD starts its collectives from callbacks. With several buckets gloo's
    # threads start them in an order of their own on each rank: they pair up wrongly, or wait
    # for each other.
    ddp = DDP(mlp().to(me.device), bucket_cap_mb=25)
    if name.startswith("PowerSGD"):
        if me.device.type == "cpu":  # the hook asks this, and not where the gradients are
            torch.cuda.is_available = lambda: False
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=int(name[9]),
            start_powerSGD_iter=2,  # the first two steps send everything
            use_error_feedback="no feedback" not in name,
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        suffix = "_hook" if name == "allreduce" else "_compress_hook"
        ddp.register_comm_hook(None, getattr(default_hooks, name + suffix))
    return ddp


class CountedAllReduce:
    """Takes the place of dist.all_reduce, which every hook here calls, and adds up the bytes."""

    def __init__(self):
        self.real, self.bytes = dist.all_reduce, 0

    def __call__(self, tensor, *args, **kwargs):
        self.bytes += tensor.nbytes
        return self.real(tensor, *args, **kwargs)


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
    counted = dist.all_reduce = CountedAllReduce()
    try:
        for name in HOOKS:
            table[name] = train(me, name, images, counted)
            error = gradient(me, name, images) - exact
            table[name]["error"] = (error.norm() / exact.norm()).item()
    finally:
        dist.all_reduce = counted.real
    return table


@record
def main():
    with process_group() as me:
        table = compare_hooks(me)
        results.save("06_hooks", {"hooks": table}, me.device)
        if me.rank == 0:
            print("compared", ", ".join(table))


if __name__ == "__main__":
    main()
