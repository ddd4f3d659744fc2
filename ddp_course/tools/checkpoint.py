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

import torch

from ddp_course.tools.collectives import all_or_none, gather, get_rank
from ddp_course.tools.errors import CourseError

try:
    import numpy as np
except ImportError:  # torch comes without it, and then nothing draws from its generator
    np = None

_NAME = re.compile(r"step-(\d{9,})-([0-9a-f]{16})\.pt")
_passed_over = set()  # files that load() could not use: they don't count as kept


class _Damaged(CourseError):
    """This file, but not what is before it."""


class _Hashing:
    """A file that knows the checksum of what was written to it, whatever is on the disk."""

    def __init__(self, file):
        self.file, self.hash = file, hashlib.sha256()

    def write(self, data):
        self.hash.update(data)
        return self.file.write(data)

    def flush(self):
        self.file.flush()


class Checkpoint(NamedTuple):
    """What `load` found.

    Attributes
    ----------
    step : int
    state : dict
        As given to `save` by rank 0; tensors on the CPU, in the file's own pages (see `load`).
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
    not there; it returns everywhere once that is done. The name holds the step and a checksum.

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
        On every rank, if it can't be written (disk full, read-only folder), holds what could not
        be read again, or is not seen by all nodes. What was there stays.
    """
    folder, rank = Path(folder), get_rank()
    content = {"step": step, "state": state, "ranks": gather(mine)}
    all_or_none(lambda: _write(folder, step, content, keep) if rank == 0 else None, patient=True)
    all_or_none(lambda: _see(folder, step))


def load(folder, fits=None):
    """Read the newest checkpoint that is whole; call it on every rank.

    Rank 0 checks and chooses; one that is damaged or of another model is passed over with a line
    on stderr. Read with ``weights_only=True``, so that a file from elsewhere can't run code.

    Each node reads the file twice, for the checksum and for the tensors; the second time it is
    in the page cache if it fits there. Every rank maps the file (``mmap=True``) instead of copying
    it: the pages are shared by the node's ranks and can be dropped when memory is short, so 8 ranks
    need the memory of one file and not of 8. What a rank writes to becomes its own copy, page by
    page; the file never changes. So take the state over (``load_state_dict`` copies weights, and
    everything to a GPU; an optimizer on the CPU goes on in these tensors) and let go of it. On a
    local file system the tensors outlive the file. On NFS they don't when another node's rank 0
    deletes it, `keep` saves later: reading them then ends the process with SIGBUS.

    Parameters
    ----------
    folder : path
    fits : callable, optional
        Called on rank 0 with ``state``; raises ValueError or KeyError if it is not of this
        model. `fits_model` makes one.

    Returns
    -------
    Checkpoint or None
        None if there is no checkpoint at all.

    Raises
    ------
    CourseError
        On every rank: there are checkpoints, but none is usable, or not all ranks see the same.
        (To start over silently would be to lose them.)
    """
    folder, rank = Path(folder), get_rank()
    seen = gather([path.name for *_, path in _files(folder)])
    all_or_none(lambda: _same(folder, seen))
    found = all_or_none(lambda: _newest(folder, fits) if rank == 0 else None, patient=True)
    name = gather(found)[0]
    if name is None:
        return None
    # Rank 0 has checked what its node sees; another may see a bad copy, or its own NFS cache's.
    all_or_none(lambda: _check(folder / name) if rank else None, first_of_node=True)
    content = all_or_none(lambda: _map(folder / name))
    ranks = content["ranks"]
    mine = ranks[rank] if len(ranks) == len(seen) else None
    return Checkpoint(content["step"], content["state"], mine, len(ranks))


def fits_model(model, key="model"):
    """Make a check for `load`: does ``state[key]`` have this model's names and shapes?"""

    def check(state):
        shapes = {name: _shape(t) for name, t in model.state_dict().items()}
        found = {name: _shape(t) for name, t in state[key].items()}
        for name in [*shapes, *found]:
            if shapes.get(name) != found.get(name):
                raise ValueError(f"{name} is {found.get(name)}, not {shapes.get(name)}")

    return check


def _shape(value):
    return tuple(value.shape) if torch.is_tensor(value) else type(value).__name__


def rng_state(device="cpu"):
    """State of this process's random generators: torch's, Python's, NumPy's, the GPU's."""
    device = torch.device(device)
    return {
        "torch": torch.get_rng_state(),
        "python": random.getstate(),
        "numpy": _numpy_state() if np else None,
        "cuda": torch.cuda.get_rng_state(device) if device.type == "cuda" else None,
    }


def _numpy_state():
    name, keys, *rest = np.random.get_state()
    return [name, torch.from_numpy(keys.astype(np.int64)), *rest]


