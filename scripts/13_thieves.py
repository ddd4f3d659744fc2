"""Who steals the time? Each thief is planted and switched off again, in turns, and looked at.

For each case and rank: where a step's time goes, and what torch.profiler says of the all-reduce.
On the CPU over gloo, also where there are GPUs: a planted sleep is as long there.
"""

import os
import time
from collections import Counter
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile
from torch.utils.data import DataLoader, Dataset

from ddp_course import results
from ddp_course.models import SmallCNN
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

IMAGE, BATCH, STEPS, ROUNDS = (3, 32, 32), 32, 6, 3
READ, LATE = 0.002, 0.04  # seconds: to read one image from a slow disk; that a rank is late


class Images(Dataset):
    def __init__(self, slow):
        self.slow = slow
        self.pixels = torch.randn(BATCH * STEPS, *IMAGE)

    def __len__(self):
        return len(self.pixels)

    def __getitem__(self, i):
        if self.slow:
            time.sleep(READ)
        return self.pixels[i], i % 10


class Trainer:
    """A loop that notes when each part of a step begins."""

    def __init__(self, me, slow_loader=False, slow_rank=False, tiny=False, threads=1, silent=False):
        torch.manual_seed(me.rank)
        self.late = LATE if slow_rank and me.rank == 1 else 0
        self.threads, self.silent = threads, silent
        model = nn.Sequential(nn.Flatten(), nn.Linear(3072, 10)) if tiny else SmallCNN(IMAGE)
        self.ddp = DDP(model)
        self.first = next(model.parameters())  # its gradient is the last one of a backward
        self.first.register_post_accumulate_grad_hook(self.computed)
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        self.loader = DataLoader(Images(slow_loader), BATCH)
        self.steps = []

    def computed(self, _):
        self.steps[-1]["wait"] = time.perf_counter()

    def epoch(self):
        torch.set_num_threads(self.threads)
        begin = time.perf_counter()
        for pixels, labels in self.loader:
            now = {"data": begin, "forward": time.perf_counter()}
            self.steps.append(now)
            with self.ddp.no_sync() if self.silent else nullcontext():
                loss = F.cross_entropy(self.ddp(pixels), labels)
                time.sleep(self.late)
                now["backward"] = time.perf_counter()
                loss.backward()
            now["optimizer"] = time.perf_counter()
            self.optimizer.step()
            self.optimizer.zero_grad()
            begin = now["end"] = time.perf_counter()
        torch.set_num_threads(1)


ORDER = ("data", "forward", "backward", "wait", "optimizer", "end")
CASES = {
    "healthy": {},
    "no communication": {"silent": True},
    "slow loader": {"slow_loader": True},
    "slow rank": {"slow_rank": True},
    "tiny model": {"tiny": True},
    "tiny model, no communication": {"tiny": True, "silent": True},
    "4 threads a rank": {"threads": 4},
}


def shares(steps):
    """Of the time of these steps, the share of each part."""
    parts = Counter()
    for step in steps:
        for name, after in zip(ORDER, ORDER[1:]):
            parts[name] += step[after] - step[name]
    total = sum(parts.values())
    return {name: seconds / total for name, seconds in parts.items()}


def look(trainer):
    """One epoch under torch.profiler: milliseconds of each all-reduce, and the top operations."""
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        trainer.epoch()
    reduces = [e.time_range.elapsed_us() / 1e3 for e in seen.events() if "gloo:all_red" in e.name]
    top = sorted(seen.key_averages(), key=lambda e: -e.self_cpu_time_total)[:5]
    return {
        "all-reduce ms": reduces,
        "top": [[e.key, e.count, e.self_cpu_time_total / 1e3] for e in top],
    }


def measure(me):
    trainers = {name: Trainer(me, **planted) for name, planted in CASES.items()}
    found = {name: {"seconds": [], "cpu": []} for name in CASES}
    for _ in range(ROUNDS):
        for name, trainer in trainers.items():
            dist.barrier()
            start, cpu = time.perf_counter(), time.process_time()
            trainer.epoch()
            busy = (time.process_time() - cpu) / (time.perf_counter() - start)
            dist.barrier()
            found[name]["seconds"].append((time.perf_counter() - start) / STEPS)
            found[name]["cpu"].append(busy)
    for name, trainer in trainers.items():
        last = trainer.steps[-STEPS:]
        zero = last[0]["data"]
        found[name]["timeline"] = [{k: 1e3 * (s[k] - zero) for k in ORDER} for s in last]
        found[name]["shares"] = shares(trainer.steps[STEPS:])  # the first epoch warms up
        dist.barrier()
        found[name] |= look(trainer)
    return found


@record
def main():
    os.environ["DDP_COURSE_DEVICE"] = "cpu"
    torch.set_num_threads(1)
    with process_group() as me:
        ranks = gather(measure(me))
        results.save("13_thieves", {"ranks": ranks, "cases": list(CASES), "order": ORDER})
        if me.rank == 0:
            for name in CASES:
                print(f"{name:30} {1e3 * min(ranks[0][name]['seconds']):7.1f} ms a step")


if __name__ == "__main__":
    main()
