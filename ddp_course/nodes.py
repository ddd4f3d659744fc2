"""Several torchruns at once, as if each were started on a node of its own."""

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
import time
from typing import NamedTuple

from ddp_course.tools import processes

GRACE_S = 40.0  # torchrun ends its ranks on SIGTERM, at the latest after 30 s


class Ended(NamedTuple):
    """How a command ended.

    Attributes
    ----------
    code : int or None
        Exit code; negative: killed by that signal; None: still running at the time limit.
    output : str
        What it wrote to stdout and stderr.
    """

    code: int | None
    output: str


def launch(commands, timeout=120.0, env=None):
    """Start commands together and wait for all of them.

    Parameters
    ----------
    commands : list of list of str
        "torchrun" as first word is that of this Python.
    timeout : float
        Seconds; what still runs then gets SIGTERM, and after 40 s SIGKILL.
    env : dict, optional
        Variables on top of this process's.

    Returns
    -------
    list of Ended
    """
    environment = {**os.environ, **(env or {})}
    logs, started = [], []
    try:
        for command in commands:
            logs.append(tempfile.TemporaryFile("w+"))  # noqa: SIM115 _read closes it
            full = [word for part in map(_full, command) for word in part]
            started.append(
                subprocess.Popen(full, stdout=logs[-1], stderr=subprocess.STDOUT, env=environment)
            )
        end = time.monotonic() + timeout
        codes = [processes.wait(process, end - time.monotonic()) for process in started]
    finally:
        processes.end_trees(started, GRACE_S)
    return [Ended(code, _read(log)) for code, log in zip(codes, logs)]


def free_port():
    """A port of this machine that nobody uses at the moment.

    Not one that the system gives away by itself (on Linux from 32768): until the launch comes to
    listen, any outgoing connection could take it.
    """
    for port in random.SystemRandom().sample(range(20_000, 32_000), 100):
        with socket.socket() as s, contextlib.suppress(OSError):
            s.bind(("", port))
            return port
    raise OSError("none of 100 ports between 20000 and 31999 is free")


def _full(word):
    return [sys.executable, "-m", "torch.distributed.run"] if word == "torchrun" else [str(word)]


def _read(log):
    with log:
        log.seek(0)
        return log.read()
