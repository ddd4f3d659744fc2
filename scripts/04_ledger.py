"""What each rank draws under DDP: the right way and five mistakes, none of which is an error."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset, DistributedSampler, WeightedRandomSampler

from ddp_course import results
from ddp_course.process_group import process_group

SAMPLES, EPOCHS = 13, 3
VARIANTS = ("right", "set_epoch forgotten", "epoch differs by rank", "seed differs by rank")
VARIANTS += ("no sampler", "WeightedRandomSampler")


class Numbered(Dataset):
    """Sample i is i."""

    def __len__(self):
        return SAMPLES

    def __getitem__(self, i):
        return torch.tensor([float(i)])


def loader_of(me, variant):
    seed = 1000 * me.rank if variant == "seed differs by rank" else 0
    sampler = DistributedSampler(Numbered(), seed=seed)
    if variant == "no sampler":
        return DataLoader(Numbered(), batch_size=2, shuffle=True)
    if variant == "WeightedRandomSampler":
        sampler = WeightedRandomSampler(torch.ones(SAMPLES), num_samples=SAMPLES)
    return DataLoader(Numbered(), batch_size=2, sampler=sampler)


def drawn(me, variant):
    """Samples this rank trains on, by epoch; and its weight at the end."""
    torch.manual_seed(me.rank if variant == "no sampler" else 0)
    loader = loader_of(me, variant)
    model = nn.Linear(1, 1).to(me.device)
    ddp = DDP(model)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=1e-4)
    ledger = []
    for epoch in range(EPOCHS):
        if hasattr(loader.sampler, "set_epoch") and variant != "set_epoch forgotten":
            loader.sampler.set_epoch(epoch + me.rank * (variant == "epoch differs by rank"))
        ledger.append([])
        for x in loader:
            ledger[-1] += x.flatten().int().tolist()
            optimizer.zero_grad()
            ddp(x.to(me.device)).square().mean().backward()
            optimizer.step()
    return {"ledger": ledger, "weight": model.weight.item()}


@record
def main():
    with process_group() as me:
        mine = {variant: drawn(me, variant) for variant in VARIANTS}
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("04_ledger", {"ranks": everyone}, me.device)
        if me.rank == 0:
            print("ran to the end:", ", ".join(mine))


if __name__ == "__main__":
    main()
