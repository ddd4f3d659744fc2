"""DDP written five times, from the plainest to one with buckets and no_sync."""

from contextlib import contextmanager

import torch
import torch.distributed as dist


class PerParameter:
    """Stage 1: after backward, one all-reduce for each parameter."""

    def __init__(self, module):
        self.module = module
        # parameters() lists a tied parameter once; a frozen one has no gradient to send.
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        for tensor in module.state_dict().values():
            dist.broadcast(tensor, src=0)

    def __call__(self, *inputs):
        return self.module(*inputs)

    def refuse_unused(self):
        names = {id(p): name for name, p in self.module.named_parameters()}
        unused = [names[id(p)] for p in self.parameters if p.grad is None]
        if unused:
            raise RuntimeError(f"no gradient for {', '.join(unused)}: unused in forward?")

    def finish(self):
        """Call between backward and step."""
        self.refuse_unused()
        for p in self.parameters:
            dist.all_reduce(p.grad)
            p.grad /= dist.get_world_size()


class Flat(PerParameter):
    """Stage 2: all gradients in one buffer, one all-reduce."""

    def finish(self):
        self.refuse_unused()
        flat = torch.cat([p.grad.flatten() for p in self.parameters])
        dist.all_reduce(flat)
        flat /= dist.get_world_size()
        for p, part in zip(self.parameters, flat.split([p.numel() for p in self.parameters])):
            p.grad.copy_(part.view_as(p))


class Hooks(PerParameter):
    """Stage 3: each gradient leaves as soon as it is ready, while backward goes on."""

    def __init__(self, module):
        super().__init__(module)
        self.on_the_way = []
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.ready)

    def ready(self, p):
        self.on_the_way.append((p, dist.all_reduce(p.grad, async_op=True)))

    def finish(self):
        self.refuse_unused()
        for p, work in self.on_the_way:
            work.wait()
            p.grad /= dist.get_world_size()
        self.on_the_way.clear()


class Buckets(PerParameter):
    """Stage 4: gradients travel in buckets of about cap bytes, last layer first."""

    def __init__(self, module, cap=256 * 1024):
        super().__init__(module)
        self.buckets, size = [[]], 0
        for p in reversed(self.parameters):
            if size + p.nbytes > cap and self.buckets[-1]:
                self.buckets.append([])
                size = 0
            self.buckets[-1].append(p)
            size += p.nbytes
        self.bucket_of = {p: b for b, bucket in enumerate(self.buckets) for p in bucket}
        self.waiting_for = [len(bucket) for bucket in self.buckets]
        self.on_the_way = {}
        for p in self.parameters:
            p.register_post_accumulate_grad_hook(self.ready)

    def ready(self, p):
        b = self.bucket_of[p]
        self.waiting_for[b] -= 1
        if self.waiting_for[b] < 0:
            raise RuntimeError("a second backward before finish(): use no_sync() to accumulate")
        # In order, also if a later bucket fills first: every rank must send in the same order.
        while len(self.on_the_way) < len(self.buckets):
            b = len(self.on_the_way)
            if self.waiting_for[b]:
                break
            flat = torch.cat([q.grad.flatten() for q in self.buckets[b]])
            self.on_the_way[b] = flat, dist.all_reduce(flat, async_op=True)

    def finish(self):
        self.refuse_unused()
        if len(self.on_the_way) < len(self.buckets):
            raise RuntimeError("a bucket did not leave: a parameter had no gradient in this step")
        for b, (flat, work) in self.on_the_way.items():
            work.wait()
            flat /= dist.get_world_size()
            for p, part in zip(self.buckets[b], flat.split([p.numel() for p in self.buckets[b]])):
                p.grad.copy_(part.view_as(p))
        self.waiting_for = [len(bucket) for bucket in self.buckets]
        self.on_the_way.clear()


class NoSync(Buckets):
    """Stage 5: micro-steps that only accumulate."""

    quiet = False

    @contextmanager
    def no_sync(self):
        self.quiet = True
        try:
            yield
        finally:
            self.quiet = False

    def ready(self, p):
        if not self.quiet:
            super().ready(p)
