"""Collectives with a source or a destination; element i of rank r is 10(r + 1) + i."""

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.process_group import process_group


def broadcast(me, x):
    dist.broadcast(x, src=0)
    return x


def scatter(me, x):
    out = x.new_empty(1)
    dist.scatter(out, list(x.split(1)) if me.rank == 0 else None, src=0)
    return out


def gather(me, x):
    out = [x.new_empty(1) for _ in range(me.world_size)] if me.rank == 0 else None
    dist.gather(x[:1].clone(), out, dst=0)
    return torch.cat(out) if out else x[:0]


def reduce(me, x):
    dist.reduce(x, dst=0)
    return x if me.rank == 0 else x[:0]  # elsewhere x is scratch space: don't rely on it


def broadcast_object_list(me):
    box = [{"epoch": 3, "name": "best"} if me.rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


@record
def main():
    with process_group() as me:
        mine = {"after": {}, "object": broadcast_object_list(me)}
        for op in (broadcast, scatter, gather, reduce):
            x = torch.arange(me.world_size, dtype=torch.float32, device=me.device)
            mine["after"][op.__name__] = op(me, x + 10 * (me.rank + 1)).tolist()
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("02_one_to_all", {"ranks": everyone}, me.device)
        if me.rank == 0:
            print(f"{len(mine['after'])} operations on {me.world_size} ranks")


if __name__ == "__main__":
    main()
