"""The processes of a job that runs already, and which of them are its ranks."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from ddp_course.tools.diagnose import pyspy
from ddp_course.tools.errors import CourseError

# Where the launcher says who a process is; of these the first that is set.
RANK = ("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID")
WORLD = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS")
PLACE = (*RANK, "LOCAL_RANK", "TORCHELASTIC_RUN_ID")
LAUNCHERS = ("torch/distributed/run.py", "torch/distributed/elastic/agent/server/api.py")
LOADER = "torch/utils/data/_utils/worker.py"
SERVANTS = ("multiprocessing/resource_tracker.py", "multiprocessing/forkserver.py")
COMPILER = "torch/_inductor/compile_worker/"


@dataclass
class Seen:
    """A Python process of the job.

    Attributes
    ----------
    process : psutil.Process
    stack : list of [file, line, function, source]
    environ : dict
    index : int or None
        The number that mp.spawn gave it.
    before : list
        The stack of the first look.
    """

    process: psutil.Process
    stack: list
    environ: dict
    index: int | None = None
    before: list = field(default_factory=list)

    def rank(self):
        """Its rank, or None if neither its launcher nor mp.spawn says so."""
        if self.index is not None:
            return self.index
        said = next((self.environ[x] for x in RANK if x in self.environ), "")
        return int(said) if said.isdigit() else None

    def world_size(self):
        said = next((self.environ[x] for x in WORLD if x in self.environ), "")
        return int(said) if said.isdigit() and self.index is None else None

    def place(self):
        return self.index, *(self.environ.get(x) for x in PLACE)

    def launches(self):
        return any(f[0].endswith(LAUNCHERS) for f in self.stack)

    def serves(self):
        """Is it no rank but a loader's worker, or a server of Python's or the compiler's?"""
        inner = self.stack[-1][0] if self.stack else ""
        files = [f[0] for f in self.stack]
        return inner.endswith(SERVANTS) or any(LOADER in x or COMPILER in x for x in files)

    def moved(self):
        return [f[:3] for f in self.stack] != [f[:3] for f in self.before]


def matching(text):
    """Processes whose command line contains a text, without this one and those it comes from.

    Returns
    -------
    list of int
        Their pids.

    Raises
    ------
    CourseError
        There is none.
    """
    me = psutil.Process()
    ours = {me.pid, *(p.pid for p in me.parents())}
    found = [
        p.pid
        for p in psutil.process_iter(["cmdline"])
        if p.pid not in ours and text in " ".join(p.info["cmdline"] or [])
    ]
    if not found:
        raise CourseError(f"no process has {text!r} in its command line: pass --pid of torchrun")
    return found


def family(pids):
    """The processes with these pids and all below them, by pid; and notes on those that are gone.

    Raises
    ------
    CourseError
        None of them exists.
    """
    found, notes = {}, []
    for pid in pids:
        try:
            process = psutil.Process(pid)
            found |= {p.pid: p for p in (process, *process.children(recursive=True))}
        except psutil.NoSuchProcess:
            notes.append(f"there is no process {pid} (any more)")
    found.pop(os.getpid(), None)
    if not found:
        raise CourseError(f"{'; '.join(notes) or 'that is this process'}: pass --pid of torchrun")
    return found, notes


def python_of(processes):
    """{pid: Seen} of those that run Python."""
    job, other = {}, ""
    for pid, process in sorted(processes.items()):
        try:
            seen = Seen(process, pyspy.stack(pid), process.environ())
            if any(f[0].endswith(pyspy.SPAWN) and f[2] == "_wrap" for f in seen.stack):
                seen.index = pyspy.spawn_index(pid)
        except psutil.NoSuchProcess:
            continue
        except pyspy.NotPython as error:
            other = f"pid {pid} is no Python process (py-spy: {error})"
        except psutil.AccessDenied as error:
            raise CourseError(pyspy.missing_right(pid)) from error
        except pyspy.NotAllowed as error:
            raise CourseError(str(error)) from error
        else:
            job[pid] = seen
    if not job:
        raise CourseError(other or "the processes ended while they were looked at")
    return job


def ranks_of(job):
    """Those of a job's processes that are ranks.

    A rank's children inherit its environment, and a launcher may have a RANK of its own (that of
    its node), so a process is a rank if none below it has another place and none above is a rank.
    """
    below = {
        pid: [job[p.pid] for p in _children(seen.process) if p.pid in job]
        for pid, seen in job.items()
    }
    able = {pid: s for pid, s in job.items() if not s.launches() and not s.serves()}
    known = {
        pid: seen
        for pid, seen in able.items()
        if seen.rank() is not None
        and not any(
            c.rank() is not None and c.place() != seen.place() and not c.serves()
            for c in below[pid]
        )
    }
    # Without any place: who has loaded torch, and has no such children.
    candidates = known or {
        pid: s
        for pid, s in able.items()
        if has_loaded(pid, "libtorch") and not _waits_for_children(s)
    }
    children = {c.process.pid for pid in candidates for c in below[pid]}
    ranks = [seen for pid, seen in candidates.items() if pid not in children]
    if not ranks:
        pids = ", ".join(map(str, job))
        raise CourseError(f"no rank among the Python processes {pids}: none has loaded torch")
    return ranks


def _children(process):
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def _waits_for_children(seen):
    """Is it the process that called mp.spawn, or that waits for processes of its own?"""
    inner = seen.stack[-1][0] if seen.stack else ""
    spawns = any(f[0].endswith(pyspy.SPAWN) and f[2] != "_wrap" for f in seen.stack)
    return spawns or inner.endswith(("multiprocessing/popen_fork.py", "subprocess.py"))


def has_loaded(pid, library):
    """Whether a library is in its memory; where that can't be seen (macOS), torch is assumed."""
    maps = Path(f"/proc/{pid}/maps")
    if not maps.exists():
        return library == "libtorch"
    try:
        return library in maps.read_text()
    except OSError:
        return False
