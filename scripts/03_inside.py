"""Watch DDP: what it copies at wrap, when it sends, what it sends, what it never looks at."""

import hashlib
import logging

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import results
from ddp_course.process_group import process_group


class Backwards(nn.Module):
    """Registered as first, second, third; used as third, second, first."""

    def __init__(self):
        super().__init__()
        self.first, self.second, self.third = (nn.Linear(512, 512) for _ in range(3))
        self.norm = nn.BatchNorm1d(512)

    def forward(self, x):
        return self.first(self.second(self.norm(self.third(x)).relu()).relu())


def wrap(model, me, **kwargs):
    return DDP(model, **kwargs)


def batch(me):
    g = torch.Generator().manual_seed(100 + me.rank)  # every rank has data of its own
    return torch.randn(32, 512, generator=g).to(me.device)


def digest(tensors):
    """Equal digests: equal to the bit."""
    data = b"".join(t.detach().cpu().numpy().tobytes() for t in tensors)
    return hashlib.sha256(data).hexdigest()[:8]


def at_wrap(me):
    torch.manual_seed(me.rank)  # every rank starts from other weights
    model = Backwards().to(me.device)
    model.norm.running_mean += me.rank  # and from another buffer
    before = digest(model.state_dict().values())
    wrap(model, me)
    return {"before": before, "after": digest(model.state_dict().values())}


def order_and_buckets(me, steps=3):
    """Order in which gradients become ready, and the buckets that leave, in each step."""
    torch.manual_seed(0)
    model = Backwards().to(me.device)
    ddp = wrap(model, me, bucket_cap_mb=1)  # a layer has 1.002 MiB
    names = {id(p): name for name, p in model.named_parameters()}
    ready, left, events = [], [], []

    def note(p):
        ready[-1].append(names[id(p)])
        events[-1].append(names[id(p)])

    def watch(state, bucket):
        params = [names[id(p)] for p in bucket.parameters()]
        left[-1].append({"bytes": bucket.buffer().nbytes, "parameters": params})
        events[-1].append(f"bucket {bucket.index()} leaves")
        return allreduce_hook(state, bucket)

    for p in model.parameters():
        p.register_post_accumulate_grad_hook(note)

    ddp.register_comm_hook(None, watch)
    for _ in range(steps):
        ready.append([])
        left.append([])
        events.append([])
        ddp(batch(me)).square().mean().backward()
    return {"ready": ready, "buckets": left, "events": events}


def average_or_sum(me):
    """This rank's own gradient, and what DDP makes of it."""
    torch.manual_seed(0)
    model = nn.Linear(512, 1, bias=False).to(me.device)
    model(batch(me)).mean().backward()
    own = model.weight.grad[0, :3].tolist()
    model.weight.grad = None
    ddp = wrap(model, me)  # keep it: a wrapper that is garbage after forward averages nothing
    ddp(batch(me)).mean().backward()
    return {"own": own, "ddp": model.weight.grad[0, :3].tolist()}


def after_steps(me, sabotage=None, steps=5):
    """Digests after some steps; a sabotage on rank 1 shows what DDP does not look at."""
    torch.manual_seed(0)
    model = Backwards().to(me.device)
    ddp = wrap(model, me)
    lr = 0.2 if sabotage == "other learning rate" and me.rank == 1 else 0.1
    optimizer = torch.optim.SGD(ddp.parameters(), lr=lr, momentum=0.9)
    if sabotage == "changed by hand" and me.rank == 1:
        with torch.no_grad():
            model.first.bias += 1
    for _ in range(steps):
        optimizer.zero_grad()
        ddp(batch(me)).square().mean().backward()
        optimizer.step()
    return {
        "parameters": digest(model.parameters()),
        "gradients": digest(p.grad for p in model.parameters()),
        "momentum": digest(s["momentum_buffer"] for s in optimizer.state.values()),
        "buffers": digest(model.buffers()),
    }


def compiled(me):
    """First key of the state_dict; backend "eager" needs no C++ compiler."""
    torch._logging.set_logs(dynamo=logging.ERROR)
    outside = torch.compile(wrap(nn.Linear(4, 2).to(me.device), me), backend="eager")
    inside = wrap(torch.compile(nn.Linear(4, 2).to(me.device), backend="eager"), me)
    found = {}
    for name, model in (("compile(DDP(m))", outside), ("DDP(compile(m))", inside)):
        model(torch.ones(3, 4, device=me.device)).sum().backward()
        found[name] = next(iter(model.state_dict()))
    return found


@record
def main():
    with process_group() as me:
        mine = {"at_wrap": at_wrap(me), "order": order_and_buckets(me)}
        mine["average"] = average_or_sum(me)
        mine["steps"] = {
            s or "nothing": after_steps(me, s)
            for s in (None, "other learning rate", "changed by hand")
        }
        mine["compiled"] = compiled(me)
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("03_inside", {"ranks": everyone}, me.device)
        if me.rank == 0:
            print("observed", ", ".join(mine))


if __name__ == "__main__":
    main()
