"""Three pieces of a training that can be resumed: a sampler, a wrap, and a fingerprint."""

import hashlib

import torch
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import Sampler


class ResumableSampler(Sampler):
    """DistributedSampler, but an epoch can start after the `drawn` samples that are done."""

    def __init__(self, size, rank, world_size, seed):
        self.size, self.rank, self.world_size, self.seed = size, rank, world_size, seed
        self.epoch = self.drawn = 0

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.size, generator=g).tolist()
        order += order[: -len(order) % self.world_size]  # padding, before the cut: lesson 04
        return iter(order[self.drawn :][self.rank :: self.world_size])


def wrap(model, device):
    """DDP, past its first backward: it then lays its buckets out anew, and from three ranks on
    another layout sums in another order. A resumed run would make one step in the first one."""
    ddp = DDP(model)
    model.eval()  # no dropout, so no random number is drawn
    ddp(torch.zeros(2, 1, 8, 8, device=device)).sum().backward()
    model.train()
    model.zero_grad()
    return ddp


def digest(*modules):
    """A fingerprint of every bit of the modules' parameters."""
    bits = hashlib.sha256()
    for module in modules:
        for p in module.parameters():
            bits.update(p.detach().cpu().numpy())
    return bits.hexdigest()[:16]
