"""Run a launch; when it hangs or dies, say which rank, at which line, and end it.

    python -m ddp_course.tools.diagnose [--after SECONDS] -- torchrun --standalone ... script.py

The launch runs as always. `watch_rank` goes along in every rank and notes where it stands; torchrun
keeps what each rank prints. The report is the last thing printed, on stdout.
Exit code: that of the launch; 124 if it hung and was ended here; 2 for a bad command line.
"""

import argparse
import contextlib
import json
import linecache
import os
import re
import shutil
import signal
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil

from ddp_course.tools.diagnose import probe as watch_rank

HUNG, USAGE = 124, 2
LOOK_EVERY = 0.5  # seconds
START = 60.0  # seconds for torchrun, and for importing torch
END = 30.0  # seconds for ranks to end, and for torchrun to end the others
LIBRARIES = (sysconfig.get_path("stdlib"), "site-packages", "dist-packages", "<frozen", "<string>")
HERE = str(Path(__file__).parent)
DDP_FILE = "torch/nn/parallel/distributed.py"

# Errors that only say that some other rank left or did not come.
OF_A_PEER = re.compile(
    "Connection (closed|reset) by peer|Broken pipe|Timed out waiting|wait timeout|pair closure"
    "|got 0 bytes|recvValue failed|Failed to recv|remote process exited|ncclRemoteError"
    "|ollective operation timeout|operations have failed or timed out|monitoredBarrier"
    "|closed the connection|Connection refused|Socket Timeout|clients joined|Timed out after",
    re.IGNORECASE,
)
# gloo's errors begin with a file name on the machine that built torch.
BUILT_AT = r"\[(enforce fail at )?/\S+\.\w+:\d+\] "


@dataclass
class Stand:
    """Where one rank stands.

    Attributes
    ----------
    rank : int
    status : str
        running, raised, ended, or "killed" (its process is gone without a word).
    call : str or None
        What it waits for other ranks in: "all_reduce", "backward", ...; None if it doesn't.
    lines : list of [file, line, function, source]
        Frames of the reader's own code, outermost first.
    counts : dict
        {group: collectives called}
    open : dict or None
        The oldest collective that has not finished.
    """

    rank: int
    status: str
    call: str | None
    lines: list
    counts: dict
    open: dict | None

    def place(self):
        if not self.lines:
            return "somewhere outside of the script"
        file, line, function, source = self.lines[-1]
        return f"{_short(file)}:{line} in {function}" + (f":  {source}" if source else "")

    def callers(self):
        frames = self.lines[-2::-1]
        return [f"        called from {_short(f[0])}:{f[1]} in {f[2]}" for f in frames]

    def does(self):
        if self.status == "ended":
            return "has ended its script"
        if self.status == "killed":
            return "is gone; it last stood"
        return f"waits in {self.call}" if self.call else "does not wait for anybody; it stands"

    def counted(self):
        many = sum(map(bool, self.counts.values())) > 1
        said = [
            f"{called} collectives called" + f" in group {group}" * many
            for group, called in self.counts.items()
            if called
        ]
        if self.open:
            said.append(f"number {self.open['seq']}, {_named(self.open)}, is not finished")
        return "; ".join(said) or "no collective called"


def stand_of(state, alive=True):
    """The `Stand` of a rank, from what watch_rank wrote."""
    stack = state["error"]["stack"] if state["error"] else state["stack"]
    own = [f for f in stack if not any(f[0].startswith(x) or x in f[0] for x in LIBRARIES)]
    script = [f for f in own if not f[0].startswith(HERE)] or own
    last = state["collectives"].get("last")
    # A collective that raised counts as finished.
    unfinished = last if last and (not last["finished"] or state["error"]) else None
    status = state["status"]
    if status == "running" and not alive:
        status = "killed"
    call = None if status == "ended" else _waits_in(stack, unfinished)
    counts = state["collectives"].get("counts", {})
    return Stand(state["rank"], status, call, script, counts, unfinished)


