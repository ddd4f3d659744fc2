"""In which order gradients become ready, and in which buckets they leave."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import results
from ddp_course.process_group import process_group

STEPS = 3


class Layers(nn.Module):
    """Registered as first, second, third; used as third, second, first, or the other way round."""

    def __init__(self, turned):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(512, 512) for _ in range(3))
        self.turned = turned

    def forward(self, x):
        order = (self.third, self.second, self.first)
        for layer in reversed(order) if self.turned else order:
            x = layer(x).relu()
        return x


def watch(me, turned=False):
    """For each step: what became ready and what left, in order; and the buckets."""
    torch.manual_seed(0)
    model = Layers(turned).to(me.device)
    ddp = DDP(model, bucket_cap_mb=1)  # a layer has 1.002 MiB
    names = {id(p): name for name, p in model.named_parameters()}
    events, buckets = [], []

    def leaves(state, bucket):
        params = [names[id(p)] for p in bucket.parameters()]
        buckets[-1].append({"bytes": bucket.buffer().nbytes, "parameters": params})
        events[-1].append(f"bucket {bucket.index()} leaves")
        return allreduce_hook(state, bucket)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(lambda p: events[-1].append(names[id(p)]))
    ddp.register_comm_hook(None, leaves)
    for _ in range(STEPS):
        events.append([])
        buckets.append([])
        ddp(torch.ones(4, 512, device=me.device)).square().mean().backward()
    return {"events": events, "buckets": buckets}


@record
def main():
    with process_group() as me:
        mine = {"alike": watch(me), "rank 1 turned": watch(me, turned=me.rank == 1)}
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("03_buckets", {"ranks": everyone}, me.device)
        if me.rank == 0:
            print("step 1:", ", ".join(mine["alike"]["events"][1]))


if __name__ == "__main__":
    main()
