"""Launches as a lesson makes them, and copies of the course."""

import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "tools"))
from launching import ROOT, elastic, python, torchrun  # noqa: E402, F401  for tests of the course

ODD_NAME = "mein Kurs – 深度学习 ü"  # a folder's name as people give them


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
