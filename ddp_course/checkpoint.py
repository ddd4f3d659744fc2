"""Save training so that it can be resumed to the bit, and read back only what is whole.

Lesson 09 writes the plain version out and shows what each line protects from.
"""

import contextlib
import hashlib
import os
import pickle
import random
import re
import sys
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from ddp_course.hardware import CourseError
from ddp_course.process_group import everywhere

_NAME = re.compile(r"step-(\d{9,})-([0-9a-f]{16})\.pt")


class Checkpoint(NamedTuple):
    """What `load` found.

    Attributes
    ----------
    step : int
    state : dict
        As given to `save` by rank 0; tensors on the CPU.
    mine : object or None
        What this rank gave; None if the checkpoint is of another number of ranks.
    world_size : int
        Ranks that saved it.
    """

    step: int
    state: dict
    mine: object
    world_size: int


def save(folder, step, state, mine=None, keep=3):
    """Write a checkpoint; call it on every rank.

    Rank 0 writes a draft, flushes it to the disk and renames it, so that the file is whole or
    not there; it returns everywhere once that is done, which must be within the group's timeout.
    The name holds the step and a checksum.

    Parameters
    ----------
    folder : path
        One for each training; all nodes see the same.
    step : int
        Optimizer steps done.
    state : dict
        What is equal on all ranks: tensors, numbers, strings, and lists and dicts of these. A
        tensor of any device; rank 0's is written.
    mine : object, optional
        What is this rank's own, such as `rng_state`. All ranks' are written.
    keep : int
        Checkpoints to keep, this one included; older ones are deleted after it is written.

    Raises
    ------
    CourseError
        On every rank, if it can't be written (disk full, read-only folder) or holds what could
        not be read again. What was there stays.
    """
    folder, rank, world_size = Path(folder), *_who()
    everyone = [mine]
    if world_size > 1:
        everyone = [None] * world_size
        dist.all_gather_object(everyone, mine)
    content = {"step": step, "state": state, "ranks": everyone}
    everywhere(lambda: _write(folder, step, content, keep) if rank == 0 else None)


def load(folder, fits=None):
    """Read the newest checkpoint that is whole; call it on every rank.

    Rank 0 checks and chooses, every rank reads the file. A damaged one is passed over with a
    line on stderr. With ``weights_only=True``: a file from elsewhere can't run code.

    Parameters
    ----------
    folder : path
    fits : callable, optional
        Called on rank 0 with ``state``; raises ValueError, KeyError or RuntimeError if it is not
        of this model. `fits_model` makes one.

    Returns
    -------
    Checkpoint or None
        None if there is no checkpoint at all.

    Raises
    ------
    CourseError
        On every rank: there are checkpoints, but none is usable. (To start over silently would
        be to lose them.) Or another node does not see the folder.
    """
    folder, rank, world_size = Path(folder), *_who()
    name = everywhere(lambda: _newest(folder, fits) if rank == 0 else None)
    if world_size > 1:
        box = [name]
        dist.broadcast_object_list(box, src=0)
        name = box[0]
    if name is None:
        return None
    content = everywhere(lambda: _read(folder / name))
    ranks = content["ranks"]
    mine = ranks[rank] if len(ranks) == world_size else None
    return Checkpoint(content["step"], content["state"], mine, len(ranks))


def fits_model(model, key="model"):
    """Make a check for `load`: does ``state[key]`` have this model's names and shapes?"""

    def check(state):
        shapes = {name: tuple(t.shape) for name, t in model.state_dict().items()}
        found = {name: tuple(t.shape) for name, t in state[key].items()}
        for name in [*shapes, *found]:
            if shapes.get(name) != found.get(name):
                raise ValueError(f"{name} is {found.get(name)}, not {shapes.get(name)}")

    return check


