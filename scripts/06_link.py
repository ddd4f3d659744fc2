"""A slow link of our making, and a DDP model that notes when its buckets leave and arrive.

Everything runs on the CPU over gloo, also where there are GPUs: a GPU works asynchronously, and
clocks read by the CPU would show when work was queued, not when it was done.
"""

import queue
import threading
import time

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

LAYERS, WIDTH = 6, 512  # 6 MiB of weights
ALPHA, BANDWIDTH = 0.003, 120e6  # seconds a message, bytes a second


class Link(threading.Thread):
    """Averages over the ranks; if slow, a message then takes its time, without using the CPU."""

    def __init__(self, slow=True):
        super().__init__(daemon=True)
        self.slow, self.messages, self.sent = slow, queue.SimpleQueue(), []
        self.start()

    def run(self):
        while True:
            nbytes, arrived = self.messages.get()
            time.sleep(self.slow * (ALPHA + nbytes / BANDWIDTH))  # one after the other
            arrived()

    def mean(self, tensor, note=lambda: None):
        """A future of the average, in place; note() is called when it arrives."""
        averaged = torch.futures.Future()
        self.sent.append(tensor.nbytes)

        def arrived():
            note()
            averaged.set_result(tensor)

        def summed(_):  # may run on backward's own thread: it must not sleep
            self.messages.put((tensor.nbytes, arrived)) if self.slow else arrived()

        tensor.div_(dist.get_world_size())
        dist.all_reduce(tensor, async_op=True).get_future().then(summed)
        return averaged


def model():
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)]
    return nn.Sequential(*layers)


class Watch:
    """A DDP model over a link, and the moments of its steps."""

    def __init__(self, cap_mb, link):
        self.ddp, self.link, self.steps = DDP(model(), bucket_cap_mb=cap_mb), link, []
        for p in self.ddp.parameters():
            p.register_post_accumulate_grad_hook(self.ready)
        self.ddp.register_comm_hook(None, self.send)

    def ready(self, _):
        self.steps[-1]["ready"].append(time.perf_counter())

    def send(self, _, bucket):
        now = self.steps[-1]
        sent = {"ready": len(now["ready"]), "leaves": time.perf_counter()}
        now["buckets"].append(sent)
        return self.link.mean(
            bucket.buffer(), lambda: sent.update(arrives=time.perf_counter())
        )  # fmt: skip
