"""Options of the DDP wrapper: what an unused layer costs in three ways."""

import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather, synchronize

KINDS = {"spare layer removed": {}, "find_unused_parameters": {"find_unused_parameters": True},
         "static_graph": {"static_graph": True}}  # fmt: skip


class Many(nn.Module):
    """Sixty small layers, and one that forward leaves out."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.used = nn.Sequential(*(nn.Linear(32, 32) for _ in range(60)))
        self.spare = nn.Linear(32, 32)

    def forward(self, x):
        for layer in self.used:
            x = x + layer(x).relu() / 8
        return x


def directions(model):
    """Each gradient divided by its length, so that small ones count as much as large ones."""
    return {k: p.grad / p.grad.norm() for k, p in model.used.named_parameters()}


def count(buckets, bucket):
    buckets[-1] += 1
    return allreduce_hook(None, bucket)


def measure(me, rounds=40):
    """By kind: milliseconds a backward, buckets in each, gap to one process."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(8 * me.world_size, 32, generator=g).to(me.device)
    alone = Many().to(me.device)
    alone(x).square().mean().backward()
    ddps, found = {}, {name: {"buckets": [], "ms": []} for name in KINDS}
    for name, options in KINDS.items():
        model = Many()
        if not options:
            del model.spare
        ddps[name] = DDP(model.to(me.device), bucket_cap_mb=0.1, **options)
        ddps[name].register_comm_hook(found[name]["buckets"], count)
    for _ in range(rounds):  # in turns, so that all share the machine's noise
        for name, ddp in ddps.items():
            ddp.zero_grad()
            found[name]["buckets"].append(0)
            dist.barrier()
            start = time.perf_counter()
            ddp(x[me.rank * 8 : (me.rank + 1) * 8]).square().mean().backward()
            synchronize(me.device)
            found[name]["ms"].append(1e3 * (time.perf_counter() - start))
    for name, now in found.items():
        gap = checks.parity(directions(alone), [directions(ddps[name].module)]).value
        now |= {"ms": sorted(now["ms"])[rounds // 2], "buckets": now["buckets"][:4], "gap": gap}
    return found


@record
def main():
    with process_group() as me:
        results.save("06_options", {"ranks": gather({"options": measure(me)})}, me.device)


if __name__ == "__main__":
    main()
