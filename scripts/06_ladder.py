"""The same gradients, sent in four ways over the slow link: how long does a step take?"""

import os
import runpy
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

cells = runpy.run_path(str(Path(__file__).with_name("06_link.py")))
link, ROUNDS = cells["Link"](), 8


def backward(model, x):
    model.zero_grad()
    model(x).square().mean().backward()


def tensor_by_tensor(model, x):
    backward(model, x)
    for p in model.parameters():
        link.mean(p.grad).wait()


def all_at_once(model, x):
    backward(model, x)
    grads = [p.grad for p in model.parameters()]
    mean = link.mean(torch.cat([g.flatten() for g in grads])).wait()
    for g, new in zip(grads, mean.split([g.numel() for g in grads])):
        g.copy_(new.view_as(g))


def when_ready(model, x):
    futures = []
    hooks = [p.register_post_accumulate_grad_hook(lambda p: futures.append(link.mean(p.grad)))
             for p in model.parameters()]  # fmt: skip
    backward(model, x)
    torch.futures.wait_all(futures)
    for hook in hooks:
        hook.remove()


def compare(me):
    """{way: milliseconds of each step, messages and bytes of the last}, and the largest gap."""
    x = torch.randn(512, cells["WIDTH"], generator=torch.Generator().manual_seed(me.rank))
    ways = {"tensor by tensor": tensor_by_tensor, "all at once": all_at_once,
            "each when ready": when_ready, "DDP, six buckets": backward}  # fmt: skip
    models = {name: cells["model"]() for name in ways}
    models["DDP, six buckets"] = ddp = DDP(models["DDP, six buckets"], bucket_cap_mb=1)
    ddp.register_comm_hook(None, lambda _, bucket: link.mean(bucket.buffer()))
    found = {name: {"ms": []} for name in ways}
    for _ in range(ROUNDS):
        for name, way in ways.items():
            link.sent.clear()
            dist.barrier()
            start = time.perf_counter()
            way(models[name], x)
            found[name]["ms"].append(1e3 * (time.perf_counter() - start))
            found[name] |= {"messages": len(link.sent), "bytes": sum(link.sent)}
    grads = [dict(enumerate(p.grad for p in model.parameters())) for model in models.values()]
    return {"ways": found, "gap": checks.parity(grads[0], grads).value}


@record
def main():
    os.environ["DDP_COURSE_DEVICE"] = "cpu"
    torch.set_num_threads(1)
    with process_group() as me:
        results.save("06_ladder", {"ranks": gather(compare(me))})


if __name__ == "__main__":
    main()
