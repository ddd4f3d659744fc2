"""Join by hand: what torchrun tells each process, and the lines that use it."""

import gc
import os
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401  before init: see "Leave in order"
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import results
from ddp_course.models import ToyNet

TOLD = ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
TOLD += ("MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RESTART_COUNT")


def setup():
    """Join the group; returns the device of this rank."""
    local_rank = int(os.environ["LOCAL_RANK"])
    gpus = torch.cuda.device_count()
    if gpus >= int(os.environ["LOCAL_WORLD_SIZE"]) and os.environ.get("DDP_COURSE_DEVICE") != "cpu":
        device, backend = torch.device("cuda", local_rank), "nccl"
        torch.cuda.set_device(device)  # before anything else touches CUDA
    else:
        device, backend = torch.device("cpu"), "gloo"
    # init_method is env:// by default: RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
    dist.init_process_group(backend, timeout=timedelta(seconds=30))
    return device


def cleanup():
    """Leave the group; call it when the function that held the DDP model has returned."""
    gc.collect()
    dist.destroy_process_group()


def step(device):
    """Something to clean up after: one step of a DDP model, which is gone when this returns."""
    torch.manual_seed(0)
    model = DDP(ToyNet().to(device))
    model(torch.ones(4, 10, device=device)).sum().backward()


def gloo_threads():
    """Threads of gloo in this process (Linux tells their names)."""
    names = [p.read_text().strip() for p in Path("/proc/self/task").glob("*/comm")]
    return sum("gloo" in name for name in names)


@record
def main():
    device = setup()
    step(device)
    mine = {name: os.environ.get(name) for name in TOLD} | {"pid": os.getpid()}
    everyone = [None] * dist.get_world_size()
    dist.all_gather_object(everyone, mine)
    inside = gloo_threads()
    cleanup()
    if mine["RANK"] == "0":
        for name in TOLD:
            print(f"{name:27}", "  ".join(f"{r[name] or '-':9}" for r in everyone))
        threads = {"inside": inside, "after": gloo_threads()}
        results.save("02_setup", {"ranks": everyone, "gloo_threads": threads}, device)


if __name__ == "__main__":
    main()