def set_rng_state(state, device="cpu"):
    """Put the generators back to what `rng_state` returned."""
    torch.set_rng_state(state["torch"])
    random.setstate(state["python"])
    if state["numpy"] is not None and np:
        name, keys, *rest = state["numpy"]
        np.random.set_state((name, keys.numpy().astype(np.uint32), *rest))
    if state["cuda"] is not None and torch.device(device).type == "cuda":
        torch.cuda.set_rng_state(state["cuda"], device)


def _files(folder):
    """(step, time written, path) of each checkpoint, oldest first."""
    if not os.path.isdir(folder):
        return []
    found = ((_NAME.fullmatch(p.name), p) for p in folder.glob("step-*.pt"))
    return sorted((int(m[1]), p.stat().st_mtime_ns, p) for m, p in found if m)


def _digest(path):
    sha256 = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(2**20):  # bytes; hashlib.file_digest needs Python 3.11
            sha256.update(piece)
    return sha256.hexdigest()[:16]


def _write(folder, step, content, keep):
    draft = folder / "draft.tmp"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with open(draft, "wb") as file:
            hashing = _Hashing(file)
            torch.save(content, hashing)
            file.flush()
            os.fsync(file.fileno())  # on the disk before it has its name
        _refuse_what_could_not_be_read(draft)
        made = folder / f"step-{step:09}-{hashing.hash.hexdigest()[:16]}.pt"
        os.replace(draft, made)
        _sync_folder(folder)
    except (OSError, RuntimeError) as error:  # torch's writer turns a full disk into the latter
        _remove(draft)
        reason = _reason(error)
        there = _files(folder)
        newest = f"the newest there is of step {there[-1][0]}" if there else "there is none yet"
        raise CourseError(
            f"no checkpoint of step {step} in {folder} ({reason}); {newest}: "
            "make room or name another folder, then start again"
        ) from error
    except (CourseError, AttributeError, TypeError, pickle.PicklingError) as error:
        _remove(draft)
        if isinstance(error, CourseError):
            raise
        raise CourseError(f"a checkpoint holds data only: {error}") from None
    older = [p for s, _, p in _files(folder) if s <= step and p not in {made, *_passed_over}]
    for path in older[: max(0, len(older) - (keep - 1))]:
        _remove(path)


def _sync_folder(folder):
    """The new name is on the disk only when the folder is; not every file system can say so."""
    with contextlib.suppress(OSError):
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def _see(folder, step):
    if not any(s == step for s, *_ in _files(folder)):
        raise CourseError(
            f"rank 0 wrote a checkpoint to {folder}, and this node does not see it: "
            "name a folder that all nodes share"
        )


def _same(folder, seen):
    for rank, names in enumerate(seen):
        if set(names) != set(seen[0]):
            raise CourseError(
                f"rank {rank} sees {len(names)} checkpoints in {folder}, rank 0 {len(seen[0])}, "
                "and not the same ones: name a folder that all nodes share"
            )


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
    files, reasons = _files(folder), []
    for *_, path in reversed(files):
        try:
            _check(path)
            content = _map(path)
        except _Damaged as error:
            reasons.append(str(error))
        else:
            if (reason := _misfit(content["state"], fits)) is None:
                return path.name
            reasons.append(f"{path.name} is of another model ({reason})")
        _passed_over.add(path)
        sys.stderr.write(f"passed over: {reasons[-1]}\n")
    if reasons:
        raise CourseError(
            f"no usable checkpoint in {folder}, the newest: {reasons[0]}; "
            "name another folder to start a new training"
        )
    return None


def _misfit(state, fits):
    try:
        if fits:
            fits(state)
    except (ValueError, KeyError) as error:
        return str(error).splitlines()[0]
    return None


def _check(path):
    """Raise CourseError unless the content is what the name's checksum says."""
    with _in_plain_words(path):
        if _digest(path) != _NAME.fullmatch(path.name)[2]:
            raise _Damaged(f"{path.name} is damaged: its content does not match its checksum")


def _map(path):
    """The content of a file that was checked; tensors in its pages, for this process to change."""
    with _in_plain_words(path):
        return torch.load(os.fspath(path), map_location="cpu", mmap=True, weights_only=True)


@contextlib.contextmanager
def _in_plain_words(path):
    try:
        yield
    except FileNotFoundError:
        raise CourseError(
            f"no {path.name} in {path.parent} on this node: the folder must be one that all see"
        ) from None
    except OSError as error:
        raise CourseError(f"{path.name} can't be read ({error.strerror})") from None
    except pickle.UnpicklingError as error:
        raise _Damaged(f"{path.name} holds more than data ({_global(error)})") from None
