"""Lesson 04: wrong answers, each with what the check must say, and other right ones."""

from wrong_answers import right, wrong


@wrong("eval_indices", "drawn twice")
def never_empty(n, world_size, rank):
    return list(range(rank, n, world_size)) or [0]


@wrong("eval_indices", "Some sample is missing")
def tail_dropped(n, world_size, rank):
    return range(rank, n - n % world_size, world_size)


@wrong("eval_indices", "The shares are too uneven")
def all_on_rank_0(n, world_size, rank):
    return range(n) if rank == 0 else []


@wrong("my_records", "come 2 times")
def workers_do_not_skip(records, rank, world_size, worker, workers):
    return [x for i, x in enumerate(records) if i % world_size == rank]


@wrong("my_records", "who doesn't skip, ranks or workers?")
def nobody_skips(records, rank, world_size, worker, workers):
    return list(records)


@wrong("my_records", "how many readers")
def readers_overlap(records, rank, world_size, worker, workers):
    n = world_size * workers
    return [x for i, x in enumerate(records) if i % n == rank + worker]
