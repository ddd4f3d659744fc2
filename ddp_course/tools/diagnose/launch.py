"""Run a launch with the probe in every process, and notice when no rank moves any more."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil

from ddp_course.tools import first_of_all, processes
from ddp_course.tools.diagnose import probe
from ddp_course.tools.diagnose.identify import ranks_among
from ddp_course.tools.diagnose.report import hang, rank_state
from ddp_course.tools.diagnose.stacks import main_stack

LOOK_EVERY = 0.5  # seconds
START = 60.0  # seconds for the launcher, and for importing torch
END = 30.0  # seconds for ranks to end, and for the launcher to end the others


class Launch:
    """The command, its processes, and what they wrote."""

    def __init__(self, command, folder):
        self.folder, self.started, self.parents = Path(folder), set(), {}
        self.printed = []
        env = {
            **os.environ,
            "PYTHONPATH": first_of_all.install(probe.__file__, folder),
            probe.VARIABLE: str(self.folder),
            "PET_TEE": "3", "PET_LOG_DIR": str(self.folder / "logs"),  # torchrun's --tee, --log-dir
            "PET_LOG_LINE_PREFIX_TEMPLATE": "[rank ${rank}]: ",
        }  # fmt: skip
        env.setdefault("TORCH_FR_BUFFER_SIZE", "100")  # enough, and quick to read
        env.setdefault("TORCH_DISTRIBUTED_DEBUG", "INFO")  # DDP's errors name parameters
        self.process = subprocess.Popen(
            command, env=env, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        self.reader = threading.Thread(target=self.forward, daemon=True)
        self.reader.start()

    def forward(self):
        for line in self.process.stderr:
            self.printed.append(line)
            sys.stderr.write(line)
            sys.stderr.flush()

    def alive(self):
        """The pids of the launch that still run."""
        self.started |= processes.descendants(self.process.pid)
        for p in self.started:
            if p.pid not in self.parents:
                with contextlib.suppress(psutil.NoSuchProcess):
                    self.parents[p.pid] = p.ppid()
        return {p.pid for p in self.started if processes.runs(p)}

    def written(self):
        """What the probe wrote, one dict a process."""
        return [json.loads(f.read_text()) for f in self.folder.glob("process-*.json")]

    def states(self, alive):
        """What the ranks wrote, in order of rank."""
        return ranks_among(self.written(), alive, self.parents)

    def faults(self):
        """{pid: what faulthandler wrote in it}."""
        found = self.folder.glob("fault-*.txt")
        return {int(f.stem.split("-")[1]): f.read_text(errors="replace") for f in found}

    def exits(self):
        """{pid: exit code}, from torchrun's report and from the errors of torch.multiprocessing."""
        pairs = re.findall(r"exitcode *: (-?\d+) +\(pid: (\d+)\)", "".join(self.printed))
        found = {int(pid): int(code) for code, pid in pairs}
        for state in self.written():
            error = state["error"] or {}
            if error.get("pid") is not None and error.get("code") is not None:
                found.setdefault(error["pid"], error["code"])
        return found

    def said(self, states):
        """{rank: its stderr}, newest attempt; without torchrun's logs the whole launch's stderr."""
        found = {}
        for file in sorted(self.folder.glob("logs/*/attempt_*/*/stderr.log")):
            found[int(file.parent.name)] = file.read_text(errors="replace")
        if not found:
            return {s["rank"]: "".join(self.printed) for s in states}
        # The folders are named by local rank; the ranks of a node are consecutive.
        first = min((s["rank"] for s in states), default=0)
        return {first + local: text for local, text in found.items()}

    def work_of_children(self, pid):
        """CPU seconds of its children younger than a minute: it may wait for one that imports."""
        young, now = 0.0, time.time()
        for p in self.started:
            with contextlib.suppress(psutil.NoSuchProcess, psutil.AccessDenied):
                if self.parents.get(p.pid) == pid and now - p.create_time() < START:
                    young += sum(p.cpu_times()[:2])
        return round(young, 1)

    def dump_stacks(self, states):
        """Where ranks stand whose thread can't write, because C code holds Python's lock.

        A signal may disturb what they do, so they are asked only when all is lost.
        """
        for state in states:
            if not silent(state):
                continue
            with contextlib.suppress(OSError, AttributeError):
                os.kill(state["pid"], signal.SIGUSR2)
                time.sleep(0.3)
                text = (self.folder / f"fault-{state['pid']}.txt").read_text()
                state["stack"] = main_stack(text) or state["stack"]
                old = f"{time.time() - state['time']:.0f} s"
                state["collectives"] = {"unknown": f"can't tell: no word for {old}, as C code runs"}

    def end(self):
        """End the launch and every process it started; nothing else."""
        self.alive()
        processes.end_trees([self.process], 5, self.started)


def signature(state):
    """What changes when a rank moves."""
    return json.dumps([state["pid"], state["status"], state["stack"], state["collectives"]])


def seconds_allowed(state, after):
    """Imports may stand long on one line (a cold disk), and may let no other thread write."""
    if silent(state):
        return max(after, 10)
    importing = any("<frozen importlib" in frame[0] for frame in state["stack"])
    return max(after, START) if importing else after


def leaving(states, alive):
    """Is the launcher about to end the launch by itself? On a busy machine that takes a while."""
    runs = any(state["status"] == "running" and state["pid"] in alive for state in states)
    return not runs or any(state["status"] == "raised" for state in states)


def silent(state):
    """Has its thread not written for long?"""
    return state["status"] == "running" and time.time() - state["time"] > 6 * probe.EVERY


def follow(launch, after):
    """Wait for the end of the launch (returns None), or for a hang: its `Report`."""
    seen, since, told, began = {}, {}, set(), time.monotonic()
    while launch.process.poll() is None:
        time.sleep(LOOK_EVERY)
        alive = launch.alive()
        now, states = time.monotonic(), launch.states(alive)
        for state in states:
            moves = signature(state), launch.work_of_children(state["pid"])
            if seen.get(state["pid"]) != moves:
                seen[state["pid"]], since[state["pid"]] = moves, now
        if not states:
            if now - began > max(after, START):
                warn(told, "no rank is here yet: does the launcher wait for other nodes?")
            continue
        wait = max(after, END) if leaving(states, alive) else after
        late = [s for s in states if now - since[s["pid"]] > seconds_allowed(s, wait)]
        if len(late) == len(states):
            launch.dump_stacks([s for s in states if s["pid"] in alive])
            ranks = [rank_state(s, s["pid"] in alive) for s in states]
            return hang(ranks, f"HANG: nothing has moved for {after:g} s")
        for state in late:
            stand = rank_state(state)
            if stand.call and stand.status == "running":
                place = f"in {stand.call} at {stand.place()}"
                warn(told, f"rank {stand.rank} has waited {after:g} s {place}; others still move")
    return None


def warn(told, text):
    """Say it once, and go on: whoever moves may be right to take long."""
    if text not in told:
        told.add(text)
        sys.stderr.write(f"diagnose: {text}\n")
