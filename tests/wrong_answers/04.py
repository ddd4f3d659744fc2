"""Lesson 04: wrong answers, each with what the check must say, and other right ones."""

import itertools

import numpy as np
import torch

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


@wrong("eval_indices", "is that padding?")
def padded(n, world_size, rank):
    return [i % n for i in range(rank, -(-n // world_size) * world_size, world_size)]


@wrong("eval_indices", "The shares are too uneven.")
def blocks_rounded_up(n, world_size, rank):
    size = -(-n // world_size)
    return range(rank * size, min(n, (rank + 1) * size))


@wrong("eval_indices", "Some sample is missing.")
def from_1(n, world_size, rank):
    return range(rank + 1, n, world_size)


@wrong("eval_indices", "Some sample is missing.")
def out_of_range(n, world_size, rank):
    return range(rank, n + 1, world_size)


@right("eval_indices")
def array_split(n, world_size, rank):
    return np.array_split(np.arange(n), world_size)[rank]


@right("eval_indices")
def generator(n, world_size, rank):
    return (i for i in range(n) if i % world_size == rank)


@right("eval_indices")
def tensor(n, world_size, rank):
    return torch.arange(n)[rank::world_size]


@wrong("my_records", "who doesn't skip, ranks or workers?")
def worker_strided_only(records, rank, world_size, worker, workers):
    return [x for i, x in enumerate(records) if i % workers == worker]


@wrong("my_records", "how many readers are there in all?")
def islice_twice(records, rank, world_size, worker, workers):
    mine = [x for i, x in enumerate(records) if i % world_size == rank]
    return mine[worker :: world_size * workers]


@right("my_records")
def islice(records, rank, world_size, worker, workers):
    return itertools.islice(records, worker * world_size + rank, None, world_size * workers)


@right("my_records")
def yields(records, rank, world_size, worker, workers):
    for i, x in enumerate(records):
        if i % world_size == rank and i // world_size % workers == worker:
            yield x
