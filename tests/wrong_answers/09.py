"""Lesson 09: wrong answers, each with what the check must say, and other right ones."""

import math
import os
import shutil

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


@wrong("write_whole", "A draft in the same folder, flush, fsync, then os.replace.")
def fsync_after(path, content):
    draft = path.with_suffix(".tmp")
    with open(draft, "wb") as f:
        f.write(content)
        f.flush()
    os.replace(draft, path)
    with open(path, "rb") as f:
        os.fsync(f.fileno())


@wrong("write_whole", "A draft in the same folder, flush, fsync, then os.replace.")
def copied(path, content):
    draft = path.with_suffix(".tmp")
    with open(draft, "wb") as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())
    shutil.copy(draft, path)
    draft.unlink()


@wrong("write_whole", "A draft in the same folder, flush, fsync, then os.replace.")
def draft_left(path, content):
    draft = path.with_suffix(".tmp")
    with open(draft, "wb") as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())
    second = path.with_suffix(".2")
    with open(second, "wb") as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())
    os.replace(second, path)


@right("write_whole")
def raw(path, content):
    draft = path.parent / ".draft"
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 420)
    os.write(fd, content)
    os.fsync(fd)
    os.close(fd)
    os.rename(draft, path)


@right("write_whole")
def pathlib_rename(path, content):
    draft = path.with_name("draft")
    with draft.open("wb", buffering=0) as f:
        f.write(content)
        os.fsync(f)
    draft.replace(path)


@wrong("rest_of_epoch", "How many samples are left for all ranks together, padding included?")
def drawn_each(order, drawn, rank, world_size):
    order = order + order[: -len(order) % world_size]
    return order[rank::world_size][drawn * world_size :]


@wrong("rest_of_epoch", "How many samples are left for all ranks together, padding included?")
def tail_dropped(order, drawn, rank, world_size):
    rest = order[drawn:]
    return rest[: len(rest) // world_size * world_size][rank::world_size]


@wrong("rest_of_epoch", "rank r takes every world_size-th, from r on.")
def padded_with_last(order, drawn, rank, world_size):
    order = order + order[-1:] * (-len(order) % world_size)
    return order[drawn:][rank::world_size]


@wrong("rest_of_epoch", "How many samples are left for all ranks together, padding included?")
def whole_epoch(order, drawn, rank, world_size):
    order = order + order[: -len(order) % world_size]
    return order[rank::world_size]


@right("rest_of_epoch")
def index(order, drawn, rank, world_size):
    end = -(-len(order) // world_size) * world_size
    return [order[i % len(order)] for i in range(drawn + rank, end, world_size)]


@right("rest_of_epoch")
def own_then_cut(order, drawn, rank, world_size):
    order += order[: -len(order) % world_size]
    return tuple(order[rank::world_size][drawn // world_size :])


@wrong("best_interval", "Where is the derivative zero?")
def twice(save_s, mtbf_s):
    return 2 * (save_s * mtbf_s) ** 0.5


@wrong("best_interval", "Where is the derivative zero?")
def ten_percent(save_s, mtbf_s):
    return 1.1 * (2 * save_s * mtbf_s) ** 0.5


@wrong("best_interval", "Where is the derivative zero?")
def zero_i(save_s, mtbf_s):
    return 0


@wrong("best_interval", "Where is the derivative zero?")
def negative(save_s, mtbf_s):
    return -1.0


@right("best_interval")
def sqrt(save_s, mtbf_s):
    return round(math.sqrt(2 * save_s * mtbf_s))
