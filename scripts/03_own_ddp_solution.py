"""The stages of 03_own_ddp.py, filled in; and a fifth, with no_sync."""

import runpy
from contextlib import contextmanager
from pathlib import Path

import torch
import torch.distributed as dist

own = runpy.run_path(str(Path(__file__).with_name("03_own_ddp.py")))
Wrapper, Flat = own["Wrapper"], own["Flat"]


class PerParameter(Wrapper):
    def finish(self):
        for p in self.trainable:
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad)


class Hooks(Wrapper):
    def __init__(self, module):
        super().__init__(module)
        self.on_the_way = []
        for p in self.trainable:
            p.register_post_accumulate_grad_hook(self.ready)

    def ready(self, p):
        p.grad /= dist.get_world_size()
        self.on_the_way.append(dist.all_reduce(p.grad, async_op=True))

    def finish(self):
        for work in self.on_the_way:
            work.wait()
        self.on_the_way.clear()


class Buckets(Wrapper):
    def __init__(self, module, cap=64 * 1024):
        super().__init__(module)
        self.buckets = [[]]
        for p in reversed(self.trainable):
            if sum(q.nbytes for q in self.buckets[-1]) >= cap:
                self.buckets.append([])
            self.buckets[-1].append(p)
            p.register_post_accumulate_grad_hook(self.ready)
        self.missing, self.on_the_way = [set(bucket) for bucket in self.buckets], []

    def ready(self, p):
        for missing in self.missing:
            missing.discard(p)
        # In order, also if a later bucket fills first: every rank must send in the same order.
        while len(self.on_the_way) < len(self.buckets) and not self.missing[len(self.on_the_way)]:
            flat = torch.cat([q.grad.flatten() for q in self.buckets[len(self.on_the_way)]])
            flat /= dist.get_world_size()
            self.on_the_way.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        for bucket, (flat, work) in zip(self.buckets, self.on_the_way):
            work.wait()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(part.view_as(p))
        self.missing, self.on_the_way = [set(bucket) for bucket in self.buckets], []


class NoSync(Buckets):
    """Inside no_sync() a backward only accumulates."""

    quiet = False

    @contextmanager
    def no_sync(self):
        self.quiet = True
        yield
        self.quiet = False

    def ready(self, p):
        if not self.quiet:
            super().ready(p)
