"""What loader workers see of set_epoch, and of the seeds."""

import itertools
import random

import numpy as np
import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, Dataset, DistributedSampler, IterableDataset

from ddp_course import results
from ddp_course.process_group import process_group


class Draws(Dataset):
    """Item i: i, and a random number of each of three generators, as augmentation draws them."""

    def __len__(self):
        return 8

    def __getitem__(self, i):
        return torch.tensor([i, torch.rand(1).item(), np.random.rand(), random.random()])


class Shuffled(IterableDataset):
    """A stream that shuffles itself, by its epoch."""

    epoch = 0

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __iter__(self):
        g = torch.Generator().manual_seed(self.epoch)
        return iter(torch.randperm(8, generator=g).tolist())


def two_epochs(case):
    kept = {"batch_size": None, "num_workers": 1, "persistent_workers": True}
    if case == "stream, persistent workers":
        loader = DataLoader(Shuffled(), **kept)
        epochs = [loader.dataset.set_epoch(e) or [int(i) for i in loader] for e in (0, 1)]
    else:
        sampler = DistributedSampler(Draws(), 1, 0)
        loader = DataLoader(Draws(), sampler=sampler, **kept)
        steps = itertools.cycle(loader) if case == "itertools.cycle" else None
        epochs = []
        for epoch in (0, 1):
            sampler.set_epoch(epoch)
            items = itertools.islice(steps, 8) if steps else loader
            epochs.append([int(item[0]) for item in items])
    return epochs


def augmentation(me, seed, workers):
    """The random numbers of this rank's first item, by generator."""
    torch.manual_seed(seed)
    item = next(iter(DataLoader(Draws(), batch_size=None, num_workers=workers)))
    return dict(zip(("torch", "numpy", "random"), item[1:].tolist()))


@record
def main():
    with process_group() as me:
        cases = ("sampler, persistent workers", "stream, persistent workers", "itertools.cycle")
        mine = {"epochs": {case: two_epochs(case) for case in cases}}
        for seed in (0, me.rank):
            for workers in (0, 1):
                key = f"{'same seed' if seed == 0 else 'seed + rank'}, {workers} workers"
                mine.setdefault(key, augmentation(me, seed, workers))
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("04_workers", {"ranks": everyone}, me.device)
        if me.rank == 0:
            print("two epochs of:", "; ".join(cases))


if __name__ == "__main__":
    main()
