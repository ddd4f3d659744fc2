"""Who needed how much of which GPU: each process writes it at its end, `rehearse` reads it.

A process that is killed writes nothing; of it the ledger knows what it had reserved (gpus.c).
"""

import contextlib
import ctypes
import json
import os
import re
import struct
from multiprocessing import util
from pathlib import Path

from ddp_course.tools.errors import CourseError

FOLDER = "DDP_COURSE_REHEARSE_FOLDER"
ENTRY = struct.Struct("@q64Q64Q")  # of the ledger: pid, bytes used and their peak, by GPU
UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}

_ranks = []  # of this process, in its groups; the first is that of the default group
_before = {}  # {device: (peak allocated, peak reserved)} from before the user's last reset


def bytes_of(text):
    """How many bytes "16GiB", "512 MiB" or "40G" are: all units are powers of 1024.

    Raises
    ------
    CourseError
        If it is no such size, or nothing at all.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?) ?([KMGT]?)(?:i?B)?", text.strip(), re.IGNORECASE)
    size = int(float(match[1]) * UNITS[match[2].upper()]) if match else 0
    if not size:
        raise CourseError(f"{text} is no size of a memory: type 16GiB, or 512MiB")
    return size


def words(size):
    """A size as people say it: "512 B", "98.7 MiB", "16 GiB"."""
    units = iter(("B", "KiB", "MiB", "GiB", "TiB"))
    unit = next(units)
    while size >= 1024 and unit != "TiB":
        size, unit = size / 1024, next(units)
    return f"{size:.1f}".removesuffix(".0") + f" {unit}"


def note_rank(rank):
    """nccl makes a group: its rank is the process's, where no variable says so."""
    _ranks.append(rank)
    begin()


def peaks():
    """{device: [allocated, reserved]}: the most bytes of torch's allocator since the start."""
    import torch

    found = {}
    for device in range(torch.cuda.device_count()):
        now = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
        found[device] = [max(pair) for pair in zip(now, _before.get(device, (0, 0)))]
    return found


def report_at_exit():
    """Runs when CUDA is first used. What the peaks were before a user's reset is kept."""
    import torch

    reset = torch._C._cuda_resetPeakMemoryStats

    def keep_and_reset(device):
        _before.update(peaks())
        reset(device)

    torch._C._cuda_resetPeakMemoryStats = keep_and_reset
    begin()
    # multiprocessing's children end without atexit, but with what is registered here.
    util.Finalize(None, end, args=(os.getpid(),), exitpriority=0)


def begin():
    """This process is there. If it is killed, that is all the report will say of it."""
    _write(None)


def end(pid):
    """The report of this process, unless it is a fork that inherited the duty."""
    if os.getpid() == pid:
        gpu = ctypes.CDLL(None).pretended_gpu
        _write({gpu(device): pair for device, pair in peaks().items() if any(pair)})


def _write(gpus):
    rank = os.environ.get("RANK", _ranks[0] if _ranks else None)
    with contextlib.suppress(OSError):
        file = Path(os.environ[FOLDER]) / f"process-{os.getpid()}.json"
        file.write_text(json.dumps({"pid": os.getpid(), "rank": rank, "gpus": gpus}))


def rows(folder):
    """What the processes of a command needed, by GPU and rank.

    Parameters
    ----------
    folder : path
        With the processes' reports and the ledger.

    Returns
    -------
    list of (int, str, int or None, int)
        GPU, "rank 0" or "process 4711", peak bytes allocated (None: no report), and reserved.
    """
    ledger = (Path(folder) / "ledger").read_bytes()
    whole = len(ledger) // ENTRY.size * ENTRY.size
    reserved = {pid: sizes[64:] for pid, *sizes in ENTRY.iter_unpack(ledger[:whole])}
    found = []
    for file in Path(folder).glob("process-*.json"):
        one = json.loads(file.read_text())
        who = f"process {one['pid']}" if one["rank"] is None else f"rank {one['rank']}"
        if one["gpus"] is None:  # killed
            peak = enumerate(reserved.get(one["pid"], ()))
            found += [(gpu, who, None, size) for gpu, size in peak if size]
        else:
            found += [(int(gpu), who, *pair) for gpu, pair in one["gpus"].items()]
    return sorted(found, key=lambda row: (row[0], len(row[1]), row[1]))


def table(rows, memory):
    """What `rehearse` prints at the end."""
    if not rows:
        return "rehearse: no process allocated anything on a GPU"
    lines = [f"rehearse: peak memory of torch's allocator, of {words(memory)} on each GPU"]
    for gpu, who, allocated, reserved in rows:
        if allocated is None:
            said = f"no report: killed, or left by os._exit (reserved {words(reserved)})"
        else:
            said = f"{words(allocated):>10} (reserved {words(reserved)})"
        lines.append(f"  GPU {gpu}  {who:<8} {said}")
    return "\n".join(lines)