def _waits_in(stack, unfinished):
    """The function in which a rank waits for others; the innermost frame tells whether it does."""
    if not stack:
        return None
    file, _, function, line = stack[-1]
    if unfinished and function == "_engine_run_backward":
        return "backward"
    inside = [f[2] for f in stack if f[0].endswith(DDP_FILE)]
    if inside and (_of_distributed(file) or file.endswith(DDP_FILE)):
        return "DDP(...)" if inside[0] == "__init__" else "DDP's forward"
    if _of_distributed(file):
        # Functions of torch call each other: the reader called the outermost.
        return next(f[2] for f in stack if _of_distributed(f[0]) and f[2] != "wrapper")
    if unfinished and re.search(r"\.(wait|item|cpu|tolist|synchronize)\(", line):
        return unfinished["op"].split(":")[-1]
    return None


def _of_distributed(file):
    return "torch/distributed/" in file and "torch/distributed/elastic" not in file


def _named(call):
    return f"{call['op'].split(':')[-1]} of {call['sizes']}"


def _kind(call):
    """What must agree between ranks; a root gives more than the others."""
    rooted = any(word in call["op"] for word in ("scatter", "gather", "all_to_all"))
    return call["op"] if rooted else _named(call)


def _short(file):
    return min(file, os.path.relpath(file), key=len)


def _ranks(numbers):
    numbers = sorted(numbers)
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def who_is_missing(stands):
    """Who did not arrive.

    Parameters
    ----------
    stands : list of Stand

    Returns
    -------
    culprits : list of int
        Ranks; empty if it can't be told.
    why : str
    """
    gone = [s for s in stands if s.status in ("ended", "killed")]
    if gone and len(gone) < len(stands):
        verb = "ended" if gone[0].status == "ended" else "died"
        return [s.rank for s in gone], f"{verb} while others still needed it"
    making = [s for s in stands if s.call in ("new_group", "init_process_group", "DDP(...)")]
    if making and len(making) < len(stands):
        others = [s.rank for s in stands if s not in making]
        who = _ranks(s.rank for s in making)
        call = making[0].call
        return others, f"did not come to {call} (it holds up {who}): every rank must call it"
    for waiting in stands:  # the counts know, whatever the stacks look like
        if not waiting.open:
            continue
        group, seq = waiting.open["group"], waiting.open["seq"]
        behind = {s.rank: s.counts[group] for s in stands if group in s.counts}
        behind = {rank: called for rank, called in behind.items() if called < seq}
        if behind:
            called = ", ".join(map(str, sorted(set(behind.values()))))
            why = f"called {called} collectives, rank {waiting.rank} is in number {seq}"
            return list(behind), f"{why} ({_named(waiting.open)})"
    for meeting in {(s.open["group"], s.open["seq"]) for s in stands if s.open}:
        there = [s for s in stands if s.open and (s.open["group"], s.open["seq"]) == meeting]
        kinds = Counter(_kind(s.open) for s in there).most_common()
        if len(kinds) > 1:
            few = [kind for kind, n in kinds if n < kinds[0][1]] or [kind for kind, _ in kinds]
            odd = [s.rank for s in there if _kind(s.open) in few]
            said = "; ".join(f"rank {s.rank}: {_named(s.open)}" for s in there)
            return odd, f"the ranks disagree about collective number {meeting[1]}: {said}"
    busy = [s.rank for s in stands if not s.call]
    if busy and len(busy) < len(stands):
        waits = next(s for s in stands if s.call)
        return busy, f"did not come to {waits.call}, where rank {waits.rank} waits"
    if len(busy) == len(stands):
        return busy, "no rank waits for another: each stands in its own code"
    if {s.call for s in stands} <= {"send", "recv", "isend", "irecv", "batch_isend_irecv"}:
        said = "; ".join(f"rank {s.rank} in {s.call}" for s in stands)
        return [s.rank for s in stands], f"each waits for the other: {said}"
    return [], "all wait in the same collective: the network, or a rank on another node"


def describe(stands):
    """A few lines for each rank: what it does, where, how many collectives."""
    lines = []
    for s in stands:
        lines.append(f"rank {s.rank} {s.does()}" + ("" if s.status == "ended" else " at"))
        if s.status != "ended":
            lines += [f"    {s.place()}", *s.callers(), f"    {s.counted()}"]
    return lines


