"""Messages between two ranks, a barrier, and groups of some ranks."""

import time

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.process_group import process_group


def send_recv(me, x):
    """From rank 0 to rank 1; the others do nothing: this is not a collective."""
    if me.rank == 0:
        dist.send(x, dst=1)
    elif me.rank == 1:
        dist.recv(x, src=0)
    return x


def isend_irecv(me, x):
    """Everyone to the right at once: both are posted before either is waited for."""
    out = torch.empty_like(x)
    right, left = (me.rank + 1) % me.world_size, (me.rank - 1) % me.world_size
    for work in (dist.isend(x, right), dist.irecv(out, left)):
        work.wait()
    return out


def batch_isend_irecv(me, x):
    """The same as one call: what NCCL needs where two sends must make progress together."""
    out = torch.empty_like(x)
    right, left = (me.rank + 1) % me.world_size, (me.rank - 1) % me.world_size
    ops = [dist.P2POp(dist.isend, x, right), dist.P2POp(dist.irecv, out, left)]
    for work in dist.batch_isend_irecv(ops):
        work.wait()
    return out


def barrier(me):
    """Rank r comes r/10 s late. Seconds from the last arrival to this rank's leaving."""
    time.sleep(me.rank / 10)
    arrived = torch.tensor([time.time()], dtype=torch.float64, device=me.device)
    dist.barrier()
    left = time.time()
    dist.all_reduce(arrived, dist.ReduceOp.MAX)
    return left - arrived.item()


def subgroups(me):
    """Even ranks sum among themselves, odd ranks too. Every rank makes both groups."""
    everyone = range(me.world_size)
    groups = [dist.new_group([r for r in everyone if r % 2 == half]) for half in (0, 1)]
    x = torch.tensor([me.rank + 1.0], device=me.device)
    dist.all_reduce(x, group=groups[me.rank % 2])
    return x.item()


@record
def main():
    with process_group(point_to_point=True) as me:
        mine = {"after": {}, "barrier": barrier(me), "subgroup": subgroups(me)}
        for op in (send_recv, isend_irecv, batch_isend_irecv):
            x = torch.arange(me.world_size, dtype=torch.float32, device=me.device)
            mine["after"][op.__name__] = op(me, x + 10 * (me.rank + 1)).tolist()
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("02_some_ranks", {"ranks": everyone}, me.device)
        if me.rank == 0:
            print("even ranks hold", everyone[0]["subgroup"], "odd", everyone[1]["subgroup"])


if __name__ == "__main__":
    main()
