"""Exercises of lessons 02 and 03 that need ranks: those that launch nothing are in tests/unit."""

import json
import re

from launch import ROOT, torchrun
from lessons import read
from wrong_answers import answers


def judged(tmp_path, number, *args, ranks):
    """{exercise and answer: what the check says of it}; all ranks must say the same."""
    env = {"DDP_COURSE_RUNS": str(tmp_path), "DDP_COURSE_DEVICE": "cpu"}
    worker = ROOT / "tests/workers/exercises.py"
    done = torchrun(worker, number, *args, ranks=ranks, env=env)
    assert done.returncode == 0, done.stdout
    first, *others = json.loads((tmp_path / "exercises.json").read_text())["ranks"]
    assert all(other == first for other in others), "a rank is left without a reason"
    return first


def assert_as_marked(told, number, exercises, solutions=()):
    marked = [a for a in answers(number) if a.exercise in exercises]
    hints = {f"{a.exercise}: {a.__name__}": a.hint for a in marked} | dict.fromkeys(solutions)
    assert set(told) == set(hints)
    for case, hint in hints.items():
        assert (hint in told[case]) if hint else (told[case] == "right"), (case, told[case])


def test_collectives_of_lesson_02(tmp_path):
    text = "\n".join(c.source for c in read(ROOT / "notebooks/02_process_groups.ipynb").cells)
    (solutions,) = re.findall(r"```python\n(def tree_broadcast.*?)```", text, flags=re.DOTALL)
    (tmp_path / "solutions.py").write_text(solutions)
    script = ROOT / "scripts/02_exercises.py"
    told = judged(tmp_path, "02", script, tmp_path / "solutions.py", ranks=4)
    exercises = ("tree_broadcast", "gather_by_broadcast")
    assert_as_marked(told, "02", exercises, [f"{name}: solution" for name in exercises])


def test_own_ddp_of_lesson_03(tmp_path):
    told = judged(tmp_path, "03", ranks=2)
    assert_as_marked(told, "03", ("PerParameter", "Hooks", "Buckets"))
