"""Lesson 06: wrong answers, each with what the check must say, and other right ones."""

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
