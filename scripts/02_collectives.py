"""Every collective once, on small numbers: element i of rank r is 10(r + 1) + i."""

import time
import warnings

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.process_group import process_group


def start(me):
    return torch.arange(me.world_size, dtype=torch.float32, device=me.device) + 10 * (me.rank + 1)


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
    return x if me.rank == 0 else x[:0]  # elsewhere x holds nothing to rely on


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


def reduce_scatter(me, x):
    out = x.new_empty(1)
    dist.reduce_scatter(out, list(x.split(1)))
    return out


def all_to_all(me, x):
    out = torch.empty_like(x)
    dist.all_to_all_single(out, x)
    return out


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


def broadcast_object_list(me):
    box = [{"epoch": 3, "name": "best"} if me.rank == 0 else None]
    dist.broadcast_object_list(box, src=0)
    return box[0]


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


def two_halves(me, integers):
    """Largest gap between all_reduce and reduce_scatter + all_gather on the same numbers."""
    torch.manual_seed(me.rank)
    x = torch.randn(me.world_size * 1000, device=me.device)
    x = (100 * x).round() if integers else x
    parts = [p.contiguous() for p in x.clone().chunk(me.world_size)]
    mine = torch.empty_like(parts[0])
    dist.reduce_scatter(mine, parts)
    dist.all_gather(parts, mine)
    dist.all_reduce(x)
    return (x - torch.cat(parts)).abs().max().item()


class AllReduce(torch.autograd.Function):
    """An all-reduce that autograd knows: every output depends on every rank's input."""

    @staticmethod
    def forward(ctx, x):
        y = x.clone()
        dist.all_reduce(y)
        return y

    @staticmethod
    def backward(ctx, grad):
        grad = grad.clone()
        dist.all_reduce(grad)
        return grad


def gradients(me):
    """x.grad after y = all-reduce of x and y.sum().backward() on every rank."""
    found = {}
    for name in ("dist.all_reduce", "AllReduce"):
        x = torch.tensor([2.0], device=me.device, requires_grad=True)
        y = x * 1
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # newer versions of torch warn here, rightly
            if name == "AllReduce":
                y = AllReduce.apply(y)
            else:
                dist.all_reduce(y)
            y.sum().backward()
        found[name] = x.grad.item()
    out = [torch.empty_like(x) for _ in range(me.world_size)]
    dist.all_gather(out, x * 1)
    found["all_gather's outputs require grad"] = any(o.requires_grad for o in out)
    return found


@record
def main():
    ops = (broadcast, scatter, gather, reduce, all_reduce_sum, all_reduce_avg, all_reduce_max)
    ops += (all_gather, reduce_scatter, all_to_all, send_recv, isend_irecv)
    with process_group(point_to_point=True) as me:
        mine = {"after": {op.__name__: op(me, start(me)).tolist() for op in ops}}
        mine["object"], mine["barrier"] = broadcast_object_list(me), barrier(me)
        mine["gap"] = {"integers": two_halves(me, True), "random": two_halves(me, False)}
        mine["gradients"], mine["subgroup"] = gradients(me), subgroups(me)
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("02_collectives", {"ranks": everyone}, me.device)
        if me.rank == 0:
            print(f"{len(ops)} operations, {me.world_size} ranks, backend {dist.get_backend()}")


if __name__ == "__main__":
    main()
