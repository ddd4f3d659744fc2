"""Start a command, and end it with every process that it started; nothing else."""

import contextlib
import subprocess
import time

import psutil


def descendants(pid):
    """The processes that a process started, and those that they started: a set of psutil.Process.

    One whose parent has ended is no longer found: ask now and then, and keep what was found.
    """
    with contextlib.suppress(psutil.NoSuchProcess):
        return set(psutil.Process(pid).children(recursive=True))
    return set()


def runs(process):
    """Whether a psutil.Process still runs: it is neither gone nor a zombie."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait(process, seconds):
    """The exit code of a Popen, or None if it still runs after the seconds."""
    try:
        return process.wait(max(seconds, 0))
    except subprocess.TimeoutExpired:
        return None


def end_trees(processes, grace, known=()):
    """End commands and all that they started: SIGTERM to the commands, later SIGKILL to all.

    Parameters
    ----------
    processes : list of subprocess.Popen
    grace : float
        Seconds in which the commands may end by themselves; torchrun ends its ranks meanwhile.
    known : iterable of psutil.Process
        Processes that they started, also where the parent in between is gone.
    """
    left = set(known).union(*(descendants(p.pid) for p in processes))
    for process in processes:
        if process.poll() is None:
            process.terminate()
    end = time.monotonic() + grace
    for process in processes:
        wait(process, end - time.monotonic())
        left |= descendants(process.pid)
        if process.poll() is None:
            process.kill()
    left = [p for p in left if p.is_running()]
    for process in left:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.kill()
    psutil.wait_procs(left, timeout=5)
    for process in processes:
        process.wait()