def verdict(stands):
    culprits, why = who_is_missing(stands)
    if not culprits:
        return [f"DID NOT ARRIVE: can't tell; {why}"]
    all_of_them = len(culprits) == len(stands)
    lines = [f"DID NOT {'MEET' if all_of_them else 'ARRIVE'}: {_ranks(culprits)}: {why}"]
    for s in stands:
        if s.rank in culprits and s.status != "ended":
            lines.append(f"    rank {s.rank} at {s.place()}")
    return lines


def explain_hang(states, seconds, alive):
    """The report when no rank moves; `alive` holds the pids that still run."""
    stands = [stand_of(s, s["pid"] in alive) for _, s in sorted(states.items())]
    lines = [f"HANG: nothing has moved for {seconds:g} s", *verdict(stands), ""]
    missing = max(s["world_size"] for s in states.values()) - len(states)
    if missing:
        lines.append(f"{missing} of the ranks can't be seen from here: other nodes, or not started")
    return lines + describe(stands)


def explain_crash(states, exits, said):
    """The report when the launch failed.

    Parameters
    ----------
    states : dict of rank to what watch_rank wrote
    exits : dict of pid to exit code
        From torchrun's report; negative: the signal it died of.
    said : dict of rank to str
        What the rank printed on stderr.
    """
    if not states:
        return ["FAILED before any rank had started: see above what the launcher says"]
    ends = [_end(s, exits.get(s["pid"]), said.get(r, "")) for r, s in sorted(states.items())]
    failed = sorted((e for e in ends if e["what"]), key=lambda e: (e["of a peer"], e["at"]))
    if not failed:
        return ["FAILED, but no rank said why: see above what the launcher says"]
    first, rest = failed[0], failed[1:]
    if first["of a peer"]:
        stands = [stand_of(s) for _, s in sorted(states.items())]
        headline = f"FAILED: {_ranks(e['rank'] for e in failed)} waited in vain"
        errors = [f"rank {e['rank']}: {e['what']}" for e in failed]
        # One that left may have said why. Its exit code is lost if torchrun ended it meanwhile.
        left = [r for r, s in states.items() if s["status"] == "ended"]
        words = [line for r in left for line in _last_words(said.get(r, ""), f"rank {r}'s")]
        return [headline, *verdict(stands), "", *describe(stands), *words, *errors]
    lines = [f"FAILED FIRST: rank {first['rank']}: {first['what']}"]
    state, text = states[first["rank"]], said.get(first["rank"], "")
    stack = main_stack(text)
    stand = stand_of({**state, "stack": stack or state["stack"]})
    lines.append(f"    {'at' if stack or state['error'] else 'last seen at'} {stand.place()}")
    lines += stand.callers()
    if not state["error"]:
        lines += _last_words(text, "its")
    for e in rest:
        after = "because of it" if e["of a peer"] else "too"
        lines.append(f"then {after}: rank {e['rank']}: {e['what']}")
    return lines


def _last_words(text, whose):
    """The end of what a rank printed on stderr, before the stacks of a fatal error."""
    tail = re.sub(BUILT_AT, "", text.split("Fatal Python error")[0]).strip().splitlines()[-8:]
    title = [f"    the last lines of {whose} stderr:"] if tail else []
    return title + [f"    | {line}" for line in tail]


def _in_torch(error):
    """Whether it came from communication: a connection of the script's own may fail, too."""
    if not error["stack"]:
        return False
    file, _, function, source = error["stack"][-1]
    waited = function == "_engine_run_backward" or re.search(r"\.(wait|get)\(", source)
    return bool(waited) or _of_distributed(file) or file.endswith(DDP_FILE)


def main_stack(text):
    """The main thread's stack in what faulthandler printed, outermost frame first."""
    for thread in text.split("most recent call first")[1:]:
        found = re.findall(r'File "(.*)", line (\d+) in (\S+)', thread.split("\n\n")[0])
        if "<module>" in [name for *_, name in found]:
            return [
                [file, int(line), name, linecache.getline(file, int(line)).strip()]
                for file, line, name in reversed(found)
            ]
    return []