def rng_state(device="cpu"):
    """State of this process's random generators: torch's, Python's, NumPy's, the GPU's."""
    device, numpy_s = torch.device(device), np.random.get_state()
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": [numpy_s[0], torch.from_numpy(numpy_s[1].astype(np.int64)), *numpy_s[2:]],
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def set_rng_state(state, device="cpu"):
    """Put the generators back to what `rng_state` returned."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    name, keys, *rest = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    if state["cuda"] is not None and torch.device(device).type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def _who():
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _files(folder):
    """(step, time written, path) of each checkpoint, oldest first."""
    found = ((_NAME.fullmatch(p.name), p) for p in folder.glob("step-*.pt"))
    return sorted((int(m[1]), p.stat().st_mtime_ns, p) for m, p in found if m)


def _digest(path):
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def _write(folder, step, content, keep):
    draft = folder / "draft.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(draft, "wb") as file:
            torch.save(content, file)
            file.flush()
            os.fsync(file.fileno())  # on the disk before it has its name
        _refuse_what_could_not_be_read(draft)
        made = folder / f"step-{step:09}-{_digest(draft)}.pt"
        os.replace(draft, made)
        if os.name == "posix":  # the new name is on the disk only when the folder is
            handle = os.open(folder, os.O_RDONLY)
            os.fsync(handle)
            os.close(handle)
    except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into the latter
        _remove(draft)
        reason = _reason(error)
        there = _files(folder) if os.path.isdir(folder) else []
        newest = f"the newest there is of step {there[-1][0]}" if there else "there is none yet"
        raise CourseError(
            f"no checkpoint of step {step} in {folder} ({reason}); {newest}: "
            "make room or name another folder, then start again"
        ) from error
    except CourseError:
        _remove(draft)
        raise
    # Those of later steps were passed over when this run was resumed: not ours to delete.
    older = [p for s, _, p in _files(folder) if s <= step and p != made]
    for path in older[: max(0, len(older) - (keep - 1))]:
        _remove(path)


def _refuse_what_could_not_be_read(draft):
    """At the time of a restart it would be too late to learn that the file holds a Namespace."""
    try:
        torch.load(draft, map_location="meta", weights_only=True)  # the structure, no numbers
    except pickle.UnpicklingError as error:
        raise CourseError(
            f"a checkpoint holds tensors, numbers, strings, lists and dicts only: {_global(error)} "
            "could not be read again with weights_only=True; save vars(...) or str(...) of it"
        ) from None


def _global(error):
    found = re.search(r"GLOBAL (\S+)", str(error))
    return found[1] if found else str(error).splitlines()[0]


def _reason(error):
    """The operating system's words, which torch's writer buries under an error of its own."""
    cause = error
    while cause is not None:
        if isinstance(cause, OSError):
            return cause.strerror
        cause = cause.__context__
    return str(error).splitlines()[0]


def _remove(path):
    with contextlib.suppress(OSError):  # a read-only folder: the checkpoint counts, not the tidying
        path.unlink(missing_ok=True)


def _newest(folder, fits):
    files, reasons = _files(folder) if os.path.isdir(folder) else [], []
    for _, _, path in reversed(files):
        try:
            content = _read(path)
            if fits:
                fits(content["state"])
            return path.name
        except CourseError as error:
            reasons.append(str(error))
        except (ValueError, KeyError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            reasons.append(f"{path.name} is of another model ({reason})")
        sys.stderr.write(f"passed over: {reasons[-1]}\n")
    if reasons:
        raise CourseError(
            f"no usable checkpoint in {folder}, the newest: {reasons[0]}; "
            "name another folder to start a new training"
        )
    return None


def _read(path):
    match = _NAME.fullmatch(path.name)
    try:
        if _digest(path) != match[2]:
            raise CourseError(f"{path.name} is damaged: its content does not match its checksum")
        return torch.load(path, map_location="cpu", weights_only=True)
    except FileNotFoundError:
        raise CourseError(
            f"no {path.name} in {path.parent} on this node: the folder must be one that all see"
        ) from None
    except OSError as error:
        raise CourseError(f"{path.name} can't be read ({error.strerror})") from None
    except pickle.UnpicklingError as error:
        raise CourseError(f"{path.name} holds more than data ({_global(error)})") from None
