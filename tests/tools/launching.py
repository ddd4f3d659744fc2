"""Launches for tests: warm ones of a function, cold ones of a script as a user types them.

Needs pytest's Python, torch >= 2.4 and the standard library, so the tools' tests on the lowest
torch have it too.
"""

import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import threading
import uuid
from pathlib import Path

from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs, Std
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

ROOT = Path(__file__).resolve().parents[2]
# Imported once, before the first rank: the ranks are forks of a process that has these.
# torch._dynamo: DDP's constructor and every optimizer's import it.
PRELOAD = ["torch", "torch._dynamo"]
HANDLED = [getattr(signal, name) for name in ("SIGTERM", "SIGINT", "SIGHUP", "SIGQUIT")]


def elastic(function, *args, ranks=2, env=None, timeout=60, restarts=0):
    """Run a function on the ranks of one launch, without the cost of importing torch in each.

    Torch's `elastic_launch`, which is what torchrun calls, in this process. Call it in the main
    thread: it installs signal handlers, which are put back.

    Parameters
    ----------
    function : callable
        Of a module that the ranks can import; it reads RANK and WORLD_SIZE, as under torchrun.
        It need not leave its group: on torch 2.4 destroy_process_group of gloo now and then blocks
        for ever (11 of 60 launches; none of 40 without it), and a rank ends without it as well.
    *args
        Its arguments; they are pickled, and so is what it returns.
    ranks : int
    env : dict of str to str, optional
        Variables of the ranks. They have those this process had at its first launch, and not
        what it has set since.
    timeout : float
        Seconds; the ranks are killed then.
    restarts : int
        How often torchrun starts all ranks again when one has died.

    Returns
    -------
    list
        What each rank returned.

    Raises
    ------
    TimeoutError, ChildFailedError
        With all that the ranks printed.
    """
    os.environ.setdefault("OMP_NUM_THREADS", "1")  # torch reads it as it is imported
    multiprocessing.set_forkserver_preload(PRELOAD)
    handlers = {number: signal.getsignal(number) for number in HANDLED}
    with tempfile.TemporaryDirectory() as logs:
        config = LaunchConfig(
            min_nodes=1, max_nodes=1, nproc_per_node=ranks, run_id=uuid.uuid4().hex,
            rdzv_backend="c10d", rdzv_endpoint="localhost:0", local_addr="localhost",
            max_restarts=restarts, start_method="forkserver",
            logs_specs=DefaultLogsSpecs(log_dir=logs, redirects=Std.ALL),
        )  # fmt: skip
        late = threading.Timer(timeout, _kill_ranks)
        late.start()
        try:
            returned = elastic_launch(config, _rank)(function, args, env or {})
        except ChildFailedError as error:
            printed = "".join(p.read_text() for p in sorted(Path(logs).rglob("*.log")))
            if late.finished.is_set():
                raise TimeoutError(
                    f"no end after {timeout} s; the ranks printed:\n{printed}"
                ) from None
            error.args = (f"{error}\nThe ranks printed:\n{printed}",)
            raise
        finally:
            late.cancel()
            for number, handler in handlers.items():
                signal.signal(number, handler)
    return [returned[rank] for rank in range(ranks)]


def _rank(function, args, env):
    os.environ.update(env)
    gc.freeze()  # what is imported stays: a collection need not look at all of torch each time
    return function(*args)


def _kill_ranks():
    for rank in multiprocessing.active_children():
        rank.kill()


def python(*args, env=None, timeout=120, cwd=ROOT):
    """Run this environment's Python; returns subprocess.CompletedProcess, output in .stdout."""
    return subprocess.run(
        [sys.executable, *map(str, args)],
        env={**os.environ, "OMP_NUM_THREADS": "1", **(env or {})},
        cwd=cwd,
        timeout=timeout,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def torchrun(script, *args, ranks=2, flags=("--standalone",), **kwargs):
    """Run a script on the ranks of one node as a user does, every process a new Python.

    Parameters
    ----------
    script : path
    *args
        Of the script.
    ranks : int
    flags : sequence of str
        Of torchrun.
    **kwargs
        env, timeout, cwd: as of `python`, whose result it returns.
    """
    launcher = ["-m", "torch.distributed.run", *flags, "--nproc-per-node", ranks]
    return python(*launcher, script, *args, **kwargs)
