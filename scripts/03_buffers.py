"""In which forward does DDP copy rank 0's buffers? And what of an unused parameter?"""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import results
from ddp_course.process_group import process_group

FORWARDS = ("train", "train", "evaluate", "evaluate", "evaluate", "train", "train")


class Noted(nn.Module):
    """Notes what its buffer holds in each forward."""

    def __init__(self):
        super().__init__()
        self.linear, self.seen = nn.Linear(2, 2), []
        self.register_buffer("buffer", torch.zeros(1))

    def forward(self, x):
        self.seen.append(self.buffer.item())
        return self.linear(x)


def copies(me):
    """For each forward: did this rank's buffer hold rank 0's value?"""
    model = Noted().to(me.device)
    ddp, x = DDP(model), torch.ones(1, 2, device=me.device)
    for kind in FORWARDS:
        model.buffer.fill_(me.rank)  # as BatchNorm's statistics differ by rank
        with torch.set_grad_enabled(kind == "train"):
            y = ddp(x)
        if kind == "train":
            y.sum().backward()
    return [value == 0 for value in model.seen]


class Spare(nn.Module):
    """A layer that forward leaves out."""

    def __init__(self):
        super().__init__()
        self.used, self.spare = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, x):
        return self.used(x)


def unused(me):
    """The gradient after the first backward, and what the second forward says."""
    torch.manual_seed(0)
    model = Spare().to(me.device)
    ddp, x = DDP(model), torch.full((1, 2), me.rank + 1.0, device=me.device)
    ddp(x).sum().backward()
    gradient = model.used.weight.grad.tolist()
    try:
        ddp(x).sum().backward()
        return {"gradient": gradient, "error": None}
    except RuntimeError as error:
        return {"gradient": gradient, "error": str(error)}


@record
def main():
    with process_group() as me:
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, {"copied": copies(me), "unused": unused(me)})
        results.save("03_buffers", {"ranks": everyone}, me.device)
        if me.rank == 0:
            print(len(FORWARDS), "forwards; two of a model with a spare layer")


if __name__ == "__main__":
    main()
