"""A job that hangs, and torch's flight recorder dumped by each rank as NCCL's watchdog would.

    RANK=0 WORLD_SIZE=2 TORCH_FR_BUFFER_SIZE=2000 python fr_job.py CASE FOLDER

Files: FOLDER/dump_<rank>, pickles with stacks. Gloo needs torch >= 2.8 to record.
"""

import os
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

CASE, FOLDER = sys.argv[1], Path(sys.argv[2])
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])


def late():
    time.sleep(300)


def behind():
    """Rank 1 doesn't come to the third collective."""
    dist.all_reduce(torch.ones(3))
    dist.broadcast(torch.ones(2, 2), src=0)
    come()
    if RANK == 1:
        late()
    dist.all_reduce(torch.ones(5))


def backward():
    """Rank 1 doesn't come to the gradients' all_reduce."""
    model = DDP(torch.nn.Linear(4, 4))
    for _ in range(2):  # DDP rebuilds its buckets between these
        model(torch.ones(2, 4)).sum().backward()
    come()
    if RANK == 1:
        late()
    model(torch.ones(2, 4)).sum().backward()


def subgroup():
    """Ranks 0, 1 wait for 2, 3 in the world; 2 waits in its own group for 3, who is behind."""
    dist.new_group([0, 1], group_desc="left")
    right = dist.new_group([2, 3], group_desc="right")
    dist.all_reduce(torch.ones(3))
    if RANK > 1:
        dist.all_reduce(torch.ones(2, 2), group=right)
    come()
    if RANK == 3:
        late()
    if RANK == 2:
        dist.all_reduce(torch.ones(7), group=right)
    dist.all_reduce(torch.ones(5))


def kinds():
    """The second collective is a broadcast on rank 0, an all_reduce on rank 1."""
    dist.all_reduce(torch.ones(3))
    come()
    dist.all_reduce(torch.ones(4)) if RANK else dist.broadcast(torch.ones(4), src=0)


def sizes():
    """Of other sizes each; gloo ends a rank that gets too much, so each dumps as soon as it can."""
    dist.all_reduce(torch.ones(3))
    if RANK == 1:
        meet("dump_0")
    work = dist.all_reduce(torch.ones(4 + 2 * RANK), async_op=True)
    dump()
    meet("dump_1")
    del work  # kept until here: it is still open
    os._exit(0)


def shapes():
    """As many elements in another shape, which nobody notices; then rank 1 is behind."""
    dist.all_reduce(torch.ones(*((2, 3) if RANK else (3, 2))))
    come()
    if RANK == 1:
        late()
    dist.all_reduce(torch.ones(5))


def dump():
    from torch._C._distributed_c10d import _dump_fr_trace, _dump_fr_trace_json

    write(f"json_{RANK}", _dump_fr_trace_json(True, False))
    write(f"dump_{RANK}", _dump_fr_trace(True, True, False))


def write(name, data):
    (FOLDER / f"draft-{name}").write_bytes(data)
    (FOLDER / f"draft-{name}").rename(FOLDER / name)


def meet(*names):
    end = time.monotonic() + 60
    while not all((FOLDER / name).exists() for name in names):
        if time.monotonic() > end:
            os._exit(3)
        time.sleep(0.05)


def come():
    write(f"there-{RANK}", b"")


def watch():
    """Dump once all have come and had time to hang; end when all have dumped."""
    meet(*(f"there-{r}" for r in range(WORLD)))
    time.sleep(2)
    dump()
    meet(*(f"dump_{r}" for r in range(WORLD)))
    os._exit(0)


if __name__ == "__main__":
    store = dist.FileStore(str(FOLDER / "store"), WORLD)
    dist.init_process_group("gloo", rank=RANK, world_size=WORLD, store=store)
    if CASE != "sizes":
        threading.Thread(target=watch, daemon=True).start()
    globals()[CASE]()
