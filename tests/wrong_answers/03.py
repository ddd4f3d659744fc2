"""Lesson 03: wrong answers, each with what the check must say, and other right ones.

Those to scripts/03_own_ddp.py are run by tests/workers/exercises.py.
"""

import runpy
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn

from wrong_answers import right, wrong

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
Wrapper = runpy.run_path(str(SCRIPTS / "03_own_ddp.py"))["Wrapper"]
solution = runpy.run_path(str(SCRIPTS / "03_own_ddp_solution.py"))
PerParameter, Hooks, Buckets = (solution[k] for k in ("PerParameter", "Hooks", "Buckets"))
Flat = solution["Flat"]


@wrong("PerParameter", "are the starts equal, is it the mean")
class Sum(Wrapper):
    def finish(self):
        for p in self.trainable:
            dist.all_reduce(p.grad)


@wrong("PerParameter", "are the starts equal, is it the mean")
class OwnStarts(Wrapper):
    def __init__(self, module):
        nn.Module.__init__(self)
        self.module = module
        self.trainable = [p for p in module.parameters() if p.requires_grad]

    finish = PerParameter.finish


@wrong("PerParameter", "are the starts equal, is it the mean")
class NothingSent(Wrapper):
    def finish(self):
        pass


@wrong("PerParameter", "are the starts equal, is it the mean")
class FirstOnly(Wrapper):
    def finish(self):
        p = self.trainable[0]
        p.grad /= dist.get_world_size()
        dist.all_reduce(p.grad)


@wrong("PerParameter", "are the starts equal, is it the mean")
class DividedTwice(Wrapper):
    def finish(self):
        for p in self.trainable:
            p.grad /= dist.get_world_size()
            dist.all_reduce(p.grad, dist.ReduceOp.AVG)


@wrong("PerParameter", "make the wrapper an nn.Module")
class NoModule:
    def __init__(self, module):
        self.wrapped = PerParameter(module)

    def __call__(self, *inputs):
        return self.wrapped(*inputs)

    def finish(self):
        self.wrapped.finish()


@wrong("PerParameter", "are the starts equal, is it the mean")
class AveragedWeights(Wrapper):
    def finish(self):
        for p in self.trainable:
            dist.all_reduce(p.data, dist.ReduceOp.AVG)


@wrong("PerParameter", "messages for 8 parameters")
class FlatAgain(Flat):
    pass


@right("PerParameter")
class DividedAfter(Wrapper):
    def finish(self):
        for p in self.trainable:
            dist.all_reduce(p.grad)
            p.grad.div_(dist.get_world_size())


@right("PerParameter")
class Average(Wrapper):
    def finish(self):
        for p in reversed(self.trainable):
            dist.all_reduce(p.grad, op=dist.ReduceOp.AVG)


@right("PerParameter")
class NewTensors(Wrapper):
    def finish(self):
        for p in self.trainable:
            mean = p.grad.clone() / dist.get_world_size()
            dist.all_reduce(mean)
            p.grad = mean


@right("PerParameter")
class AllAtOnce(Wrapper):
    def finish(self):
        works = [dist.all_reduce(p.grad, async_op=True) for p in self.trainable]
        for work, p in zip(works, self.trainable):
            work.wait()
            p.grad *= 1 / dist.get_world_size()


@right("PerParameter")
class ByName(Wrapper):
    def finish(self):
        for _, p in self.module.named_parameters():
            if p.grad is not None:
                dist.all_reduce(p.grad, dist.ReduceOp.AVG)


@wrong("Hooks", "nothing is sent before the last gradient is ready")
class SentAtTheEnd(Hooks):
    def ready(self, p):
        self.on_the_way.append(p)
        if len(self.on_the_way) == len(self.trainable):
            for q in self.on_the_way:
                q.grad /= dist.get_world_size()
            self.on_the_way = [dist.all_reduce(q.grad, async_op=True) for q in self.on_the_way]


@wrong("Hooks", "send when it is ready")
class SentInFinish(Hooks):
    def ready(self, p):
        pass

    finish = PerParameter.finish


@wrong("Hooks", "async_op=True")
class Waiting(Hooks):
    def ready(self, p):
        p.grad /= dist.get_world_size()
        dist.all_reduce(p.grad)


@wrong("Hooks", "is it the mean, in every step?")
class NeverDivided(Hooks):
    def ready(self, p):
        self.on_the_way.append(dist.all_reduce(p.grad, async_op=True))


@wrong("Hooks", "is it the mean, in every step?")
class WeightsOnly(Hooks):
    def ready(self, p):
        if p.dim() > 1:
            super().ready(p)


