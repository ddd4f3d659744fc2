"""Close the gaps of nbval 0.11: cells that it lets pass although they failed.

Here and not under tests/, so that `pytest notebooks/NN_topic.ipynb` has it too.
tests/test_guard.py proves with canary notebooks that each gap is closed.
"""

import os
import re
from pathlib import Path

import pytest
from nbval.plugin import NbCellError

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS = ROOT / "scripts"
# With two workers there are more threads than cores: those that wait must not spin.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def _is_cell(item):
    return hasattr(item, "cell") and hasattr(item, "cell_num")


def _scripts():
    return {p.name: p.read_bytes() for p in SCRIPTS.iterdir() if p.is_file()}


BEFORE = _scripts()  # pytest imports this file before it runs the first cell


def _written_by(notebook):
    cells = [c.source for c in notebook.nb.cells if c.cell_type == "code"]
    return re.findall(r"^%%writefile \.\./scripts/(\S+)", "\n".join(cells), flags=re.MULTILINE)


def _printed(item):
    return "".join(o.text for o in item.test_outputs if o.output_type == "stream")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item):
    if not _is_cell(item):
        return (yield)
    notebook = item.parent
    hung_before = notebook.timed_out
    item.test_outputs = []
    try:
        result = yield
    except NbCellError as error:  # nbval shows the traceback only: of a !command, its exit status
        error.source += f"\n\nOutput:\n{_printed(item)}"
        raise
    text = _printed(item)
    if notebook.timed_out and not hung_before:
        item.raise_cell_error("The cell ran into the time limit and was interrupted")
    if "UsageError:" in text:
        # An unknown magic, or a cell magic that isn't on the first line: IPython prints, no more.
        item.raise_cell_error("IPython did not understand the cell", text)
    raised = any(o.output_type == "error" for o in item.test_outputs)
    if item.options["check_exception"] and not raised:
        item.raise_cell_error("The cell is tagged raises-exception, but raised nothing")
    return result


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item, nextitem):
    result = yield
    last = nextitem is None or nextitem.parent is not item.parent
    if _is_cell(item) and last:
        now = _scripts()
        names = BEFORE.keys() | now.keys()
        if "PYTEST_XDIST_WORKER" in os.environ:  # another lesson may be writing its own just now
            names = _written_by(item.parent)
        changed = {n for n in names if BEFORE.get(n) != now.get(n)}
        if changed:
            pytest.fail(
                f"{item.parent.name} left other scripts behind than it found: {sorted(changed)}; "
                "the %%writefile cells are the source, so commit what they write",
                pytrace=False,
            )
    return result
