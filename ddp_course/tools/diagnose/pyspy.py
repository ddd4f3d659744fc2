"""The stack of a running Python process, read from outside by py-spy. The process isn't paused."""

import json
import linecache
import os
import shutil
import subprocess
import sys
from pathlib import Path

import psutil

from ddp_course.tools.errors import CourseError

INSTALL = 'stacks of a job that already runs need py-spy: pip install "ddp_course[attach]"'
SPAWN = "torch/multiprocessing/spawn.py"
SYS_PTRACE = 19  # the capability's bit, in linux/capability.h
YAMA = Path("/proc/sys/kernel/yama/ptrace_scope")


class NotPython(Exception):
    """py-spy found no interpreter in the process; the message says what it said."""


class NotAllowed(Exception):
    """The message says which right is missing."""


def find():
    """The path of py-spy.

    Raises
    ------
    CourseError
        It isn't installed.
    """
    beside = Path(sys.executable).with_name("py-spy")
    found = str(beside) if beside.exists() else shutil.which("py-spy")
    if found is None:
        raise CourseError(INSTALL)
    return found


def stack(pid, tries=3):
    """Where the main thread of a process stands.

    Parameters
    ----------
    pid : int
    tries : int
        It runs on while it is read, so that a look can fail.

    Returns
    -------
    list of [file, line, function, source]
        Outermost frame first; function without its class, as in Python's own stacks.

    Raises
    ------
    psutil.NoSuchProcess
        It has ended; also when it is dead and its parent has not looked.
    NotPython, NotAllowed, CourseError
    """
    return _stack(pid, _dump(pid, tries=tries))


def spawn_index(pid):
    """The number that ``torch.multiprocessing.spawn`` gave to the process, or None."""
    for frame in _main_thread(pid, _dump(pid, "--locals")):
        if frame["filename"].endswith(SPAWN) and _bare(frame["name"]) == "_wrap":
            return next((int(x["repr"]) for x in frame["locals"] or [] if x["name"] == "i"), None)
    return None


def _dump(pid, *options, tries=3):
    command = [find(), "dump", "--json", "--nonblocking", *options, "--pid", str(pid)]
    for _ in range(tries):
        done = subprocess.run(
            command, capture_output=True, text=True, env={**os.environ, "RUST_BACKTRACE": "0"}
        )
        if done.returncode == 0:
            return json.loads(done.stdout)
        if psutil.Process(pid).status() == psutil.STATUS_ZOMBIE:  # or NoSuchProcess
            raise psutil.NoSuchProcess(pid)
        said = done.stderr.strip()
        if "ermission denied" in said.lower() or "not permitted" in said:
            raise NotAllowed(missing_right(pid))
    raise NotPython(said.splitlines()[0] if said else "py-spy said nothing")


def _stack(pid, threads):
    where, found = psutil.Process(pid), []
    for frame in reversed(_main_thread(pid, threads)):
        file = frame["filename"]
        if not file.startswith(("/", "<")):
            file = os.path.join(where.cwd(), file)
        # In a container its files have another root.
        seen = file if os.path.exists(file) else f"/proc/{pid}/root{file}"
        source = linecache.getline(seen, frame["line"]).strip()
        found.append([file, frame["line"], _bare(frame["name"]), source])
    return found


def _main_thread(pid, threads):
    """Its frames, innermost first."""
    for is_it in (
        lambda t: t["thread_name"] == "MainThread",
        lambda t: t["os_thread_id"] == pid,
        lambda t: any(f["name"] == "<module>" for f in t["frames"]),
    ):
        for thread in threads:
            if is_it(thread):
                return thread["frames"]
    return threads[0]["frames"] if threads else []


def _bare(name):
    """py-spy puts the class before a method: Tensor.backward."""
    return name.rsplit(".", 1)[-1]


def missing_right(pid):
    """One line: which right to read a process is missing here, and how to get it."""
    try:
        owner = psutil.Process(pid).uids().real
    except psutil.AccessDenied:
        owner = None
    status = Path("/proc/self/status")
    caps = int(status.read_text().split("CapEff:")[1].split()[0], 16) if status.exists() else 0
    scope = int(YAMA.read_text()) if YAMA.exists() else 0
    return f"no right to read process {pid}: " + right(owner, os.geteuid(), caps, scope)


def right(owner, user, capabilities, scope):
    """What is missing.

    Parameters
    ----------
    owner, user : int or None
        User ids: the process's, and ours.
    capabilities : int
        Our effective capabilities, a bit each; 0 where there are none (macOS).
    scope : int
        kernel.yama.ptrace_scope.
    """
    may_trace = capabilities >> SYS_PTRACE & 1
    if scope == 3:
        return "kernel.yama.ptrace_scope is 3, which forbids it to everybody until the next boot"
    if user == 0 and not may_trace:
        return "the container lacks SYS_PTRACE: start it with --cap-add SYS_PTRACE"
    if user != 0 and owner not in (user, None):
        return "it belongs to another user: run this as that user, or with sudo"
    if user != 0 and scope:
        return f"kernel.yama.ptrace_scope is {scope}: run this with sudo (in a container with root)"
    return "run this with sudo; in a container, start it with --cap-add SYS_PTRACE"
