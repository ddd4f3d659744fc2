"""The models of audit_loops.py: 6 numbers in, 2 out."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint


def build(me, seed=0):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 2))
    torch.manual_seed(100 + me.rank)
    return model


def shifted(me):
    model = build(me)
    with torch.no_grad():
        model[0].weight += me.rank
    return model


def frozen_last(me):
    model = build(me)
    model[3].weight.requires_grad = False
    return model


def without_dropout(me):
    model = build(me)
    model[2].p = 0.0
    return model


def with_batch_norm():
    return nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))


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


class WithHead(nn.Module):
    """A wrapped backbone, and what the loss has of its own."""

    def __init__(self, me, backbone, wrapped=False, temperature=False):
        super().__init__()
        self.backbone, self.temperature = backbone, None
        self.head = DDP(nn.Linear(2, 2)) if wrapped else nn.Linear(2, 2)
        if temperature:
            self.head, self.temperature = nn.Identity(), nn.Parameter(torch.ones(()))

    def forward(self, x):
        z = self.head(self.backbone(x))
        return z if self.temperature is None else z * self.temperature


class Codebook(nn.Module):
    """A codebook that each forward moves towards its own batch."""

    def __init__(self, averaged=False):
        super().__init__()
        self.inner, self.averaged = nn.Linear(6, 2), averaged
        self.register_buffer("codebook", torch.randn(2, 6))

    def forward(self, x):
        if self.training:
            mean = x.mean(0)
            if self.averaged:
                dist.all_reduce(mean)
                mean /= dist.get_world_size()
            self.codebook.mul_(0.9).add_(0.1 * mean)
        return self.inner(x - self.codebook[0])


class CutOff(nn.Module):
    """An adapter whose output is detached."""

    def __init__(self):
        super().__init__()
        self.adapter, self.last = nn.Linear(6, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.last(self.adapter(x).detach())


class channels_last(nn.Module):  # noqa: N801
    """A depthwise convolution, whose input has other strides than its weight."""

    def __init__(self, other):
        super().__init__()
        self.one, self.last, self.other = nn.Conv2d(6, 6, 3, groups=6), nn.Linear(6, 2), other

    def forward(self, x):
        x = x[:, :, None, None].repeat(1, 1, 5, 5)
        x = x.to(memory_format=torch.channels_last) if self.other else x.contiguous()
        return self.last(self.one(x).mean((2, 3)))
