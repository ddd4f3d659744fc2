"""Lesson 06: wrong answers, each with what the check must say, and other right ones."""

import torch
import torch.distributed as dist
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook

from wrong_answers import right, wrong


@wrong("counting_hook", "Add .nbytes under")
def counts_nothing(state, bucket):
    return allreduce_hook(None, bucket)


@wrong("counting_hook", "Add .nbytes under")
def counts_elements(state, bucket):
    kind = str(bucket.buffer().dtype)
    state[kind] = state.get(kind, 0) + bucket.buffer().numel()
    return allreduce_hook(None, bucket)


@wrong("counting_hook", "return what allreduce_hook returns")
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


@wrong("plan_accumulation", "return a list with a pair")
def one_pair(sizes, k):
    return [(1, True)]


@wrong("counting_hook", "return what allreduce_hook returns.")
def future_of_nothing(state, bucket):
    k = str(bucket.buffer().dtype)
    state[k] = state.get(k, 0) + bucket.buffer().nbytes
    f = torch.futures.Future()
    f.set_result(torch.zeros_like(bucket.buffer()))
    return f


@wrong("counting_hook", "return what allreduce_hook returns.")
def dtype_key(state, bucket):
    k = bucket.buffer().dtype
    state[k] = state.get(k, 0) + bucket.buffer().nbytes
    return allreduce_hook(None, bucket)


@wrong("counting_hook", "return what allreduce_hook returns.")
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
