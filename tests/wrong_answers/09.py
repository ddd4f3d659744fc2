"""Lesson 09: wrong answers, each with what the check must say, and other right ones."""

import os

from wrong_answers import right, wrong


@wrong("write_whole", "by one rename")
def in_place(path, content):
    path.write_bytes(content)


@wrong("write_whole", "renamed before all of it was flushed")
def not_flushed(path, content):
    draft = path.with_suffix(".tmp")
    draft.write_bytes(content)
    os.replace(draft, path)


@wrong("write_whole", "the old file was touched")
def old_one_unlinked(path, content):
    draft = path.with_suffix(".tmp")
    with open(draft, "wb") as file:
        file.write(content)
        os.fsync(file.fileno())
        file.write(b"")
    path.unlink()
    os.replace(draft, path)


@wrong("write_whole", "by one rename")
def no_draft(path, content):
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


@wrong("rest_of_epoch", "Ranks draw different numbers")
def not_padded(order, drawn, rank, world_size):
    return order[drawn:][rank::world_size]


@wrong("rest_of_epoch", "pad first, then cut")
def cut_then_padded(order, drawn, rank, world_size):
    rest = order[drawn:]
    rest += rest[: -len(rest) % world_size]
    return rest[rank::world_size]


@wrong("rest_of_epoch", "How many samples are left")
def striped_then_cut(order, drawn, rank, world_size):
    order += order[: -len(order) % world_size]
    return order[rank::world_size][drawn:]


@wrong("rest_of_epoch", "Same samples, dealt out otherwise")
def in_blocks(order, drawn, rank, world_size):
    order += order[: -len(order) % world_size]
    rest = order[drawn:]
    n = len(rest) // world_size
    return rest[rank * n : (rank + 1) * n]


@wrong("best_interval", "It wastes 1.061 times")
def factor_2_forgotten(save_s, mtbf_s):
    return (save_s * mtbf_s) ** 0.5


@wrong("best_interval", "Where is the derivative zero?")
def half_the_mtbf(save_s, mtbf_s):
    return mtbf_s / 2


@wrong("best_interval", "Where is the derivative zero?")
def root_forgotten(save_s, mtbf_s):
    return 2 * save_s * mtbf_s
