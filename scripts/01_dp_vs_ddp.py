"""Train the digits CNN in one process, then with DDP: the same global batch, as many steps."""

import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from ddp_course import data, results
from ddp_course.models import SmallCNN
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import synchronize

BATCH, EPOCHS = 64, 6  # BATCH is that of all ranks together


def fit(model, loader, device):
    """Train; returns images per second after the first epoch, and bytes held."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen, start = 0, 0.0
    for epoch in range(EPOCHS):
        if epoch == 1:
            synchronize(device)
            start = time.perf_counter()
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(images) if epoch else 0
    synchronize(device)
    held = {"images_per_s": seen / (time.perf_counter() - start)}
    held["parameters"] = sum(p.nbytes for p in model.parameters())
    held["gradients"] = sum(p.grad.nbytes for p in model.parameters())
    held["optimizer"] = sum(s["momentum_buffer"].nbytes for s in optimizer.state.values())
    return held


@torch.no_grad()
def accuracy(model, test, device):
    images, labels = next(iter(DataLoader(test, batch_size=len(test))))
    return (model(images.to(device)).argmax(1) == labels.to(device)).float().mean().item()


@record
def main():
    images = data.load("digits")
    with process_group() as me:
        torch.manual_seed(0)
        model = SmallCNN().to(me.device)
        alone = [None]
        if me.rank == 0:  # the others wait at the next collective
            alone = [fit(model, DataLoader(images.train, BATCH, shuffle=True), me.device)]
        dist.broadcast_object_list(alone, src=0)

        torch.manual_seed(0)
        model = SmallCNN().to(me.device)
        loader = DataLoader(images.train, BATCH // me.world_size,
                            sampler=DistributedSampler(images.train, seed=0))  # fmt: skip
        ranks = [None] * me.world_size
        dist.all_gather_object(ranks, fit(DDP(model), loader, me.device))
        found = {"alone": alone[0], "ranks": ranks}
        found["accuracy"] = accuracy(model, images.test, me.device)
        results.save("01_dp_vs_ddp", found, me.device)
    if me.rank == 0:
        together = sum(held["images_per_s"] for held in ranks)
        print(f"one process: {alone[0]['images_per_s']:.0f} images/s")
        print(f"DDP, {me.world_size} ranks: {together:.0f} images/s in all")
        print(f"accuracy on held-out digits after DDP: {found['accuracy']:.3f}")


if __name__ == "__main__":
    main()
