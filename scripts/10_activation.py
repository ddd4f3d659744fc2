"""Activation checkpointing under DDP: which of its two kinds works with which option."""

import torch
import torch.nn as nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from ddp_course import results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

WIDTH, BLOCKS = 128, 16


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x):
        return x + self.dropout(self.down(torch.tanh(self.up(x))))


class Net(nn.Module):
    """16 blocks. With `every`, only each every-th block's input is kept, the rest done again."""

    def __init__(self, every=None, reentrant=False):
        super().__init__()
        torch.manual_seed(0)
        self.blocks = nn.ModuleList(Block() for _ in range(BLOCKS))
        self.every, self.reentrant = every, reentrant

    def forward(self, x):
        if not self.every:
            return self.some(x, 0, BLOCKS)
        for first in range(0, BLOCKS, self.every):
            last = first + self.every
            x = checkpoint(self.some, x, first, last, use_reentrant=self.reentrant)
        return x

    def some(self, x, first, last):
        for block in self.blocks[first:last]:
            x = block(x)
        return x


def under_ddp(me, reentrant, **options):
    """Two steps; what DDP says, or "works"."""
    net = Net(4, reentrant).to(me.device)
    ddp = DDP(net, **options)
    x = torch.randn(8, WIDTH, device=me.device, requires_grad=True)
    try:
        for _ in range(2):
            ddp(x).square().mean().backward()
    except RuntimeError as error:
        return str(error).split(".")[0]
    return "works"


@record
def main():
    with process_group() as me:
        mine = {}
        for reentrant in (False, True):
            for name, options in (
                ("plain", {}),
                ("find_unused_parameters", {"find_unused_parameters": True}),
                ("static_graph", {"static_graph": True}),
            ):
                mine[f"use_reentrant={reentrant}, {name}"] = under_ddp(me, reentrant, **options)
        results.save("10_activation", {"ranks": gather(mine)}, me.device)
        if me.rank == 0:
            print("tried", len(mine), "combinations")


if __name__ == "__main__":
    main()
