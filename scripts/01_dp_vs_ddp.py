"""Train the digits CNN with DDP, and with DataParallel where there are GPUs for it."""

import resource
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from ddp_course import data, hardware, results
from ddp_course.models import SmallCNN
from ddp_course.process_group import process_group

BATCH, EPOCHS = 32, 8  # the batch is per rank: DDP's N ranks make steps of N * 32


def fit(model, loader, device):
    """Train; returns images per second after the first epoch, and bytes held."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    seen, start = 0, 0.0
    for epoch in range(EPOCHS):
        if epoch == 1:
            start = time.perf_counter()
        if isinstance(loader.sampler, DistributedSampler):
            loader.sampler.set_epoch(epoch)
        for images, labels in loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            seen += len(images) if epoch else 0
    loss.item()  # waits for the GPU
    held = {"images_per_s": seen / (time.perf_counter() - start)}
    held["parameters"] = sum(p.nbytes for p in model.parameters())
    held["gradients"] = sum(p.grad.nbytes for p in model.parameters())
    held["optimizer"] = sum(s["momentum_buffer"].nbytes for s in optimizer.state.values())
    if device.type == "cuda":
        held["peak"] = torch.cuda.max_memory_allocated(device)
    else:  # of the whole process, most of it torch itself; Linux counts in KiB
        held["peak"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    return held


@torch.no_grad()
def accuracy(model, test, device):
    images, labels = next(iter(DataLoader(test, batch_size=len(test))))
    return (model(images.to(device)).argmax(1) == labels.to(device)).float().mean().item()


def train_ddp(me, images):
    torch.manual_seed(0)
    model = SmallCNN(images.shape, images.classes).to(me.device)
    ddp = DDP(model)
    sampler = DistributedSampler(images.train, seed=0)
    held = fit(ddp, DataLoader(images.train, BATCH, sampler=sampler), me.device)
    ranks = [None] * me.world_size
    dist.all_gather_object(ranks, held)
    return {"ranks": ranks, "accuracy": accuracy(model, images.test, me.device)}


def train_dp(images, gpus):
    """One process, all GPUs: the batch is split on GPU 0 and scattered to the others."""
    torch.manual_seed(0)
    device = torch.device("cuda:0")
    for i in range(gpus):
        torch.cuda.reset_peak_memory_stats(i)
    model = torch.nn.DataParallel(SmallCNN(images.shape, images.classes).to(device))
    held = fit(model, DataLoader(images.train, BATCH * gpus, shuffle=True), device)
    held["peak_by_gpu"] = [torch.cuda.max_memory_allocated(i) for i in range(gpus)]
    return {"all": held, "accuracy": accuracy(model, images.test, device)}


@record
def main():
    images = data.load("digits")
    with process_group() as me:
        found = {"ddp": train_ddp(me, images)}
        results.save("01_dp_vs_ddp", found, me.device)
    if me.rank != 0:
        return  # the other ranks leave, and with them their hold on the GPUs
    for rank, held in enumerate(found["ddp"]["ranks"]):
        rate, peak = held["images_per_s"], held["peak"] / 2**20
        print(f"DDP rank {rank}: {rate:.0f} images/s, peak {peak:.0f} MiB")
    print(f"DDP accuracy on held-out digits: {found['ddp']['accuracy']:.3f}")
    if hardware.count_gpus() < 2 or me.device.type == "cpu":
        print("DataParallel: skipped: needs 2 GPUs")
        return
    found["dp"] = train_dp(images, hardware.count_gpus())
    results.save("01_dp_vs_ddp", found, me.device)
    peaks = [f"{p / 2**20:.0f}" for p in found["dp"]["all"]["peak_by_gpu"]]
    print(f"DP: {found['dp']['all']['images_per_s']:.0f} images/s, peaks by GPU: {peaks} MiB")


if __name__ == "__main__":
    main()
