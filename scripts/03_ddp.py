"""Train a small CNN on handwritten digits, on every rank of the launch."""

import argparse
import os

import torch
import torch.distributed as dist  # (1)
import torch.distributed.nn.functional  # noqa: F401  (1) before init: see lesson 02
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP  # (4)
from torch.utils.data import DataLoader, DistributedSampler  # (3)

from ddp_course import data, results
from ddp_course.models import SmallCNN


def settings(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32, help="images per step, of all ranks")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


@torch.no_grad()
def evaluate(model, test, device):
    model.eval()
    images, labels = next(iter(DataLoader(test, batch_size=len(test))))
    return (model(images.to(device)).argmax(1) == labels.to(device)).float().mean().item()


def train(args, local_rank, on_gpu):
    rank, world_size = dist.get_rank(), dist.get_world_size()  # (1) who am I, how many are we?
    device = torch.device("cuda", local_rank) if on_gpu else torch.device("cpu")  # (2)
    torch.manual_seed(args.seed)
    images = data.load("digits")
    sampler = DistributedSampler(images.train, seed=args.seed)  # (3) each rank draws its share
    loader = DataLoader(images.train, args.batch // world_size, sampler=sampler)  # (3)
    model = SmallCNN(images.shape, images.classes).to(device)
    ddp = DDP(model, device_ids=[local_rank] if on_gpu else None)  # (4) wrap
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # (3) another order in each epoch
        losses = torch.zeros(len(loader), device=device)
        for step, (pixels, labels) in enumerate(loader):
            loss = F.cross_entropy(ddp(pixels.to(device)), labels.to(device))  # (4) not model()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses[step] = loss.detach()
        dist.all_reduce(losses, dist.ReduceOp.AVG)  # (5) of all ranks, on all ranks
        if rank == 0:  # (5) one voice
            print(f"epoch {epoch}: mean loss {losses.mean():.4f}")

    if rank == 0:  # (5) one evaluation, one file; model, not ddp: no collective in here
        accuracy = evaluate(model, images.test, device)
        print(f"accuracy on held-out digits: {accuracy:.4f}")
        results.save("03_ddp", {"accuracy": accuracy}, device)
        torch.save(model.state_dict(), results.path("03_ddp").with_suffix(".pt"))


if __name__ == "__main__":
    local_rank = int(os.environ["LOCAL_RANK"])  # (1)
    ranks_here = int(os.environ["LOCAL_WORLD_SIZE"])  # (2)
    on_gpu = torch.cuda.device_count() >= ranks_here  # (2) one for each rank of this node?
    on_gpu = on_gpu and os.environ.get("DDP_COURSE_DEVICE") != "cpu"  # (2)
    if on_gpu:  # (2)
        torch.cuda.set_device(local_rank)  # (2) before anything else touches CUDA
    dist.init_process_group("nccl" if on_gpu else "gloo")  # (1)
    train(settings(), local_rank, on_gpu)  # (1) a function: the model is gone when it returns
    dist.destroy_process_group()  # (1)
