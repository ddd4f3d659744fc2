"""Lesson 02's exercises, on four ranks: those that launch nothing are in tests/unit."""

import json
import re

from launch import ROOT, torchrun
from lessons import read
from wrong_answers import answers


def test_collectives_of_lesson_02(tmp_path):
    """A rank that is told is enough, it ends the launch."""
    text = "\n".join(c.source for c in read(ROOT / "notebooks/02_process_groups.ipynb").cells)
    (solutions,) = re.findall(r"```python\n(def tree_broadcast.*?)```", text, flags=re.DOTALL)
    (tmp_path / "solutions.py").write_text(solutions)
    worker, script = ROOT / "tests/workers/exercises.py", ROOT / "scripts/02_exercises.py"
    env = {"DDP_COURSE_RUNS": str(tmp_path), "DDP_COURSE_DEVICE": "cpu"}
    done = torchrun(worker, script, tmp_path / "solutions.py", ranks=4, env=env)
    assert done.returncode == 0, done.stdout
    ranks = json.loads((tmp_path / "exercises.json").read_text())["ranks"]
    of_script = ("tree_broadcast", "gather_by_broadcast")
    told = [a for a in answers("02") if a.exercise in of_script]
    hints = {f"{a.exercise}: {a.__name__}": a.hint for a in told}
    hints |= {"tree_broadcast: solution": None, "gather_by_broadcast: solution": None}
    assert set(ranks[0]) == set(hints)
    for case, hint in hints.items():
        told = [rank[case] for rank in ranks if rank[case] != "right"]
        if hint:
            assert any(hint in text for text in told), (case, told)
        else:
            assert told == [], case


def test_own_ddp_of_lesson_03(tmp_path):
    """All ranks say the same of a wrapper: none is left waiting for one that has failed."""
    env = {"DDP_COURSE_RUNS": str(tmp_path), "DDP_COURSE_DEVICE": "cpu"}
    done = torchrun(ROOT / "tests/workers/own_ddp.py", ranks=2, env=env)
    assert done.returncode == 0, done.stdout
    one, other = json.loads((tmp_path / "own_ddp.json").read_text())["ranks"]
    stages = ("PerParameter", "Hooks", "Buckets")
    hints = {a.__name__: a.hint for a in answers("03") if a.exercise in stages}
    assert set(one) == set(hints) and one == other
    for name, hint in hints.items():
        assert (hint in one[name]) if hint else (one[name] == "right"), (name, one[name])
