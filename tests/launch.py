"""Start torchrun the way a lesson does, and get everything it printed."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ODD_NAME = "mein Kurs – 深度学习 ü"  # a folder's name as people give them


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
    """Run a script on the ranks of one node; the return code and output as `python`."""
    launcher = ["-m", "torch.distributed.run", *flags, "--nproc-per-node", ranks]
    return python(*launcher, script, *args, **kwargs)


def two_at_a_time(function, cases):
    """{case: function(case)}, in two threads: while one launch waits, another can use the cores."""
    with ThreadPoolExecutor(2) as pool:
        return dict(zip(cases, pool.map(function, cases)))


def copy_course(folder):
    """Copy what the lessons need; returns the environment in which the copy is the course."""
    ignored = shutil.ignore_patterns("__pycache__", ".ipynb_checkpoints")
    for part in ("notebooks", "scripts", "ddp_course"):
        shutil.copytree(ROOT / part, folder / part, ignore=ignored)
    env = {**os.environ, "PYTHONPATH": str(folder)}  # comes before the installed package
    env.pop("DDP_COURSE_RUNS", None)  # results are under the copy
    return env
