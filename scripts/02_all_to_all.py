"""Collectives in which no rank is special; element i of rank r is 10(r + 1) + i."""

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.process_group import process_group


def all_reduce_sum(me, x):
    dist.all_reduce(x)
    return x


def all_reduce_avg(me, x):
    dist.all_reduce(x, dist.ReduceOp.AVG)
    return x


def all_reduce_max(me, x):
    dist.all_reduce(x, dist.ReduceOp.MAX)
    return x


def all_gather(me, x):
    out = [x.new_empty(1) for _ in range(me.world_size)]
    dist.all_gather(out, x[:1].clone())
    return torch.cat(out)


def all_gather_into_tensor(me, x):
    out = torch.empty_like(x)  # the same into one flat tensor, as FSDP uses it
    dist.all_gather_into_tensor(out, x[:1].clone())
    return out


def reduce_scatter(me, x):
    out = x.new_empty(1)
    dist.reduce_scatter(out, list(x.split(1)))
    return out


def reduce_scatter_tensor(me, x):
    out = x.new_empty(1)  # the same from one flat tensor, as FSDP uses it
    dist.reduce_scatter_tensor(out, x)
    return out


def all_to_all(me, x):
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out


@record
def main():
    ops = (all_reduce_sum, all_reduce_avg, all_reduce_max, all_gather, all_gather_into_tensor)
    ops += (reduce_scatter, reduce_scatter_tensor, all_to_all)
    with process_group() as me:
        mine = {"after": {}}
        for op in ops:
            x = torch.arange(me.world_size, dtype=torch.float32, device=me.device)
            mine["after"][op.__name__] = op(me, x + 10 * (me.rank + 1)).tolist()
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("02_all_to_all", {"ranks": everyone}, me.device)
        if me.rank == 0:
            print(f"{len(ops)} operations on {me.world_size} ranks")


if __name__ == "__main__":
    main()
