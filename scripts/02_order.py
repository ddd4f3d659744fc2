"""Two surprises without any error: read before wait(), and another order on rank 1."""

import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.process_group import process_group


def read_too_early(me):
    """async_op returns at once; the tensor is not ready before wait()."""
    dist.barrier()  # side by side; then rank 1 comes late
    if me.rank == 1:
        time.sleep(1)
    t = torch.tensor([me.rank + 1.0], device=me.device)
    work = dist.all_reduce(t, async_op=True)
    early = {"completed": work.is_completed(), "early": t.item()}
    work.wait()
    return early | {"after_wait": t.item()}


def other_order(me):
    """Same kind, same shape, another order on rank 1."""
    a = torch.tensor([me.rank + 1.0], device=me.device)
    b = torch.tensor([10 * (me.rank + 1.0)], device=me.device)
    for t in (a, b) if me.rank == 0 else (b, a):
        dist.all_reduce(t)
    return {"a": a.item(), "b": b.item()}


@record
def main():
    with process_group() as me:
        mine = {"read_too_early": read_too_early(me), "other_order": other_order(me)}
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("02_order", {"ranks": everyone}, me.device)
        if me.rank == 0:
            for case in mine:
                print(f"{case}\n  rank 0: {mine[case]}\n  rank 1: {everyone[1][case]}")


if __name__ == "__main__":
    main()
