"""What each rank draws, from real loaders under DDP: the right way, three mistakes, two loaders."""

import os
import random

import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import (
    DataLoader,
    Dataset,
    DistributedSampler,
    IterableDataset,
    get_worker_info,
)

from ddp_course import results
from ddp_course.process_group import process_group

SAMPLES, EPOCHS = 13, 3


class Numbered(Dataset):
    """Sample i is i."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return torch.tensor([float(i)])


def drawn(me, variant):
    """Indices this rank trains on, by epoch; and its weight at the end."""
    sampler = DistributedSampler(Numbered(), seed=1000 * me.rank if variant == "other seeds" else 0)
    loader = DataLoader(Numbered(), batch_size=2, sampler=sampler)
    model = nn.Linear(1, 1).to(me.device)
    ddp = DDP(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4)
    ledger = []
    for epoch in range(EPOCHS):
        if variant != "set_epoch forgotten":
            sampler.set_epoch(epoch + me.rank if variant == "epoch differs by rank" else epoch)
        ledger.append([])
        for x in loader:
            ledger[-1] += x.flatten().int().tolist()
            optimizer.zero_grad()
            ddp(x.to(me.device)).square().mean().backward()
            optimizer.step()
    return {"ledger": ledger, "weight": model.weight.item()}


class Augmented(Numbered):
    """Each item is one random number from each of three generators, as augmentation draws them."""

    def __getitem__(self, i):
        return torch.tensor([torch.rand(1).item(), np.random.rand(), random.random()])


def augmentation(me, seed):
    """Random numbers in the first item of each of two workers."""
    torch.manual_seed(seed)
    loader = DataLoader(Augmented(), batch_size=1, num_workers=2)
    it = iter(loader)
    return [next(it)[0].tolist(), next(it)[0].tolist()]


class Where(Numbered):
    """Each item says which process made it, and with how many threads."""

    def __getitem__(self, i):
        return torch.tensor([os.getpid(), torch.get_num_threads()])


def workers(persistent):
    """Process ids of two workers in two epochs, and the threads of each."""
    loader = DataLoader(Where(), batch_size=1, num_workers=2, persistent_workers=persistent)
    epochs = [{tuple(item[0].tolist()) for item in loader} for _ in range(2)]
    pids = [sorted(pid for pid, _ in epoch) for epoch in epochs]
    return {"same processes": pids[0] == pids[1], "threads": max(t for e in epochs for _, t in e)}


class Stream(IterableDataset):
    """Twenty records. Nobody shards a stream for you: not DDP, not DataLoader, not the sampler."""

    def __init__(self, rank=0, world_size=1, by_worker=False):
        self.rank, self.world_size, self.by_worker = rank, world_size, by_worker

    def __iter__(self):
        info = get_worker_info()
        worker, workers = (info.id, info.num_workers) if info and self.by_worker else (0, 1)
        mine, of = self.rank * workers + worker, self.world_size * workers
        return iter(range(mine, 20, of))


def streamed(stream):
    return [int(i) for batch in DataLoader(stream, batch_size=4, num_workers=2) for i in batch]


@record
def main():
    with process_group() as me:
        mine = {"variants": {}}
        for variant in ("right", "set_epoch forgotten", "epoch differs by rank", "other seeds"):
            mine["variants"][variant] = drawn(me, variant)
        mine["same seed"] = augmentation(me, 0)
        mine["seed + rank"] = augmentation(me, me.rank)
        mine["workers"] = {str(flag): workers(flag) for flag in (False, True)}
        mine["stream"] = {
            "given whole": streamed(Stream()),
            "sharded by rank": streamed(Stream(me.rank, me.world_size)),
            "by rank and worker": streamed(Stream(me.rank, me.world_size, by_worker=True)),
        }
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("04_sampler", {"ranks": everyone}, me.device)
        if me.rank == 0:
            print("ran to the end:", ", ".join(mine["variants"]))


if __name__ == "__main__":
    main()
