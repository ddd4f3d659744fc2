"""When does each bucket leave and arrive, and how much of that hides behind backward?

Everything runs on the CPU over gloo, also where there are GPUs: a GPU works asynchronously, and
clocks read by the CPU would show when work was queued, not when it was done.
"""

import os
import queue
import statistics
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

LAYERS, WIDTH, BATCH = 6, 512, 512  # 6 MiB of weights
CAPS_MB = (1000, 3, 1, 0.001)
SLOW = {"alpha": 0.003, "bandwidth": 120e6}  # seconds a message, bytes a second


class Link(threading.Thread):
    """Lets each message take as long as on a slower link, without using the CPU."""

    def __init__(self):
        super().__init__(daemon=True)
        self.messages = queue.SimpleQueue()
        self.start()

    def run(self):
        while (message := self.messages.get()) is not None:
            nbytes, arrived = message
            time.sleep(SLOW["alpha"] + nbytes / SLOW["bandwidth"])  # one after the other
            arrived()


class Watch:
    """A DDP model that notes when gradients are ready, and when buckets leave and arrive."""

    def __init__(self, cap_mb, link=None):
        torch.manual_seed(0)
        layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)]
        self.ddp, self.link = DDP(nn.Sequential(*layers), bucket_cap_mb=cap_mb), link
        for p in self.ddp.parameters():
            p.register_post_accumulate_grad_hook(self.ready)
        self.ddp.register_comm_hook(None, self.send)
        self.steps = []

    def ready(self, _):
        self.steps[-1]["ready"].append(time.perf_counter())

    def send(self, _, bucket):
        now = self.steps[-1]
        sent = {"bytes": bucket.buffer().nbytes, "ready": len(now["ready"])}
        now["buckets"].append(sent)
        sent["leaves"] = time.perf_counter()
        mean = bucket.buffer().div_(dist.get_world_size())
        averaged = torch.futures.Future()  # what DDP waits for

        def arrived():
            sent["arrives"] = time.perf_counter()
            averaged.set_result(mean)

        def summed(_):  # may run on backward's own thread: it must not sleep
            if self.link:
                self.link.messages.put((sent["bytes"], arrived))
            else:
                arrived()

        dist.all_reduce(mean, async_op=True).get_future().then(summed)
        return averaged

    def step(self, x):
        dist.barrier()
        now = {"ready": [], "buckets": [], "forward": time.perf_counter()}
        self.steps.append(now)
        loss = self.ddp(x).square().mean()
        now["backward"] = time.perf_counter()
        loss.backward()
        now["end"] = time.perf_counter()


def in_ms(step):
    """The step's moments in milliseconds from the start of forward."""

    def since(t):
        return 1e3 * (t - step["forward"])

    return {
        "backward": since(step["backward"]),
        "computed": since(step["ready"][-1]),
        "end": since(step["end"]),
        "buckets": [[since(b["leaves"]), since(b["arrives"])] for b in step["buckets"]],
        "bytes": [b["bytes"] for b in step["buckets"]],
        "ready": [b["ready"] for b in step["buckets"]],
    }


def measure(me, rounds=10):
    """{link: {cap in MB: its steps}}; all kinds take turns, and the first two rounds don't count.

    In its first step DDP has one bucket only, in the second it uses the rebuilt ones.
    """
    x = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(me.rank))
    link = Link()
    kinds = {
        (name, cap): Watch(cap, through)
        for name, through in (("this machine", None), ("slow link", link))
        for cap in CAPS_MB
    }
    for _ in range(rounds):
        for watch in kinds.values():
            watch.step(x)
    link.messages.put(None)
    link.join()
    found = {}
    for (name, cap), watch in kinds.items():
        found.setdefault(name, {})[cap] = [in_ms(s) for s in watch.steps[2:]]
    return found


@record
def main():
    os.environ["DDP_COURSE_DEVICE"] = "cpu"
    torch.set_num_threads(1)
    with process_group() as me:
        mine = measure(me)
        results.save("06_overlap", {"ranks": gather(mine), "slow": SLOW})
        if me.rank == 0:
            for name, by_cap in mine.items():
                typical = {c: statistics.median(s["end"] for s in v) for c, v in by_cap.items()}
                print(f"{name}: ms a step by bucket cap in MB:",
                      ", ".join(f"{c}: {ms:.0f}" for c, ms in typical.items()))  # fmt: skip


if __name__ == "__main__":
    main()
