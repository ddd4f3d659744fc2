"""Options of the DDP wrapper: what they hold in memory, and what an unused layer costs."""

import statistics
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, results
from ddp_course.models import SmallCNN
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather, synchronize


def held(me, view):
    """Bytes of gradients and buckets, counted by the memory they lie in."""
    ddp = DDP(SmallCNN().to(me.device), gradient_as_bucket_view=view)
    memory = {}

    def note(_, bucket):
        storage = bucket.buffer().untyped_storage()
        memory[storage.data_ptr()] = storage.nbytes()
        return allreduce_hook(None, bucket)

    ddp.register_comm_hook(None, note)
    for _ in range(3):
        memory.clear()  # buckets of the step before
        ddp.zero_grad()
        ddp(torch.ones(8, 1, 8, 8, device=me.device)).sum().backward()
    for p in ddp.parameters():
        storage = p.grad.untyped_storage()
        memory[storage.data_ptr()] = storage.nbytes()
    return sum(memory.values()) / sum(p.nbytes for p in ddp.parameters())


class Many(nn.Module):
    """Many small layers, and one that forward leaves out."""

    def __init__(self, layers=60, width=32):
        super().__init__()
        self.used = nn.Sequential(*(nn.Linear(width, width) for _ in range(layers)))
        self.spare = nn.Linear(width, width)

    def forward(self, x):
        for layer in self.used:
            x = x + layer(x).relu() / 8
        return x


def directions(model):
    """Each gradient divided by its length, so that small ones count as much as large ones."""
    return {k: p.grad / p.grad.norm() for k, p in model.used.named_parameters()}


def options(me, rounds=40):
    """What an unused layer costs: milliseconds a step, buckets in each, gap to one process."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(8 * me.world_size, 32, generator=g).to(me.device)

    def loss(model, part):
        return model(part).square().mean()

    torch.manual_seed(0)
    alone = Many().to(me.device)
    loss(alone, x).backward()
    one = directions(alone)
    kinds = {
        "spare layer removed": {},
        "find_unused_parameters": {"find_unused_parameters": True},
        "static_graph": {"static_graph": True},
    }
    ddps, buckets, ms = {}, {k: [] for k in kinds}, {k: [] for k in kinds}
    for name, kwargs in kinds.items():
        torch.manual_seed(0)
        model = Many()
        if not kwargs:
            del model.spare
        ddps[name] = DDP(model.to(me.device), bucket_cap_mb=0.1, **kwargs)

        def count(_, bucket, seen=buckets[name]):
            seen[-1] += 1
            return allreduce_hook(None, bucket)

        ddps[name].register_comm_hook(None, count)
    for _ in range(rounds):  # in turns, so that all share the machine's noise
        for name, ddp in ddps.items():
            ddp.zero_grad()
            buckets[name].append(0)
            dist.barrier()
            start = time.perf_counter()
            loss(ddp, x[me.rank * 8 : (me.rank + 1) * 8]).backward()
            synchronize(me.device)
            ms[name].append(1e3 * (time.perf_counter() - start))
    return {
        name: {
            "ms": statistics.median(ms[name][2:]),
            "buckets": buckets[name][:4],
            "gap": checks.parity(one, [directions(ddp.module)]).value,
        }
        for name, ddp in ddps.items()
    }


@record
def main():
    with process_group() as me:
        mine = {"options": options(me)}
        mine["held"] = {str(view): held(me, view) for view in (False, True)}
        results.save("06_options", {"ranks": gather(mine)}, me.device)
        if me.rank == 0:
            print(f"{len(mine['options'])} ways with an unused layer")


if __name__ == "__main__":
    main()
