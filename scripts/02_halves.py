"""all_reduce against its two halves, and what autograd sees of an all-reduce."""

import warnings

import torch
import torch.distributed as dist
import torch.distributed.nn.functional as differentiable
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.process_group import process_group


def two_halves(me, integers):
    """(largest gap between the two ways, this rank's all-reduced sum as exact text)."""
    torch.manual_seed(me.rank)
    x = torch.randn(me.world_size * 1000, device=me.device)
    x = (100 * x).round() if integers else x
    mine = torch.empty(1000, device=me.device)
    both = torch.empty_like(x)
    dist.reduce_scatter_tensor(mine, x)
    dist.all_gather_into_tensor(both, mine)
    dist.all_reduce(x)
    return (x - both).abs().max().item(), [v.hex() for v in x.tolist()]


class AllReduce(torch.autograd.Function):
    """An all-reduce that autograd knows: every output depends on every rank's input."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


def in_place(x):
    dist.all_reduce(x)
    return x


def gradients(me):
    """x.grad after y = all-reduce of x and y.sum().backward() on every rank, in three ways."""
    ways = {"dist.all_reduce": in_place, "AllReduce": AllReduce.apply}
    ways["torch's own"] = differentiable.all_reduce
    found = {}
    for name, reduce in ways.items():
        x = torch.tensor([2.0], device=me.device, requires_grad=True)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch warns of the first way, rightly
            reduce(x * 1).sum().backward()
        found[name] = x.grad.item()
    return found


@record
def main():
    with process_group() as me:
        mine = {"integers": two_halves(me, True), "random": two_halves(me, False)}
        mine["gradients"] = gradients(me)
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("02_halves", {"ranks": everyone}, me.device)
        if me.rank == 0:
            print("gradient of x:", mine["gradients"])


if __name__ == "__main__":
    main()
