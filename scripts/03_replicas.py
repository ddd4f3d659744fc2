"""What makes the replicas equal, and what DDP never looks at. Equal digests: equal to the bit."""

import hashlib

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import results
from ddp_course.process_group import process_group


def build(me, seed):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 1)).to(me.device)


def batch(me):
    g = torch.Generator().manual_seed(100 + me.rank)  # every rank has data of its own
    return torch.randn(32, 16, generator=g).to(me.device)


def digest(tensors):
    data = b"".join(t.detach().cpu().numpy().tobytes() for t in tensors)
    return hashlib.sha256(data).hexdigest()[:8]


def at_wrap(me):
    model = build(me, seed=me.rank)  # every rank starts from other weights
    model[1].running_mean += me.rank  # and from another buffer
    before = digest(model.state_dict().values())
    DDP(model)
    return {"before": before, "after": digest(model.state_dict().values())}


def mean_or_sum(me):
    own, wrapped = build(me, 0), build(me, 0)
    ddp = DDP(wrapped)  # keep it: a wrapper that is gone before backward averages nothing
    for model in (own, ddp):
        model(batch(me)).mean().backward()
    return {"own": own[0].bias.grad.tolist(), "ddp": wrapped[0].bias.grad.tolist()}


def after_steps(me, sabotage=None):
    model = build(me, 0)
    ddp = DDP(model)
    lr = 0.2 if sabotage == "other learning rate" and me.rank == 1 else 0.1
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr, momentum=0.9)
    if sabotage == "changed by hand" and me.rank == 1:
        with torch.no_grad():
            model[2].bias += 1
    for _ in range(5):
        optimizer.zero_grad()
        ddp(batch(me)).square().mean().backward()
        optimizer.step()
    return {
        "parameters": digest(model.parameters()),
        "gradients": digest(p.grad for p in model.parameters()),
        "momentum": digest(s["momentum_buffer"] for s in optimizer.state.values()),
        "buffers": digest(model.buffers()),
    }


@record
def main():
    with process_group() as me:
        mine = {"at_wrap": at_wrap(me), "mean": mean_or_sum(me)}
        for sabotage in (None, "other learning rate", "changed by hand"):
            mine[sabotage or "nothing"] = after_steps(me, sabotage)
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("03_replicas", {"ranks": everyone}, me.device)
        if me.rank == 0:
            print("looked at:", ", ".join(mine))


if __name__ == "__main__":
    main()
