"""The data of audit_loops.py."""

import torch
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    TensorDataset,
    WeightedRandomSampler,
)

DATA = TensorDataset(
    torch.randn(48, 6, generator=torch.Generator().manual_seed(0)),
    torch.randn(48, 2, generator=torch.Generator().manual_seed(1)),
)


def split(me, dataset=DATA, **kwargs):
    sampler = DistributedSampler(dataset, me.world_size, me.rank, **kwargs)
    return DataLoader(dataset, 4, sampler=sampler)


class Stream(IterableDataset):
    """A rank's part, in an order that set_epoch changes."""

    def __init__(self, rank, world_size):
        self.rank, self.world_size, self.epoch = rank, world_size, 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        order = torch.randperm(len(DATA), generator=torch.Generator().manual_seed(self.epoch))
        return (DATA[i] for i in order[self.rank :: self.world_size])


def stream(me):
    return Stream(me.rank, me.world_size)


def weighted(seed):
    weights, generator = torch.arange(1.0, 49.0), torch.Generator().manual_seed(seed)
    return DataLoader(DATA, 4, sampler=WeightedRandomSampler(weights, 24, generator=generator))


class Blurred(Dataset):
    """An augmentation: the same sample never has the same bits."""

    def __len__(self):
        return len(DATA)

    def __getitem__(self, i):
        return DATA[i][0] + 0.1 * torch.randn(6), DATA[i][1]


class Deaf(Blurred):
    """Gives the next sample, whatever the index."""

    at = 0

    def __getitem__(self, i):
        self.at += 1
        return DATA[self.at % len(DATA)]


def other_order(me):
    order = torch.randperm(48, generator=torch.Generator().manual_seed(me.rank))
    return TensorDataset(*(t[order] for t in DATA.tensors))
