"""Lesson 14: wrong answers, each with what the check must say, and other right ones."""

from wrong_answers import right, wrong


@wrong("share", "incomplete batch is in it")
def tail_kept(order, batch, step, rank, world_size):
    return order[step * batch :][rank::world_size]


@wrong("share", "images are left")
def from_the_start(order, batch, step, rank, world_size):
    whole = order[: len(order) // batch * batch]
    return whole[rank::world_size]


@wrong("share", "exactly its own images")
def blocks_of_ranks(order, batch, step, rank, world_size):
    whole = order[: len(order) // batch * batch][step * batch :]
    n = len(whole) // world_size
    return whole[rank * n : rank * n + n]
