"""The exercises of the lessons: the solution passes, typical wrong answers are told why."""

import re

import pytest
import torch
from launch import ROOT
from lessons import NOTEBOOKS, code_cells, read

from ddp_course import checks

# (lesson, function): answers that must be refused, and what the message must mention.
WRONG = {
    ("00_start_here", "bus_bandwidth"): [
        ("return nbytes / seconds / 1e9", "0 for n = 1"),
        ("return nbytes / seconds * 2 * (n - 1) / n", "GB, not bytes"),
        ("return nbytes / seconds * (n - 1) / n / 1e9", "got 0.5, expected 1.0"),
    ],
    ("01_dp_vs_ddp", "step_bytes"): [
        ("return 2 * (n - 1) / n * parameters", "Return two numbers"),
        ("return 2 * n * parameters, 2 * (n - 1) / n * parameters", "Look at DP:"),
        (
            "dp = 2 * (n - 1) * parameters + (n - 1) / n * (inputs + 2 * outputs)\n"
            "    return dp, (n - 1) / n * parameters",
            "Look at DDP:",
        ),
    ],
}


def stubs():
    found = []
    for path in NOTEBOOKS:
        for cell in code_cells(read(path)):
            if "checks.exercise(" in cell.source:
                for name in re.findall(r"def (\w+)\([^)]*\):(?=\n    raise NotImpl)", cell.source):
                    found.append((path.stem, name))
    return found


def run(lesson, name, body=None):
    """Run the exercise's cell, with the stub's body replaced; None leaves the stub."""
    notebook = read(ROOT / f"notebooks/{lesson}.ipynb")
    stub = rf"(def {name}\([^)]*\):\n)    raise NotImplementedError.*"
    cell = next(c.source for c in code_cells(notebook) if re.search(stub, c.source))
    if body is not None:
        cell = re.sub(stub, lambda m: m.group(1) + "    " + body, cell)
    exec(cell, {"checks": checks, "torch": torch})


def solution(lesson, name):
    text = "\n".join(c.source for c in read(ROOT / f"notebooks/{lesson}.ipynb").cells)
    found = re.search(rf"```python\n(?:.*\n)*?def {name}\([^)]*\):\n((?:    .*\n|\n)+)```", text)
    assert found, f"no folded solution for {name} in {lesson}"
    return found.group(1).strip()


def test_every_exercise_is_tested():
    assert set(stubs()) == set(WRONG)
    assert all(len(wrong) >= 3 for wrong in WRONG.values())


@pytest.mark.parametrize("exercise", WRONG, ids=lambda e: e[1])
def test_stub_is_green(exercise, capsys):
    run(*exercise)
    assert capsys.readouterr().out == "not attempted yet\n"


@pytest.mark.parametrize("exercise", WRONG, ids=lambda e: e[1])
def test_solution_passes(exercise, capsys):
    run(*exercise, solution(*exercise))
    assert capsys.readouterr().out.startswith("right, in all")


@pytest.mark.parametrize(
    "exercise, body, hint",
    [(e, body, hint) for e, wrong in WRONG.items() for body, hint in wrong],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_wrong_answer_is_told_why(exercise, body, hint):
    with pytest.raises(AssertionError, match=re.escape(hint)):
        run(*exercise, body)
