"""Train a small CNN on handwritten digits, on every rank of the launch."""

import argparse

import torch
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record  # (1)
from torch.nn.parallel import DistributedDataParallel as DDP  # (4)
from torch.utils.data import DataLoader, DistributedSampler  # (3)

from ddp_course import data, results
from ddp_course.models import SmallCNN
from ddp_course.process_group import process_group  # (1)
from ddp_course.tools.errors import CourseError  # (3)


def settings(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch", type=int, default=32, help="images per step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


@torch.no_grad()
def evaluate(model, test, device):
    model.eval()
    images, labels = next(iter(DataLoader(test, batch_size=len(test))))
    return (model(images.to(device)).argmax(1) == labels.to(device)).float().mean().item()


def train(args, me):  # (1) who am I?
    device = me.device  # (2) not "cuda": this rank's own
    torch.manual_seed(args.seed)
    images = data.load("digits")
    # (3) each rank draws its own share; the ranks' batches add up to args.batch
    if args.batch % me.world_size:
        raise CourseError(f"--batch {args.batch} does not divide by {me.world_size} ranks")
    sampler = DistributedSampler(images.train, seed=args.seed)
    loader = DataLoader(images.train, args.batch // me.world_size, sampler=sampler)
    model = SmallCNN(images.shape, images.classes).to(device)
    ddp = DDP(model, device_ids=[device] if device.type == "cuda" else None)  # (4) wrap
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9)

    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)  # (3) another order in each epoch
        for pixels, labels in loader:
            loss = F.cross_entropy(ddp(pixels.to(device)), labels.to(device))  # (4) not model()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        if me.rank == 0:  # (5) one voice
            print(f"epoch {epoch}: last loss {loss.item():.4f}")

    if me.rank == 0:  # (5) one evaluation, one file; model, not ddp: no collective in here
        accuracy = evaluate(model, images.test, device)
        print(f"accuracy on held-out digits: {accuracy:.4f}")
        results.save("03_ddp", {"accuracy": accuracy}, device)
        torch.save(model.state_dict(), results.path("03_ddp").with_suffix(".pt"))


@record  # (1) a traceback of this rank in torchrun's report
def main():  # (1)
    args = settings()  # (1)
    with process_group() as me:  # (1)
        train(args, me)  # (1)


if __name__ == "__main__":
    main()  # (1)