@wrong("Hooks", "waits for a message of an earlier step")
class FirstStepOnly(Hooks):
    def ready(self, p):
        if len(self.on_the_way) < len(self.trainable):
            super().ready(p)

    def finish(self):
        for work in self.on_the_way:
            work.wait()


@wrong("Hooks", "async_op=True")
class WaitingAverage(Hooks):
    def ready(self, p):
        dist.all_reduce(p.grad, dist.ReduceOp.AVG)


@wrong("Hooks", "it waits in backward")
class WaitsAtOnce(Hooks):
    def ready(self, p):
        p.grad /= dist.get_world_size()
        dist.all_reduce(p.grad, async_op=True).wait()


@right("Hooks")
class DividedInFinish(Hooks):
    def ready(self, p):
        self.on_the_way.append((p, dist.all_reduce(p.grad, async_op=True)))

    def finish(self):
        while self.on_the_way:
            p, work = self.on_the_way.pop()
            work.wait()
            p.grad /= dist.get_world_size()


@right("Hooks")
class ByAverage(Hooks):
    def ready(self, p):
        op = dist.ReduceOp.AVG
        self.on_the_way.append(dist.all_reduce(p.grad, op, async_op=True))


@right("Hooks")
class InADict(Hooks):
    def __init__(self, module):
        super().__init__(module)
        self.works = {}

    def ready(self, p):
        p.grad.mul_(1 / dist.get_world_size())
        self.works[p] = dist.all_reduce(p.grad, async_op=True)

    def finish(self):
        for p in self.trainable:
            self.works.pop(p).wait()


@right("Hooks")
class Copies(Hooks):
    def ready(self, p):
        mean = p.grad / dist.get_world_size()
        self.on_the_way.append((p, mean, dist.all_reduce(mean, async_op=True)))

    def finish(self):
        for p, mean, work in self.on_the_way:
            work.wait()
            p.grad = mean
        self.on_the_way = []


@right("Hooks")
class WithFutures(Hooks):
    def ready(self, p):
        p.grad /= dist.get_world_size()
        self.on_the_way.append(dist.all_reduce(p.grad, async_op=True).get_future())

    def finish(self):
        for future in self.on_the_way:
            future.wait()
        self.on_the_way.clear()


@wrong("Buckets", "nothing is sent before the last gradient is ready")
class OneBucket(Buckets):
    def __init__(self, module):
        super().__init__(module, cap=2**40)


@wrong("Buckets", "is it the mean, in every step?")
class LastBucketForgotten(Buckets):
    def __init__(self, module):
        super().__init__(module)
        self.buckets = self.buckets[:-1] or self.buckets
        self.missing = [set(bucket) for bucket in self.buckets]


@wrong("Buckets", "is it the mean, in every step?")
class NotCopiedBack(Buckets):
    def finish(self):
        for _, work in self.on_the_way:
            work.wait()
        self.missing, self.on_the_way = [set(bucket) for bucket in self.buckets], []


@wrong("Buckets", "waits for a message of an earlier step")
class NotReset(Buckets):
    def finish(self):
        for bucket, (flat, work) in zip(self.buckets, self.on_the_way):
            work.wait()
            for p, part in zip(bucket, flat.split([p.numel() for p in bucket])):
                p.grad.copy_(part.view_as(p))


@wrong("Buckets", "send when it is ready")
class AllInFinish(Buckets):
    def ready(self, p):
        pass

    def finish(self):
        self.missing = [set() for _ in self.buckets]
        Buckets.ready(self, None)
        super().finish()


@wrong("Buckets", "is it the mean, in every step?")
class WrongOrderBack(Buckets):
    def finish(self):
        for bucket in self.buckets:
            bucket.reverse()
        super().finish()


@wrong("Buckets", "two neighbouring buckets fit into one")
class HooksAgain(Hooks):
    pass


