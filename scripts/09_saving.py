"""Two ways to save that look right, each with several ranks."""

import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.models import ToyNet
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather
from ddp_course.tools.errors import CourseError


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
        with open(path, "wb") as mine:
            mine.write(content[: half // 2])
    dist.barrier()
    if me.rank == 0:
        file.write(content[half:])
        file.close()
    dist.barrier()
    try:
        torch.load(path, weights_only=True)
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:70]}"
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


@record
def main():
    folder = Path(results.path("09_saving").with_suffix(""))
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
        }
        results.save("09_saving", {"ranks": gather(mine)}, me.device)


if __name__ == "__main__":
    main()
