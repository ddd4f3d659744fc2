"""Who has to load, and when? Four ways with several ranks, and how far the replicas drift."""

from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, results
from ddp_course.models import ToyNet
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather
from ddp_course.tools.errors import CourseError


def train(me, ddp, optimizer, steps=5):
    g = torch.Generator().manual_seed(me.rank)
    for _ in range(steps):
        x, y = torch.randn(16, 10, generator=g), torch.randn(16, 5, generator=g)
        optimizer.zero_grad()
        (ddp(x.to(me.device)) - y.to(me.device)).square().mean().backward()
        optimizer.step()


def drift(me, ddp, optimizer):
    """Train, then the largest difference between two ranks' weights."""
    train(me, ddp, optimizer)
    everyone = gather({k: v.detach().cpu() for k, v in ddp.module.state_dict().items()})
    return checks.parity(everyone[0], everyone).value


def rank_0_loads(me, path, when):
    """Rank 0 alone loads the weights: before the wrap, or after it."""
    torch.manual_seed(0)
    model = ToyNet().to(me.device)
    if when == "before" and me.rank == 0:
        model.load_state_dict(torch.load(path, map_location=me.device, weights_only=True))
    ddp = DDP(model)
    if when == "after" and me.rank == 0:
        model.load_state_dict(torch.load(path, map_location=me.device, weights_only=True))
    return drift(me, ddp, torch.optim.SGD(model.parameters(), lr=0.1))


def optimizer_loads(me, everywhere):
    """The optimizer's state is loaded on every rank, or on rank 0 only."""
    torch.manual_seed(0)
    ddp = DDP(ToyNet().to(me.device))
    before = torch.optim.Adam(ddp.parameters(), lr=0.01)
    train(me, ddp, before)
    optimizer = torch.optim.Adam(ddp.parameters(), lr=0.01)
    if me.rank == 0 or everywhere:
        optimizer.load_state_dict(before.state_dict())
    return drift(me, ddp, optimizer)


@record
def main():
    path = Path(results.path("09_loading").with_suffix(".pt"))
    with process_group() as me:
        if me.world_size < 2:
            raise CourseError("these are faults of several ranks: type  --nproc-per-node 2")
        if me.rank == 0:
            torch.manual_seed(7)
            torch.save(ToyNet().state_dict(), path)
        dist.barrier()
        drifts = {
            "before": rank_0_loads(me, path, "before"),
            "after": rank_0_loads(me, path, "after"),
            "optimizer on rank 0": optimizer_loads(me, everywhere=False),
            "optimizer everywhere": optimizer_loads(me, everywhere=True),
        }
        results.save("09_loading", drifts, me.device)


if __name__ == "__main__":
    main()
