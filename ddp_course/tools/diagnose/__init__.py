"""Run a launch; when it hangs or dies, say which rank, at which line, and end it.

    python -m ddp_course.tools.diagnose [--after SECONDS] -- torchrun --standalone ... script.py

The launch runs as always: torchrun, a script that spawns or forks its ranks, shells with RANK and
WORLD_SIZE. `probe` goes along in every Python process and notes where it stands; `launch` watches
and ends, `identify` finds the ranks, `judge` and `crash` say who did not arrive or failed first, as
a `Report`. Printed last, on stdout.
Exit code: that of the launch, or 1 if a rank raised and the launch ended well nevertheless (a
shell's `wait`); 124 if it hung and was ended here; 2 for a bad command line.

What it can't see:

- Ranks that this command did not start: those of other nodes (run it on every node), and those
  whose Python doesn't get its environment (`python -I`, `sudo`, `ssh`, a container): "rank 1: not
  seen here".
- A rank that moves and gets nowhere, such as one that tries a download again and again: it says
  only that the others have waited for long.
- Training in another thread than the main one: the rank stands in `join`.
- Which send belongs to which recv: of point-to-point calls it has the lines alone.
- Without a flight recorder (torch before 2.8 with gloo) how often a line was passed: two ranks in
  the same line, one a step ahead, are "can't tell". It says so, and judges by the lines.
- How a rank ended that a shell started: killed by SIGKILL and `os._exit` look alike.
- A loader's worker: the rank that waits for it is named, with its own line.
- NCCL's recorder is read as gloo's is, but has not been tried here, where there is no GPU.
"""

import contextlib
import signal
import subprocess
import sys
import tempfile
import threading

from ddp_course.tools.diagnose.crash import crash
from ddp_course.tools.diagnose.launch import Launch, follow
from ddp_course.tools.diagnose.report import RankError, RankState, Report
from ddp_course.tools.diagnose.stacks import BUILT_AT

__all__ = ["BUILT_AT", "RankError", "RankState", "Report", "run"]


def run(command, after=60.0):
    """Run a launch under watch.

    Called in the main thread, it ends the launch on SIGTERM, too.

    Parameters
    ----------
    command : list of str
    after : float
        Seconds in which no rank moves that count as a hang; choose more than your longest pause.

    Returns
    -------
    Report
        Its `exit_code` is that of the launch, 124 if it hung, 128 + n if signal n ended it.
    """
    with tempfile.TemporaryDirectory(prefix="diagnose-") as folder:
        launch = Launch(command, folder)
        in_main = threading.current_thread() is threading.main_thread()
        if in_main:
            before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
        try:
            return follow(launch, after) or _ended(launch)
        except KeyboardInterrupt:  # the launcher got it, too, and ends its ranks
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                launch.process.wait(35)
            return Report("stopped", exit_code=128 + signal.SIGINT)
        finally:
            launch.end()
            if in_main:
                signal.signal(signal.SIGTERM, before)


def _ended(launch):
    """The report on a launch that ended by itself."""
    launch.reader.join(5)
    code = launch.process.returncode
    states = launch.states(launch.alive())
    # A shell's `wait` and a parent that doesn't look at its children end well nevertheless.
    if code == 0 and not any(s["error"] for s in states):
        return Report("ok")
    code = code if code >= 0 else 128 - code
    return crash(states, launch.exits(), launch.said(states), launch.faults(), code or 1)
