"""Three ways to wait for somebody who doesn't come; a timeout of a second ends each."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.process_group import process_group


def impatient_group():
    """A group with a timeout of one second, made by ranks that are side by side."""
    dist.barrier()
    return dist.new_group(timeout=timedelta(seconds=1))


def send_send(me, numbers):
    """Both send first; each send waits until the other receives."""
    group = impatient_group()
    t = torch.ones(numbers, device=me.device)
    try:
        dist.send(t, 1 - me.rank, group=group)
        dist.recv(t, 1 - me.rank, group=group)
    except RuntimeError as error:
        return str(error)


def absent(me):
    """Rank 1 does not come to the barrier; rank 0 waits for as long as the timeout says."""
    group = impatient_group()
    start = time.monotonic()
    error = None
    if me.rank == 0:
        try:
            dist.barrier(group)
        except RuntimeError as e:
            error = str(e)
    return {"error": error, "seconds": time.monotonic() - start}


def lonely_new_group(me):
    """new_group on rank 0 only. Afterwards the ranks count their groups differently."""
    if me.rank == 0:
        try:
            dist.new_group(timeout=timedelta(seconds=1))
        except RuntimeError as error:
            return str(error).splitlines()[0]


@record
def main():
    with process_group() as me:
        mine = {"send_send": [send_send(me, 1), send_send(me, 4_000_000)]}
        mine["absent"] = absent(me)
        mine["lonely_new_group"] = lonely_new_group(me)  # last: no group can be made after it
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("02_waiting", {"ranks": everyone}, me.device)
        if me.rank == 0:
            print("waited, and went on:", ", ".join(mine))


if __name__ == "__main__":
    main()