def _end(state, code, said):
    """How a rank ended: {"rank", "what", "of a peer", "at"}; what is None if well."""
    error, what = state["error"], None
    if error:
        text = error["text"].strip()
        first_line = text.split("\n")[0]
        what = f"{error['type']}: {re.sub(BUILT_AT, '', first_line)}"
    elif code is not None and code < 0:
        names = {sign.value: sign.name for sign in signal.Signals}
        died = names.get(-code, f"signal {-code}")
        what = f"killed by {died}"
        if died == "SIGKILL":
            what += ": by hand, or by the kernel when memory ran out (see dmesg)"
        abort = re.findall(r"^ *what\(\): +(.*)|^Fatal Python error: (.*)", said, re.MULTILINE)
        if abort:
            what += f" ({'; '.join(re.sub(BUILT_AT, '', a or b) for a, b in abort)})"
        text = what
        if died == "SIGTERM":  # torchrun ends the others so
            what = None
    elif code:
        text = (said.strip().splitlines() or ["without a word"])[-1]
        what = f"exit code {code}: {text}"
    of_a_peer = bool(what) and bool(OF_A_PEER.search(text)) and (not error or _in_torch(error))
    at = error["at"] if error else state["time"]
    return {"rank": state["rank"], "what": what, "of a peer": of_a_peer, "at": at}


# --- running the launch


class Launch:
    """The command, its processes, and what they wrote."""

    def __init__(self, command, folder):
        self.folder, self.family, self.printed = Path(folder), set(), []
        hook = self.folder / "hook"
        hook.mkdir()
        shutil.copy(watch_rank.__file__, hook / "sitecustomize.py")
        rest = os.environ.get("PYTHONPATH")
        env = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join([str(hook), *([rest] if rest else [])]),
            watch_rank.VARIABLE: str(self.folder),
            "PET_TEE": "3", "PET_LOG_DIR": str(self.folder / "logs"),  # torchrun's --tee, --log-dir
            "PET_LOG_LINE_PREFIX_TEMPLATE": "[rank ${rank}]: ",
        }  # fmt: skip
        env.setdefault("TORCH_FR_BUFFER_SIZE", "100")  # enough, and quick to read
        self.process = subprocess.Popen(command, env=env, stderr=subprocess.PIPE, text=True)
        self.reader = threading.Thread(target=self.forward, daemon=True)
        self.reader.start()

    def forward(self):
        for line in self.process.stderr:
            self.printed.append(line)
            sys.stderr.write(line)
            sys.stderr.flush()

    def states(self):
        """{rank: what it last wrote}, of its newest process."""
        found = {}
        for file in self.folder.glob("rank-*.json"):
            state = json.loads(file.read_text())
            old = found.get(state["rank"])
            if old is None or state["time"] > old["time"]:
                found[state["rank"]] = state
        return found

    def meet_family(self):
        with contextlib.suppress(psutil.NoSuchProcess):
            self.family |= set(psutil.Process(self.process.pid).children(recursive=True))
        return {p.pid for p in self.family if p.is_running() and p.status() != "zombie"}

    def exits(self):
        pairs = re.findall(r"exitcode *: (-?\d+) +\(pid: (\d+)\)", "".join(self.printed))
        return {int(pid): int(code) for code, pid in pairs}

    def said(self, states):
        """{rank: its stderr}, newest attempt; the folders are named by local rank."""
        found = {}
        for file in sorted(self.folder.glob("logs/*/attempt_*/*/stderr.log")):
            text = file.read_text(errors="replace")
            found[int(file.parent.name)] = text
        first = min(states, default=0)  # the ranks of a node are consecutive
        return {first + local: text for local, text in found.items()}

    def ask_the_silent(self, states):
        """Where ranks stand whose thread can't write, because C code holds Python's lock.

        A signal may disturb what they do, so they are asked only when all is lost.
        """
        for state in states.values():
            if not _silent(state):
                continue
            with contextlib.suppress(OSError, AttributeError):
                os.kill(state["pid"], signal.SIGUSR2)
                time.sleep(0.3)
                text = (self.folder / f"fault-{state['pid']}.txt").read_text()
                state["stack"] = main_stack(text) or state["stack"]

    def end(self):
        """End the launch and every process it started; nothing else."""
        self.meet_family()
        if self.process.poll() is None:
            self.process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
        left = [p for p in self.family if p.is_running()]
        if self.process.poll() is None:
            left.append(psutil.Process(self.process.pid))
        for p in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                p.kill()
        psutil.wait_procs(left, timeout=5)
        self.process.wait()


