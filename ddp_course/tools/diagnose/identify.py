"""Which of the watched processes are ranks, whoever started them.

torchrun gives RANK to each; a script that forks or spawns gives it to init_process_group; a child
that never came so far has only the number that multiprocessing gave it.
"""

import re

from ddp_course.tools.diagnose.judge import JOINING
from ddp_course.tools.diagnose.stacks import TORCH, is_library

# Children of multiprocessing that serve others: loader workers, pools, managers.
HELPER = re.compile(
    r"torch/utils/data/_utils|multiprocessing/(managers|pool|resource_tracker)\.py"
    r"|concurrent/futures/process\.py|_inductor/compile_worker"
)
FORKED = (
    "forked from process {ppid}, in which {n} native threads ran: fork after threaded work. The"
    " child has none of them, and an operation that needs them waits for ever; use"
    " start_method='spawn', or torch.set_num_threads(1) first in the child"
)
GUESS = "rank {rank} is a guess: process {pid} has not come to " + JOINING


def ranks_among(states, alive, parents=None):
    """The states of the ranks, the newest process of each, with "rank" and "notes" filled in.

    Parameters
    ----------
    states : list of dict
        What the probe wrote, one a process.
    alive : set of int
        Pids that still run.
    parents : dict, optional
        {pid: pid of its parent}, also of processes that are not watched, such as shells.

    Returns
    -------
    list of dict
        In order of rank. Two that run and call themselves the same rank are both there.
    """
    by_pid = {s["pid"]: s for s in states}
    parents = {s["pid"]: s.get("ppid") for s in states} | (parents or {})
    above = {pid: _above(pid, by_pid, parents) for pid in by_pid}
    told = [s for s in states if _claims(s) is not None]
    # Who started a process that joined as a rank is a launcher, although it may have RANK itself.
    launchers = {p["pid"] for s in told if _sure(s) for p in above[s["pid"]] if not _sure(p)}
    launchers |= {s["pid"] for s in states if s.get("launcher")}
    known = []
    for state in told:
        others = [p for p in above[state["pid"]] if p["pid"] not in launchers]
        helper = any(_claims(p) is not None for p in others) and not _sure(state)
        if state["pid"] not in launchers and not helper:
            known.append({**state, "rank": _claims(state)})
    known = _newest(known, alive)
    pids = {s["pid"] for s in known}
    world = max((s["world_size"] or 0 for s in known), default=0)
    launchers |= {p["pid"] for s in states for p in above[s["pid"]] if s["pid"] in pids}
    free = [s for s in states if s["pid"] not in pids | launchers]
    free = [s for s in free if not any(p["pid"] in pids for p in above[s["pid"]])]
    known += _guessed(free, alive, world, {s["rank"] for s in known})
    return sorted((_noted(s) for s in known), key=lambda s: (s["rank"], s["pid"]))


def _sure(state):
    return bool(state.get("joined") or state.get("in_init"))


def _claims(state):
    return state["rank"] if state.get("rank") is not None else state.get("env_rank")


def _above(pid, by_pid, parents):
    """The watched processes above one, nearest first."""
    found, seen = [], {pid}
    while (pid := parents.get(pid)) is not None and pid not in seen:
        seen.add(pid)
        if pid in by_pid:
            found.append(by_pid[pid])
    return found


def _newest(known, alive):
    """One process a rank: of those that run those that joined, else the one that wrote last."""
    running = [s for s in known if s["pid"] in alive and s["status"] == "running"]
    begun = min((s["start"] for s in running), default=0)
    world = max((s["world_size"] or 0 for s in running), default=0)
    kept = []
    for rank in {s["rank"] for s in known}:
        here = [s for s in running if s["rank"] == rank]
        # Copies of a rank's variables don't make a rank; two that join as the same one do.
        here = [s for s in here if _sure(s)] or sorted(here, key=lambda s: s["start"])[:1]
        last = max((s for s in known if s["rank"] == rank), key=lambda s: s["time"])
        # Of a launch that was over before this one began, in the same shell script.
        past = running and rank >= world and last["time"] < begun
        kept += here or ([] if past else [last])
    return kept


def _guessed(states, alive, world, taken):
    """Who may become a rank: no process of a rank's, and doing nobody's service.

    Children of multiprocessing, and where ranks are missing whatever has torch loaded.
    """
    found = [
        s
        for s in states
        if (s.get("child") or (s.get("torch") and world > len(taken)))
        and (s["pid"] in alive or s["status"] == "raised")
        and not any(HELPER.search(frame[0]) for frame in s["stack"])
    ]
    found.sort(key=lambda s: (s.get("index") is None, s.get("index") or 0, s["start"]))
    size = world or len(found) + len(taken)
    free = [number for number in range(size) if number not in taken]
    guessed = []
    for state, rank in zip(found, free):
        note = GUESS.format(rank=rank, pid=state["pid"])
        guessed.append(
            {**state, "rank": rank, "world_size": world or None, "notes": [*state["notes"], note]}
        )
    return guessed


def _noted(state):
    """With a word on the fork, if it stands in an operation: in a queue it waits for another."""
    n, file = state.get("native_threads", 0), (state["stack"] or [[""]])[-1][0]
    waits_for_python = is_library(file) and not TORCH.search(file)
    if n <= 0 or state["status"] != "running" or waits_for_python:
        return state
    return {**state, "notes": [FORKED.format(ppid=state["ppid"], n=n), *state["notes"]]}
