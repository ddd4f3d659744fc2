"""Lesson 09: wrong answers, each with what the check must say, and other right ones."""

import itertools
import math
import os
import shutil
import tempfile

import numpy as np
import torch

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


@wrong("write_whole", "A draft beside it, flush, fsync, then os.replace.")
def fsync_after(path, content):
    draft = path.with_suffix(".tmp")
    with open(draft, "wb") as f:
        f.write(content)
        f.flush()
    os.replace(draft, path)
    with open(path, "rb") as f:
        os.fsync(f.fileno())


@wrong("write_whole", "A draft beside it, flush, fsync, then os.replace.")
def copied(path, content):
    draft = path.with_suffix(".tmp")
    with open(draft, "wb") as f:
        f.write(content)
        f.flush()
        os.fsync(f.fileno())
    shutil.copy(draft, path)
    draft.unlink()


@wrong("write_whole", "A draft beside it, flush, fsync, then os.replace.")
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


@wrong("write_whole", "A draft beside it, flush, fsync, then os.replace.")
def fsync_without_flush(path, content):
    draft = path.with_suffix(".tmp")
    with open(draft, "wb") as file:
        file.write(content)
        os.fsync(file.fileno())
    os.replace(draft, path)


@right("write_whole")
def folder_too(path, content):
    draft = path.with_suffix(".new")
    with open(draft, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)
    handle = os.open(path.parent, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


@right("write_whole")
def closed_then_synced(path, content):
    draft = path.parent / (path.name + ".part")
    draft.write_bytes(content)
    handle = os.open(draft, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)
    os.replace(draft, path)


@right("write_whole")
def in_a_temporary_file(path, content):
    with tempfile.NamedTemporaryFile(dir=path.parent, delete=False) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


@right("rest_of_epoch")
def with_islice(order, drawn, rank, world_size):
    total = -(-len(order) // world_size) * world_size
    return list(itertools.islice(itertools.cycle(order), drawn + rank, total, world_size))


@right("rest_of_epoch")
def as_a_table(order, drawn, rank, world_size):
    order = list(order) + list(order)[: -len(order) % world_size]
    rows = [order[i : i + world_size] for i in range(drawn, len(order), world_size)]
    return [row[rank] for row in rows]


@right("rest_of_epoch")
def as_an_array(order, drawn, rank, world_size):
    padded = np.resize(order, -(-len(order) // world_size) * world_size)
    return padded[drawn:].reshape(-1, world_size)[:, rank].tolist()


@right("best_interval")
def as_a_power(save_s, mtbf_s):
    return (2 * save_s * mtbf_s) ** 0.5


@right("best_interval")
def as_numpy(save_s, mtbf_s):
    return np.sqrt(np.float64(2) * save_s * mtbf_s)


@right("best_interval")
def as_a_tensor(save_s, mtbf_s):
    return torch.tensor(2.0 * save_s * mtbf_s).sqrt()


@right("best_interval")
def by_searching(save_s, mtbf_s):
    low, high = 1e-3, 1e7
    for _ in range(200):  # where saving and lost work cost the same
        middle = (low + high) / 2
        low, high = (middle, high) if save_s / middle > middle / 2 / mtbf_s else (low, middle)
    return low


ENTRIES = {
    "lr": "schedule",
    "scale": "scaler",
    "samples": "position",
    "momentum": "optimizer",
    "loss": "generators",
}


@wrong("not_saved", "Only the first row shows the cause")
def any_row(whole, resumed):
    for entry in ("loss", "momentum", "scale", "samples", "lr"):
        if any(a[entry] != b[entry] for a, b in zip(whole, resumed)):
            return ENTRIES[entry]
    return "nothing"


@wrong("not_saved", "Only the first row shows the cause")
def last_row(whole, resumed):
    for entry, part in ENTRIES.items():
        if whole[-1][entry] != resumed[-1][entry]:
            return part
    return "nothing"


@wrong("not_saved", "Only the first row shows the cause")
def loss_first(whole, resumed):
    for entry in reversed(ENTRIES):
        if whole[0][entry] != resumed[0][entry]:
            return ENTRIES[entry]
    return "nothing"


@wrong("not_saved", "What can differ in the first row")
def never_nothing(whole, resumed):
    for entry, part in ENTRIES.items():
        if whole[0][entry] != resumed[0][entry]:
            return part
    return "generators"


@wrong("not_saved", "What can differ in the first row")
def losses_ignored(whole, resumed):
    for entry, part in ENTRIES.items():
        if entry != "loss" and whole[0][entry] != resumed[0][entry]:
            return part
    return "nothing"


@wrong("not_saved", "Return one of")
def the_entry(whole, resumed):
    return next((e for e in ENTRIES if whole[0][e] != resumed[0][e]), "nothing")


@wrong("not_saved", "What can differ in the first row")
def second_row(whole, resumed):
    for entry, part in ENTRIES.items():
        if whole[1][entry] != resumed[1][entry]:
            return part
    return "nothing"


@right("not_saved")
def in_order(whole, resumed):
    different = [part for e, part in ENTRIES.items() if whole[0][e] != resumed[0][e]]
    return different[0] if different else "nothing"


@right("not_saved")
def with_next(whole, resumed):
    return next((p for e, p in ENTRIES.items() if whole[0][e] != resumed[0][e]), "nothing")


@right("not_saved")
def by_questions(whole, resumed):
    a, b = whole[0], resumed[0]
    if a == b:
        return "nothing"
    if a["lr"] != b["lr"]:
        return "schedule"
    if b["momentum"] == 0:
        return "optimizer"
    if a["samples"] != b["samples"]:
        return "position"
    return "scaler" if a["scale"] != b["scale"] else "generators"


@right("not_saved")
def by_what_starts_anew(whole, resumed):
    a, b = whole[0], resumed[0]
    fresh = {"scaler": b["scale"] == 2**14 != a["scale"], "schedule": b["lr"] == 0.1}
    fresh |= {"optimizer": b["momentum"] == 0, "position": b["samples"][0] == 0}
    fresh["generators"] = a["loss"] != b["loss"] and not any(fresh.values())
    return max(fresh, key=fresh.get) if any(fresh.values()) else "nothing"


@right("not_saved")
def by_sets(whole, resumed):
    moved = {e for e in whole[0] if whole[0][e] != resumed[0][e]}
    if moved <= {"loss"}:
        return "generators" if moved else "nothing"
    (entry,) = moved - {"loss"}
    return ENTRIES[entry]


@wrong("write_whole", "the draft is in another folder")
def draft_elsewhere(path, content):
    with tempfile.NamedTemporaryFile(delete=False) as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    os.replace(file.name, path)


@right("write_whole")
def by_keyword(path, content):
    draft = path.parent / "draft"
    with draft.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(fd=file.fileno())
    os.replace(src=draft, dst=path)
