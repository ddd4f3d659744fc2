"""Do the course's helpers cost anything? scripts/03_ddp.py against the same loop in plain torch."""

import contextlib
import io
import os
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from importlib import import_module

import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_digits
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ddp_course import results
from ddp_course.process_group import process_group

EPOCHS, BATCH = 9, 32
course = import_module("03_ddp")


class PlainCNN(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.fc1, self.fc2 = nn.Linear(32 * 2 * 2, 128), nn.Linear(128, 10)

    def forward(self, x):
        x = self.pool(self.conv1(x).relu())
        x = self.pool(self.conv2(x).relu())
        return self.fc2(self.fc1(x.flatten(1)).relu())


def plain(me, n):
    """The loop of scripts/03_ddp.py, without anything of ours; n samples."""
    torch.manual_seed(0)
    digits = load_digits()
    images = torch.tensor(digits.images[:n, None] / 16, dtype=torch.float32)
    train = TensorDataset(images, torch.tensor(digits.target[:n]))
    sampler = DistributedSampler(train, seed=0)
    loader = DataLoader(train, BATCH // me.world_size, sampler=sampler)
    ddp = DDP(PlainCNN().to(me.device))
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.05, momentum=0.9)
    for epoch in range(EPOCHS):
        sampler.set_epoch(epoch)
        for pixels, labels in loader:
            loss = F.cross_entropy(ddp(pixels.to(me.device)), labels.to(me.device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


class Turns:
    """Two loops in two threads, a step each in turn: other load on the machine meets both alike."""

    def __init__(self, loops):
        self.loops, self.seconds = loops, {kind: [] for kind in loops}
        self.go = {kind: threading.Event() for kind in loops}

    def run(self):
        hook = register_optimizer_step_post_hook(lambda *_: self.after_step())
        with ThreadPoolExecutor(2) as pool:
            ends = [pool.submit(self.loop, kind) for kind in self.loops]
            self.go[next(iter(self.loops))].set()
            [end.result() for end in ends]
        hook.remove()
        return self.seconds

    def loop(self, kind):
        threading.current_thread().name = kind
        try:
            self.wait(kind)
            self.loops[kind]()
        finally:
            self.hand_over(kind)

    def after_step(self):
        kind = threading.current_thread().name
        self.seconds[kind].append(time.perf_counter() - self.began)
        self.hand_over(kind)
        self.wait(kind)

    def hand_over(self, kind):
        (other,) = set(self.go) - {kind}
        self.go[other].set()

    def wait(self, kind):
        self.go[kind].wait()
        self.go[kind].clear()
        self.began = time.perf_counter()


def measure(me):
    """Two halves, each {kind: seconds of each step}: who begins has a little more to do."""
    args = course.settings(["--epochs", str(EPOCHS), "--batch", str(BATCH)])
    n = len(course.data.load("digits").train)
    here = me.device.index or 0, me.device.type == "cuda"
    loops = {"course": lambda: course.train(args, *here), "plain": lambda: plain(me, n)}
    halves = []
    for order in (loops, dict(reversed(loops.items()))):
        with contextlib.redirect_stdout(io.StringIO()):
            seconds = Turns(order).run()
        halves.append({kind: times[len(times) // 10 :] for kind, times in seconds.items()})
    return halves


@record
def main():
    os.environ["DDP_COURSE_RUNS"] = str(results.path("13_overhead").parent / "13_overhead")
    with process_group() as me:
        found = measure(me)
        del os.environ["DDP_COURSE_RUNS"]  # what 03_ddp wrote meanwhile stays beside
        results.save("13_overhead", {"halves": found}, me.device)
        if me.rank == 0:
            for kind in found[0]:
                seconds = statistics.median(t for half in found for t in half[kind])
                print(f"{kind:8} {1e3 * seconds:.1f} ms a step")


if __name__ == "__main__":
    main()
