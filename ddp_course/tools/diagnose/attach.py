"""Look at a job that already hangs and was started without this tool: who did not arrive?

    python -m ddp_course.tools.diagnose --pid PID...     (that of torchrun is enough)
    python -m ddp_course.tools.diagnose --match train.py

Each process is looked at twice. Nothing is paused, signalled or ended. There are stacks alone: how
many collectives a rank has called, and their sizes, can't be told from outside, so ranks that
disagree about one collective look like ranks that all wait. Nor can it be told what a main thread
waits for while the loop runs in another thread, nor what stands on another node.
A source line is the file's as it is now, not as it was when the job started.
"""

import time

import psutil

from ddp_course.tools.diagnose import pyspy
from ddp_course.tools.diagnose.job import family, has_loaded, matching, python_of, ranks_of
from ddp_course.tools.diagnose.judge import ranks_named
from ddp_course.tools.diagnose.report import hang, rank_state
from ddp_course.tools.diagnose.stacks import WAITING, short
from ddp_course.tools.errors import CourseError

__all__ = ["matching", "report"]

STACKS_ALONE = "stacks alone: no counts of collectives"
PAUSE = 1.5  # seconds between the two looks
STOPPED = {
    psutil.STATUS_STOPPED: "is stopped (SIGSTOP, or Ctrl-Z): SIGCONT lets it go on",
    psutil.STATUS_TRACING_STOP: "is held by a debugger",
}


def report(pids, pause=PAUSE):
    """Who did not arrive, in a job that runs.

    Parameters
    ----------
    pids : list of int
        Its processes, or what started them.
    pause : float
        Seconds between the two looks.

    Returns
    -------
    Report

    Raises
    ------
    CourseError
        One line: no py-spy, a right that is missing, no such process, no Python, or no rank.
    """
    pyspy.find()
    processes, notes = family(pids)
    job = python_of(processes)
    ranks = ranks_of(job)
    time.sleep(pause)
    still = [seen for seen in ranks if _look_again(seen, notes)]
    if not still:
        raise CourseError("all ranks ended while they were looked at: this job doesn't hang")
    states, said = _states(still)
    return _judged(states, still, [*said, *notes], pause)


def _look_again(seen, notes):
    try:
        seen.before, seen.stack = seen.stack, pyspy.stack(seen.process.pid)
        return True
    except (psutil.NoSuchProcess, pyspy.NotPython):
        who = "a rank" if seen.rank() is None else f"rank {seen.rank()}"
        notes.append(f"{who}, pid {seen.process.pid}, ended while it was looked at")
        return False


def _states(ranks):
    """A RankState for each, in order, and what is to be said of their numbers."""
    numbers, said = {s.process.pid: s.rank() for s in ranks}, []
    free = (n for n in range(len(ranks)) if n not in numbers.values())
    for pid in sorted(numbers):
        if numbers[pid] is None:
            numbers[pid] = next(free)
            said.append(
                f"rank unknown, pid {pid}: called rank {numbers[pid]} here, by order of pid"
            )
    if any(s.index is not None for s in ranks):
        said.append("ranks are mp.spawn's numbers: on several nodes those begin anew on each")
    states = [_state(s, numbers[s.process.pid]) for s in ranks]
    return sorted(states, key=lambda s: (s.rank, s.pid)), said


def _state(seen, number):
    pid, environ = seen.process.pid, seen.environ
    state = rank_state({
        "rank": number, "pid": pid, "status": "running", "stack": seen.stack,
        "world_size": seen.world_size(),
        "attempt": int(environ.get("TORCHELASTIC_RESTART_COUNT", 0)),
        "collectives": {"unknown": STACKS_ALONE}, "notes": [f"pid {pid}"],
    })  # fmt: skip
    if state.call is None and seen.stack and has_loaded(pid, "libcuda.so"):
        call = WAITING.search(seen.stack[-1][3])  # its GPU is what .item() waits for
        state.call = f".{call[1]}()" if call else None
    if state.call == "init_process_group" and "MASTER_ADDR" in environ:
        state.endpoint = f"{environ['MASTER_ADDR']}:{environ.get('MASTER_PORT', '?')}"
    return state


def _stopped(pid):
    try:
        return STOPPED.get(psutil.Process(pid).status())
    except psutil.NoSuchProcess:
        return None


def _judged(states, ranks, notes, pause):
    """The report; a rank that moved isn't called hanging."""
    found = hang(states, "", kind="attached", exit_code=0)
    apart = f"between two looks {pause:g} s apart"
    moved = {s.process.pid: s for s in ranks if s.moved()}
    stopped = {s.rank: _stopped(s.pid) for s in states if _stopped(s.pid)}
    if stopped:
        found.culprits, found.why = sorted(stopped), next(iter(stopped.values()))
    for state in states:
        if state.pid in moved:
            *_, last = moved[state.pid].before or [["?", 0, "?", ""]]
            state.notes.append(
                f"it moved: before, it was at {short(last[0])}:{last[1]} in {last[2]}"
            )
    names = ranks_named(s.rank for s in states if s.pid in moved) if moved else ""
    goes_on = [s for s in states if s.pid in moved and s.call] or len(moved) == len(states)
    if not moved:
        found.headline = f"HANG: no rank moved {apart}"
    elif goes_on:
        found.headline = f"NO HANG SEEN: {names} moved {apart}"
        found.kind, found.culprits, found.why = "moving", [], "the ranks still move"
    else:
        found.headline = f"NO HANG SEEN: {names} moved {apart}: slow, or in a loop of its own"
    found.notes += notes
    return found
