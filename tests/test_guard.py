"""The canary notebooks go wrong in every way that nbval alone lets pass; each must turn red."""

import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree

import pytest
from launch import ROOT, two_at_a_time

RED = {
    ("gone_wrong", 1): "'exit 3' returned non-zero exit status 3",
    ("gone_wrong", 2): "'no_such_command_here' returned non-zero exit status 127",
    ("gone_wrong", 3): "did not understand the cell",  # an unknown magic
    ("gone_wrong", 4): "did not understand the cell",  # a comment above %%writefile
    ("gone_wrong", 5): "tagged raises-exception, but raised nothing",
    ("gone_wrong", 6): "Cell outputs differ",
    ("gone_wrong", 9): "left other scripts behind than it found: ['canary.py']",
    ("hanging_command", 0): "ran into the time limit",
    ("hang_that_swallows_the_interrupt", 0): "ran into the time limit",
}
GREEN = [("gone_wrong", 0), ("gone_wrong", 7), ("gone_wrong", 8)]  # 8 raises, and may


# Notebooks, and seconds that a cell may take: of those that hang, few.
RUNS = [("gone_*.ipynb", 60), ("hang*.ipynb", 3)]


@pytest.fixture(scope="module")
def verdicts(tmp_path_factory):
    """What pytest said of each cell, "" if nothing: {(notebook, cell): text}."""
    found = two_at_a_time(lambda run: judged(tmp_path_factory.mktemp("course"), *run), RUNS)
    return {cell: text for cells in found.values() for cell, text in cells.items()}


def judged(folder, pattern, seconds):
    """The same of the notebooks of one pattern, in a pytest and a folder of their own."""
    shutil.copytree(ROOT / "tests/canaries", folder / "notebooks")
    shutil.copy(ROOT / "notebooks/conftest.py", folder / "notebooks")
    (folder / "scripts").mkdir()
    (folder / "scripts/canary.py").write_text("print()\n")
    report, found = folder / "report.xml", {}
    options = ["--nbval-lax", "--nbval-current-env", f"--nbval-cell-timeout={seconds}"]
    options += [f"--junitxml={report}", "-p", "no:cacheprovider", "--color=no"]
    notebooks = sorted((folder / "notebooks").glob(pattern))
    command = [sys.executable, "-m", "pytest", *options, *notebooks]
    subprocess.run(command, cwd=folder, timeout=200, capture_output=True)
    for case in ElementTree.parse(report).iter("testcase"):
        notebook = case.get("classname").split(".")[1]
        bad = [b for b in case if b.tag in ("failure", "error")]
        key = notebook, int(case.get("name").removeprefix("Cell "))
        found[key] = found.get(key, "") + "".join(b.get("message") + b.text for b in bad)
    return found


def test_every_canary_has_an_expectation(verdicts):
    assert set(verdicts) == {*RED, *GREEN}


@pytest.mark.parametrize("cell", RED, ids=str)
def test_canary_is_red(verdicts, cell):
    assert RED[cell] in verdicts[cell]


@pytest.mark.parametrize("cell", GREEN, ids=str)
def test_control_is_green(verdicts, cell):
    assert verdicts[cell] == ""


def test_what_a_failed_command_said_is_shown(verdicts):
    assert "not found" in verdicts["gone_wrong", 2]