@wrong("Buckets", "does bucket b wait for b - 1?")
class NoTurns(Buckets):
    """Each bucket is sent when it is full, whatever its number."""

    def ready(self, p):
        for b, missing in enumerate(self.missing):
            if p in missing:
                missing.discard(p)
                if not missing:
                    flat = torch.cat([q.grad.flatten() for q in self.buckets[b]])
                    flat /= dist.get_world_size()
                    self.on_the_way.append((b, flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        for b, flat, work in self.on_the_way:
            work.wait()
            for p, part in zip(self.buckets[b], flat.split([p.numel() for p in self.buckets[b]])):
                p.grad.copy_(part.view_as(p))
        self.missing, self.on_the_way = [set(bucket) for bucket in self.buckets], []


@wrong("Buckets", "two neighbouring buckets fit into one")
class Smaller(Buckets):
    def __init__(self, module):
        super().__init__(module, cap=1024)


@right("Buckets")
class Counting(Wrapper):
    """Counts instead of sets, and closes a bucket before it goes over the cap."""

    def __init__(self, module, cap=64 * 1024):
        super().__init__(module)
        self.groups, held = [[]], 0
        for p in self.trainable[::-1]:
            if held + p.nbytes > cap and self.groups[-1]:
                self.groups.append([])
                held = 0
            self.groups[-1].append(p)
            held += p.nbytes
        self.group_of = {p: i for i, group in enumerate(self.groups) for p in group}
        for p in self.trainable:
            p.register_post_accumulate_grad_hook(self.ready)
        self.reset()

    def reset(self):
        self.left, self.sent = [len(group) for group in self.groups], []

    def ready(self, p):
        self.left[self.group_of[p]] -= 1
        while len(self.sent) < len(self.groups) and self.left[len(self.sent)] == 0:
            flat = torch.cat([q.grad.reshape(-1) for q in self.groups[len(self.sent)]])
            self.sent.append((flat, dist.all_reduce(flat, dist.ReduceOp.AVG, async_op=True)))

    def finish(self):
        for group, (flat, work) in zip(self.groups, self.sent):
            work.wait()
            at = 0
            for p in group:
                p.grad = flat[at : at + p.numel()].view_as(p).clone()
                at += p.numel()
        self.reset()


@right("Buckets")
class AveragedBuckets(Buckets):
    def ready(self, p):
        for missing in self.missing:
            missing.discard(p)
        for b in range(len(self.on_the_way), len(self.buckets)):
            if self.missing[b]:
                return
            flat = torch.cat([q.grad.reshape(-1) for q in self.buckets[b]])
            work = dist.all_reduce(flat, op=dist.ReduceOp.AVG, async_op=True)
            self.on_the_way.append((flat, work))


@right("Buckets")
class TwoHalves(Buckets):
    """Two buckets, by number of parameters."""

    def __init__(self, module):
        super().__init__(module)
        middle = len(self.trainable) // 2
        self.buckets = [self.trainable[middle:], self.trainable[:middle]]
        self.missing = [set(bucket) for bucket in self.buckets]


@right("Buckets")
class ViewsOfOneBuffer(Counting):
    """The gradients live in one buffer, of which the buckets are slices."""

    def finish(self):
        for group, (flat, work) in zip(self.groups, self.sent):
            work.wait()
            for p, view in zip(group, flat.split([p.numel() for p in group])):
                p.grad.view(-1).copy_(view)
        self.reset()


@right("Buckets")
class DividedLater(Buckets):
    def ready(self, p):
        for missing in self.missing:
            missing.discard(p)
        while len(self.on_the_way) < len(self.buckets) and not self.missing[len(self.on_the_way)]:
            flat = torch.cat([q.grad.flatten() for q in self.buckets[len(self.on_the_way)]])
            self.on_the_way.append((flat, dist.all_reduce(flat, async_op=True)))

    def finish(self):
        for flat, work in self.on_the_way:
            work.wait()
            flat /= dist.get_world_size()
        super().finish()


@wrong("plan_buckets", "in exactly one bucket")
def last_left_out(sizes, cap):
    return [[i] for i in range(len(sizes) - 1)]


@wrong("plan_buckets", "No bucket may be empty")
def empty_bucket(sizes, cap):
    return [list(range(len(sizes))), []]


@wrong("plan_buckets", "before or after it goes over the cap")
def one_each(sizes, cap):
    return [[i] for i in range(len(sizes))]


@wrong("plan_buckets", "before or after it goes over the cap?")
def closed_before(sizes, cap):
    buckets, current = [], []
    for i, size in enumerate(sizes):
        if current and sum(sizes[j] for j in current) + size > cap:
            buckets.append(current)
            current = []
        current.append(i)
    return buckets + [current]


@wrong("plan_buckets", "before or after it goes over the cap?")
def closed_when_over(sizes, cap):
    buckets, current = [], []
    for i in range(len(sizes)):
        current.append(i)
        if sum(sizes[j] for j in current) > cap:
            buckets.append(current)
            current = []
    return buckets + [current] if current else buckets


@wrong("plan_buckets", "Return indices, not sizes")
def sizes_not_indices(sizes, cap):
    buckets, current = [], []
    for size in sizes:
        current.append(size)
        if sum(current) >= cap:
            buckets.append(current)
            current = []
    return buckets + [current] if current else buckets


@wrong("plan_buckets", "what about the last, unfinished one?")
def nothing(sizes, cap):
    pass


@wrong("plan_buckets", "before or after it goes over the cap?")
def not_reset(sizes, cap):
    buckets, current, held = [], [], 0
    for i, size in enumerate(sizes):
        current.append(i)
        held += size
        if held >= cap:
            buckets.append(current)
            current = []
    return buckets + [current] if current else buckets


@right("plan_buckets")
def tuples(sizes, cap):
    buckets = [()]
    for i, _ in enumerate(sizes):
        if sum(sizes[j] for j in buckets[-1]) >= cap:
            buckets.append(())
        buckets[-1] += (i,)
    return tuple(buckets)


@right("plan_buckets")
def ranges(sizes, cap):
    buckets, start = [], 0
    for end in range(1, len(sizes) + 1):
        if sum(sizes[start:end]) >= cap or end == len(sizes):
            buckets.append(range(start, end))
            start = end
    return buckets


@right("plan_buckets")
def recursively(sizes, cap, first=0):
    if first == len(sizes):
        return []
    end, held = first, 0
    while end < len(sizes) and held < cap:
        held += sizes[end]
        end += 1
    return [list(range(first, end)), *recursively(sizes, cap, end)]


@right("plan_buckets")
def as_tensors(sizes, cap):
    return [torch.tensor(bucket) for bucket in tuples(sizes, cap)]


@right("plan_buckets")
def with_an_iterator(sizes, cap):
    out, remaining = [], iter(enumerate(sizes))
    for i, size in remaining:
        bucket = [i]
        while size < cap:
            try:
                i, more = next(remaining)
            except StopIteration:
                break
            bucket.append(i)
            size += more
        out.append(bucket)
    return out


@wrong("parting", "What was still equal just before?")
def weights_first(log):
    for step, (weights, _) in enumerate(log):
        if len(set(weights)) > 1:
            if step and len(set(log[step - 1][1])) > 1:
                return step - 1, "gradients"
            return (step - 1, "optimizer") if step else (0, "start")
    return next(((s, "gradients") for s, (_, g) in enumerate(log) if len(set(g)) > 1), None)


@wrong("parting", "Return a step and a word")
def only_the_word(log):
    return "optimizer"


@wrong("parting", "The fault is in the step whose inputs were still equal")
def the_step_after(log):
    for step, (weights, gradients) in enumerate(log):
        if len(set(weights)) > 1:
            return step, "optimizer" if step else "start"
        if len(set(gradients)) > 1:
            return step, "gradients"


@wrong("parting", "What was still equal just before?")
def gradients_first(log):
    for step, (weights, gradients) in enumerate(log):
        if len(set(gradients)) > 1:
            return step, "gradients"
        if len(set(weights)) > 1:
            return (step - 1, "optimizer") if step else (0, "start")


@wrong("parting", "All ranks agree in every step here.")
def always_something(log):
    return as_a_list(log) or (len(log), "optimizer")


@wrong("parting", "What was still equal just before?")
def always_the_start(log):
    return any(len(set(w)) > 1 for w, _ in log) and (0, "start") or as_a_list(log)


@wrong("parting", "Return a step and a word")
def two_ranks_only(log):
    for step, ((w0, w1, *_), (g0, g1, *_)) in enumerate(log):
        if w0 != w1:
            return (step - 1, "optimizer") if step else (0, "start")
        if g0 != g1:
            return step, "gradients"


@right("parting")
def as_a_list(log):
    for step, (weights, gradients) in enumerate(log):
        if len({*weights}) != 1:
            return [step - 1, "optimizer"] if step else [0, "start"]
        if len({*gradients}) != 1:
            return [step, "gradients"]


@right("parting")
def looking_ahead(log):
    equal = [(len(set(w)) == 1, len(set(g)) == 1) for w, g in log]
    if not equal[0][0]:
        return 0, "start"
    for step, (_, gradients) in enumerate(equal):
        if not gradients:
            return step, "gradients"
        if step + 1 < len(equal) and not equal[step + 1][0]:
            return step, "optimizer"
    return None


@right("parting")
def by_pairs(log):
    flat = [kind for step in log for kind in step]
    for i, digests in enumerate(flat):
        if any(a != b for a, b in zip(digests, digests[1:])):
            if i == 0:
                return 0, "start"
            return ((i - 1) // 2, "optimizer") if i % 2 == 0 else (i // 2, "gradients")


@right("parting")
def against_the_last_rank(log):
    for step, (weights, gradients) in enumerate(log):
        if not all(w == weights[-1] for w in weights):
            return (max(0, step - 1), "optimizer" if step else "start")
        if not all(g == gradients[-1] for g in gradients):
            return (step, "gradients")
    return None


@right("parting")
def by_counting(log):
    step = 0
    while step < len(log):
        weights, gradients = log[step]
        if weights.count(weights[0]) < len(weights):
            return ("start" if not step else "optimizer", max(step - 1, 0))[::-1]
        if gradients.count(gradients[0]) < len(gradients):
            return ("gradients", step)[::-1]
        step += 1
