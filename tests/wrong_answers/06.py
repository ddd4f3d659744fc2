"""Lesson 06: wrong answers, each with what the check must say, and other right ones."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from wrong_answers import right, wrong


@wrong("counting_hook", "Add .nbytes")
def counts_nothing(state, bucket):
    return allreduce_hook(None, bucket)


@wrong("counting_hook", "Add .nbytes")
def counts_elements(state, bucket):
    kind = str(bucket.buffer().dtype)
    state[kind] = state.get(kind, 0) + bucket.buffer().numel()
    return allreduce_hook(None, bucket)


@wrong("counting_hook", "return a future, as allreduce_hook does")
def returns_nothing(state, bucket):
    state["torch.float32"] = 1


@wrong("counting_hook", "for (3,)")
def last_bucket_only(state, bucket):
    state[str(bucket.buffer().dtype)] = bucket.buffer().nbytes
    return allreduce_hook(None, bucket)


@wrong("plan_accumulation", "also in the tail")
def tail_never_sends(sizes, k):
    return [(1 / k, i % k == k - 1) for i in range(len(sizes))]


@wrong("plan_accumulation", "Which backward of each window sends?")
def sends_always(sizes, k):
    return [(1, True)] * len(sizes)


@wrong("plan_accumulation", "which share of its samples")
def tail_weighs_too_little(sizes, k):
    return [(1 / k, i % k == k - 1 or i == len(sizes) - 1) for i in range(len(sizes))]


@wrong("plan_accumulation", "return one pair")
def one_pair(sizes, k):
    return [(1, True)]


@wrong("counting_hook", "return what allreduce_hook returns.")
def future_of_nothing(state, bucket):
    k = str(bucket.buffer().dtype)
    state[k] = state.get(k, 0) + bucket.buffer().nbytes
    f = torch.futures.Future()
    f.set_result(torch.zeros_like(bucket.buffer()))
    return f


@wrong("counting_hook", "Add .nbytes")
def dtype_key(state, bucket):
    k = bucket.buffer().dtype
    state[k] = state.get(k, 0) + bucket.buffer().nbytes
    return allreduce_hook(None, bucket)


@wrong("counting_hook", "Add .nbytes")
def four_bytes(state, bucket):
    k = str(bucket.buffer().dtype)
    state[k] = state.get(k, 0) + bucket.buffer().numel() * 4
    return allreduce_hook(None, bucket)


@right("counting_hook")
def element_size(state, bucket):
    b = bucket.buffer()
    state.setdefault(str(b.dtype), 0)
    state[str(b.dtype)] += b.numel() * b.element_size()
    return allreduce_hook(None, bucket)


@right("counting_hook")
def own_all_reduce(state, bucket):
    b = bucket.buffer()
    state[str(b.dtype)] = b.nbytes + state.get(str(b.dtype), 0)
    return (
        dist.all_reduce(b.div_(dist.get_world_size()), async_op=True)
        .get_future()
        .then(lambda f: f.value()[0])
    )


@wrong("plan_accumulation", "wrong gradient; which share of its samples has each micro-batch?")
def one_over_window(sizes, k):
    out = []
    for i in range(0, len(sizes), k):
        w = sizes[i : i + k]
        out += [(1 / len(w), j == len(w) - 1) for j in range(len(w))]
    return out


@wrong("plan_accumulation", "wrong gradient; which share of its samples has each micro-batch?")
def share_of_all(sizes, k):
    return [(s / sum(sizes), i % k == k - 1 or i == len(sizes) - 1) for i, s in enumerate(sizes)]


@wrong("plan_accumulation", "Only the last, also in the tail.")
def first_sends(sizes, k):
    return [(s / sum(sizes[i - i % k : i - i % k + k]), i % k == 0) for i, s in enumerate(sizes)]


@right("plan_accumulation")
def pairs_as_lists(sizes, k):
    n = len(sizes)
    return [
        [s / sum(sizes[i - i % k : i - i % k + k]), (i + 1) % k == 0 or i + 1 == n]
        for i, s in enumerate(sizes)
    ]


@wrong("counting_hook", "Nothing was all-reduced")
def never_sends(state, bucket):
    b = bucket.buffer()
    state[str(b.dtype)] = b.nbytes + state.get(str(b.dtype), 0)
    future = torch.futures.Future()
    future.set_result(b)
    return future


@wrong("counting_hook", "Nothing was all-reduced")
def divides_alone(state, bucket):
    b = bucket.buffer()
    state[str(b.dtype)] = b.nbytes + state.get(str(b.dtype), 0)
    future = torch.futures.Future()
    future.set_result(b / dist.get_world_size())
    return future


@wrong("counting_hook", "The sum over the ranks arrived")
def sums(state, bucket):
    b = bucket.buffer()
    state[str(b.dtype)] = b.nbytes + state.get(str(b.dtype), 0)
    return dist.all_reduce(b, async_op=True).get_future().then(lambda f: f.value()[0])


@right("counting_hook")
def divides_afterwards(state, bucket):
    b = bucket.buffer()
    state[str(b.dtype)] = b.nbytes + state.get(str(b.dtype), 0)
    work = dist.all_reduce(b, async_op=True)
    return work.get_future().then(lambda f: f.value()[0].div_(2))


@right("counting_hook")
def sends_first(state, bucket):
    future = allreduce_hook(None, bucket)
    kind = str(bucket.buffer().dtype)
    state[kind] = sum(g.nbytes for g in bucket.gradients()) + state.get(kind, 0)
    return future


@right("counting_hook")
def waits(state, bucket):
    b = bucket.buffer()
    state[str(b.dtype)] = b.nbytes + state.get(str(b.dtype), 0)
    dist.all_reduce(b)
    future = torch.futures.Future()
    future.set_result(b / dist.get_world_size())
    return future


@right("plan_accumulation")
def a_generator(sizes, k):
    for i in range(0, len(sizes), k):
        total = sum(sizes[i : i + k])
        for size in sizes[i : i + k - 1] if i + k <= len(sizes) else sizes[i:-1]:
            yield size / total, False
        yield sizes[min(i + k, len(sizes)) - 1] / total, True


@right("plan_accumulation")
def a_tuple_of_numbers(sizes, k):
    ends = {min(i + k, len(sizes)) - 1 for i in range(0, len(sizes), k)}
    totals = [sum(sizes[i : i + k]) for i in range(0, len(sizes), k)]
    return tuple((s / totals[i // k], int(i in ends)) for i, s in enumerate(sizes))


@right("plan_accumulation")
def with_zip(sizes, k):
    windows = [sizes[i : i + k] for i in range(0, len(sizes), k)]
    weights = [s / sum(w) for w in windows for s in w]
    sends = [flag for w in windows for flag in [False] * (len(w) - 1) + [True]]
    return zip(weights, sends)


@right("plan_accumulation")
def tensors(sizes, k):
    plan = []
    for window in torch.tensor(sizes, dtype=torch.float64).split(k):
        share = window / window.sum()
        plan += [(w, torch.tensor(j == len(window) - 1)) for j, w in enumerate(share)]
    return plan


def last_arrival(cap, gradients, messages, *, queue=True, before=False, alpha=None):
    """When the last message arrives, with a mistake or without."""
    (small, t0), (large, t1) = min(messages), max(messages)
    per_byte = (t1 - t0) / (large - small)
    alpha = t0 - small * per_byte if alpha is None else alpha
    free = size = last = 0
    for i, (ready, nbytes) in enumerate(gradients):
        if before and size and size + nbytes > cap:
            free, size = max(free, last) + alpha + size * per_byte, 0
        size, last = size + nbytes, ready
        if size >= cap and not before or i == len(gradients) - 1:
            free, size = (max(free, ready) if queue else ready) + alpha + size * per_byte, 0
    return free


@wrong("best_cap", "With this cap")
def always_the_smallest(gradients, messages, caps):
    return min(caps)


@wrong("best_cap", "With this cap")
def always_the_largest(gradients, messages, caps):
    return max(caps)


@wrong("best_cap", "With this cap more messages queue")
def no_alpha(gradients, messages, caps):
    return min(caps, key=lambda c: last_arrival(c, gradients, messages, alpha=0))


@wrong("best_cap", "With this cap")
def no_queue(gradients, messages, caps):
    return min(caps, key=lambda c: last_arrival(c, gradients, messages, queue=False))


@wrong("best_cap", "With this cap")
def never_above_the_cap(gradients, messages, caps):
    return min(caps, key=lambda c: last_arrival(c, gradients, messages, before=True))


@wrong("best_cap", "With this cap")
def ready_at_once(gradients, messages, caps):
    now = [(0, nbytes) for _, nbytes in gradients]
    return min(caps, key=lambda c: last_arrival(c, now, messages))


@wrong("best_cap", "Return one of caps")
def the_time(gradients, messages, caps):
    return min(last_arrival(c, gradients, messages) for c in caps)


@wrong("best_cap", "Return one of caps")
def in_mib(gradients, messages, caps):
    return min(caps, key=lambda c: last_arrival(c, gradients, messages)) // 2**20


@right("best_cap")
def sorted_caps(gradients, messages, caps):
    return sorted(caps, key=lambda c: last_arrival(c, gradients, messages))[0]


@right("best_cap")
def fitted(gradients, messages, caps):
    b, t = torch.tensor(messages, dtype=torch.float64).T
    per_byte = ((b - b.mean()) * (t - t.mean())).sum() / (b - b.mean()).square().sum()
    alpha = (t.mean() - per_byte * b.mean()).item()
    ends = torch.tensor([last_arrival(c, gradients, messages, alpha=alpha) for c in caps])
    return torch.tensor(caps)[ends.argmin()]


@right("best_cap")
def buckets_first(gradients, messages, caps):
    (b0, t0), (b1, t1) = messages[:2]
    beta = (t0 - t1) / (b0 - b1)
    best = None
    for cap in caps:
        buckets, size = [], 0
        for ready, nbytes in gradients:
            size += nbytes
            if size >= cap:
                buckets.append((ready, size))
                size = 0
        if size:
            buckets.append((gradients[-1][0], size))
        link = 0.0
        for ready, size in buckets:
            link = max(link, ready) + t0 - b0 * beta + beta * size
        if best is None or link < best[0]:
            best = (link, cap)
    return best[1]


@right("best_cap")
def as_a_float(gradients, messages, caps):
    return float(sorted_caps(gradients, messages, caps))


@right("best_cap")
def with_a_dict(gradients, messages, caps):
    ends = {last_arrival(c, gradients, messages): c for c in reversed(caps)}
    return ends[min(ends)]


@wrong("counting_hook", "nobody waited for it")
def never_waits(state, bucket):
    b = bucket.buffer()
    state[str(b.dtype)] = b.nbytes + state.get(str(b.dtype), 0)
    dist.all_reduce(b, async_op=True)
    future = torch.futures.Future()
    future.set_result(b / dist.get_world_size())
    return future


@right("counting_hook")
def averages_itself(state, bucket):
    b = bucket.buffer()
    state[str(b.dtype)] = b.nbytes + state.get(str(b.dtype), 0)
    work = dist.all_reduce(b, op=dist.ReduceOp.AVG, async_op=True)
    return work.get_future().then(lambda f: f.value()[0])