def signature(state):
    """What changes when a rank moves."""
    return json.dumps([state["pid"], state["status"], state["stack"], state["collectives"]])


def patience(state, after):
    """Imports may stand long on one line (a cold disk), and may let no other thread write."""
    if _silent(state):
        return max(after, 10)
    importing = any("<frozen importlib" in frame[0] for frame in state["stack"])
    return max(after, START) if importing else after


def leaving(states):
    """Is torchrun about to end the launch by itself? On a busy machine that takes a while."""
    found = {state["status"] for state in states.values()}
    return "raised" in found or "running" not in found


def _silent(state):
    return state["status"] == "running" and time.time() - state["time"] > 6 * watch_rank.EVERY


def follow(launch, after):
    """Wait for the end of the launch, or for a hang: its report, or None."""
    seen, since, told = {}, {None: time.monotonic()}, set()
    while launch.process.poll() is None:
        time.sleep(LOOK_EVERY)
        alive = launch.meet_family()
        now, states = time.monotonic(), launch.states()
        for rank, state in states.items():
            if seen.get(rank) != signature(state):
                seen[rank], since[rank] = signature(state), now
        if not states:
            if now - since[None] > max(after, START):
                warn(told, "no rank of torchrun is here yet: does it wait for other nodes?")
            continue
        wait = max(after, END) if leaving(states) else after
        late = [r for r, s in states.items() if now - since[r] > patience(s, wait)]
        if len(late) == len(states):
            launch.ask_the_silent({r: s for r, s in states.items() if s["pid"] in alive})
            return explain_hang(states, after, alive)
        for rank in late:
            stand = stand_of(states[rank])
            if stand.call and stand.status == "running":
                place = f"in {stand.call} at {stand.place()}"
                warn(told, f"rank {rank} has waited {after:g} s {place}; others still move")
    return None


def warn(told, text):
    """Say it once, and go on: whoever moves may be right to take long."""
    if text not in told:
        told.add(text)
        sys.stderr.write(f"diagnose: {text}\n")


def run(command, after):
    """Run a launch under watch.

    Parameters
    ----------
    command : list of str
    after : float
        Seconds in which no rank moves that count as a hang; choose more than your longest pause.

    Returns
    -------
    int
        The exit code.
    """
    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder:
        launch = Launch(command, folder)
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            report = follow(launch, after)
            code = HUNG if report else launch.process.returncode
            if report is None:
                launch.reader.join(5)
            if code and report is None:
                states = launch.states()
                report = explain_crash(states, launch.exits(), launch.said(states))
        except KeyboardInterrupt:  # torchrun got it, too, and ends its ranks
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                launch.process.wait(35)
            report, code = None, 128 + signal.SIGINT
        finally:
            launch.end()
            signal.signal(signal.SIGTERM, before)
    if report:
        print("", "=" * 70, *report, "=" * 70, sep="\n", flush=True)
    return code if code >= 0 else 128 - code


def main(words=None):
    parser = argparse.ArgumentParser(
        prog="python -m ddp_course.tools.diagnose",
        usage="%(prog)s [--after SECONDS] -- torchrun --standalone --nproc-per-node 2 script.py",
    )
    parser.add_argument("--after", type=float, default=60.0, metavar="SECONDS")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
    if not command:
        parser.error("what shall I run? Put the launch behind --")
    if asked.after <= 0:
        parser.error("--after takes seconds, more than 0")
    if shutil.which(command[0]) is None:
        parser.error(f"there is no command {command[0]}: is the environment of torch active?")
    return run(command, asked.after)

