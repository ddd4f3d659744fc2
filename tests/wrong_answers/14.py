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


@wrong("share", "1 steps of 8 images are left.")
def step_images(order, batch, step, rank, world_size):
    return order[: len(order) // batch * batch][step:][rank::world_size]


@wrong("share", "The last, incomplete batch is in it.")
def padded(order, batch, step, rank, world_size):
    return (order + order[: -len(order) % batch])[step * batch :][rank::world_size]


@wrong("share", "The last, incomplete batch is in it.")
def cut_after(order, batch, step, rank, world_size):
    rest = order[step * batch :]
    return rest[: len(rest) // world_size * world_size][rank::world_size]


@wrong("share", "Does each global batch hold exactly its own images?")
def same_for_all(order, batch, step, rank, world_size):
    whole = order[: len(order) // batch * batch][step * batch :]
    return whole[: len(whole) // world_size]


@wrong("share", "3 steps of 4 images are left.")
def every_rank_all(order, batch, step, rank, world_size):
    return order[: len(order) // batch * batch][step * batch :]


@wrong("share", "Return a list of entries of order.")
def nothing(order, batch, step, rank, world_size):
    pass


@right("share")
def batchwise(order, batch, step, rank, world_size):
    n = batch // world_size
    out = []
    for k in range(step, len(order) // batch):
        b = order[k * batch : (k + 1) * batch]
        out += b[rank * n : (rank + 1) * n]
    return out
