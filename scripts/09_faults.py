"""Three ways to save or load that look right, each with several ranks."""

import time
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


def wrapped(me, seed=0):
    torch.manual_seed(seed)
    model = ToyNet().to(me.device)
    return model, DDP(model)


def first_words(error):
    return f"{type(error).__name__}: {str(error).splitlines()[0][:70]}"


def all_write(me, folder):
    """Every rank saves to one path. The unlucky order of events is forced here with barriers."""
    path = folder / "everybody.pt"
    torch.save(ToyNet().state_dict(), folder / f"own_{me.rank}.pt")
    content = (folder / f"own_{me.rank}.pt").read_bytes()
    half = len(content) // 2
    if me.rank == 0:  # rank 0 has written half ...
        file = open(path, "wb", buffering=0)  # noqa: SIM115
        file.write(content[:half])
    dist.barrier()
    if me.rank == 1:  # ... when rank 1 opens the file, which empties it, writes ... and is killed
        file = open(path, "wb", buffering=0)  # noqa: SIM115
        file.write(content[: half // 2])
        file.close()
    dist.barrier()
    if me.rank == 0:
        file.write(content[half:])
        file.close()
    dist.barrier()
    try:
        torch.load(path, weights_only=True)
    except Exception as error:
        return first_words(error)
    return "read without an error"


def read_early(me, folder, wait):
    """Rank 0 takes a second to write; the others read, after a barrier or without."""
    path = folder / f"late_{wait}.pt"
    if me.rank == 0:
        time.sleep(1.0)
        torch.save(ToyNet().state_dict(), path)
    if wait:
        dist.barrier()
    try:
        torch.load(path, map_location=me.device, weights_only=True)
        said = "read"
    except FileNotFoundError as error:
        said = type(error).__name__
    dist.barrier()
    return said


def rank_0_loads(me, folder, when):
    """Rank 0 alone loads: before the wrap, or after it. Loss on each rank, and the drift."""
    path = folder / "weights.pt"
    if me.rank == 0:
        torch.manual_seed(7)
        torch.save(ToyNet().state_dict(), path)
    dist.barrier()
    torch.manual_seed(0)
    model = ToyNet().to(me.device)
    if when == "before" and me.rank == 0:
        model.load_state_dict(torch.load(path, map_location=me.device, weights_only=True))
    ddp = DDP(model)
    if when == "after" and me.rank == 0:
        model.load_state_dict(torch.load(path, map_location=me.device, weights_only=True))
    return drift_after_training(me, model, ddp)


def rank_0_optimizer(me, everywhere):
    """The optimizer's state is loaded on rank 0 only; DDP never looks at it."""
    model, ddp = wrapped(me)
    before = torch.optim.Adam(model.parameters(), lr=0.01)
    train(me, ddp, before, steps=5)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if me.rank == 0 or everywhere:
        optimizer.load_state_dict(before.state_dict())
    return drift_after_training(me, model, ddp, optimizer)


def train(me, ddp, optimizer, steps):
    g = torch.Generator().manual_seed(me.rank)
    for _ in range(steps):
        x, y = torch.randn(16, 10, generator=g), torch.randn(16, 5, generator=g)
        optimizer.zero_grad()
        (ddp(x.to(me.device)) - y.to(me.device)).square().mean().backward()
        optimizer.step()


def drift_after_training(me, model, ddp, optimizer=None):
    train(me, ddp, optimizer or torch.optim.SGD(model.parameters(), lr=0.1), steps=5)
    mine = {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}
    everyone = gather(mine)
    return checks.parity(everyone[0], everyone).value


@record
def main():
    folder = Path(results.path("09_faults").with_suffix(""))
    with process_group() as me:
        if me.world_size < 2:
            raise CourseError("these are faults of several ranks: type  --nproc-per-node 2")
        folder.mkdir(parents=True, exist_ok=True)
        for old in folder.glob("*.pt") if me.rank == 0 else ():
            old.unlink()
        dist.barrier()
        mine = {
            "all write": all_write(me, folder),
            "read early": {str(wait): read_early(me, folder, wait) for wait in (False, True)},
            "rank 0 loads": {when: rank_0_loads(me, folder, when) for when in ("before", "after")},
            "optimizer on rank 0": rank_0_optimizer(me, everywhere=False),
            "optimizer everywhere": rank_0_optimizer(me, everywhere=True),
        }
        results.save("09_faults", {"ranks": gather(mine)}, me.device)
        if me.rank == 0:
            print("tried", ", ".join(mine))


if __name__ == "__main__":
    main()
