"""Lesson 03: wrong answers, each with what the check must say, and other right ones."""

from wrong_answers import right, wrong


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


@wrong("plan_buckets", "what about the last, unfinished one?")
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
