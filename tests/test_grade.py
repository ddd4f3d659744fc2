"""The grader of lesson 14: a right conversion gets every point, wrong ones lose the right point."""

import re

import pytest
from launch import ROOT, elastic, python
from lessons import read
from workers import graded

from ddp_course import grade, nodes

TEN, TWO = "EPOCHS = 64, 10", "EPOCHS = 64, 2"  # ten are for the accuracy; two do here
PLAIN = (ROOT / "scripts/14_mine.py").read_text().replace(TEN, TWO)
LESSON = "\n".join(c.source for c in read(ROOT / "notebooks/14_capstone.ipynb").cells)
(RIGHT,) = re.findall(r'```python\n(""".*?)\n```', LESSON, flags=re.DOTALL)
RIGHT = RIGHT.replace(TEN, TWO)

SAVE = 'torch.save(model.state_dict(), FOLDER / "model.pt")'
RETURN = "return right.item() / len(images)"
MKDIR = "FOLDER.mkdir(parents=True, exist_ok=True)"
PRINT = "            if me.rank == 0:\n                print"
# What is changed in the right conversion, and the points that are lost. None: not converted.
WRONG = {
    "not_converted": (None, {
        "one group", "data split", "parameters in sync", "gradients averaged", "model.pt",
        "rank 0 speaks",
    }),
    "every_rank_all_data": (
        ("sampler=sampler)", "shuffle=True)"),
        # One seed, one order: the ranks' gradients are alike, and nobody can see them averaged.
        {"data split", "64 images a step", "gradients averaged"},
    ),
    "same_order_each_epoch": (("sampler.set_epoch(epoch)", "pass"), {"data split"}),
    "batch_not_divided": (("BATCH // me.world_size", "BATCH"), {"64 images a step"}),
    "not_averaged": (
        ("ddp = DDP(model)", "ddp = model"),
        {"parameters in sync", "gradients averaged", "as one process", "accuracy"},
    ),
    "around_the_wrapper": (
        ("cross_entropy(ddp(", "cross_entropy(ddp.module("),
        {"parameters in sync", "gradients averaged", "as one process", "accuracy"},
    ),
    "summed": (("loss.backward()", "(loss * me.world_size).backward()"), {"as one process"}),
    "rate_scaled": (("lr=0.05", "lr=0.1"), {"as one process"}),
    "own_half_only": (("    dist.all_reduce(right)\n", ""), {"accuracy"}),
    "mean_of_means": (
        ("    dist.all_reduce(right)\n",
         "    right *= len(images) / len(mine) / me.world_size\n    dist.all_reduce(right)\n"),
        {"accuracy"},
    ),
    "padded_evaluation": (
        ("mine = Subset(images, range(me.rank, len(images), me.world_size))",
         "mine = Subset(images, list(DistributedSampler(images, shuffle=False)))"),
        {"accuracy"},
    ),
    "local_rank": (
        (PRINT, PRINT.replace("me.rank", "me.local_rank")), {"rank 0 speaks"}
    ),
    "too_many_images": (
        ("BATCH // me.world_size, sampler", "BATCH // me.world_size + 1, sampler"),
        {"64 images a step"},
    ),
    "one_rank_knows": ((RETURN, f"{RETURN} if me.rank == 0 else None"), {"accuracy"}),
    "all_write": (
        (f"    if me.rank == 0:\n        {MKDIR}\n        {SAVE}", f"    {MKDIR}\n    {SAVE}"),
        {"model.pt"},
    ),
    "wrapper_saved": ((SAVE, SAVE.replace("model.state", "ddp.state")), {"model.pt"}),
    "not_saved": ((SAVE, "pass"), {"model.pt"}),
    "all_speak": ((PRINT, PRINT.replace("me.rank == 0", "True")), {"rank 0 speaks"}),
    "stays_in_the_group": (
        ("    with process_group() as me:",
         "    globals()['kept'] = process_group()\n    for me in [kept.__enter__()]:"),
        {"leaves the group"},
    ),
}  # fmt: skip


def source(case):
    change = WRONG[case][0] if case in WRONG else ("", "")
    if change is None:
        return PLAIN
    assert change[0] in RIGHT, case
    return RIGHT.replace(change[0], change[1], 1)


@pytest.fixture(scope="module")
def seen(tmp_path_factory):
    """All cases in one launch; what the ranks saw of each."""
    folder, ports = tmp_path_factory.mktemp("graded"), {}
    for case in ("right", *WRONG):
        (folder / case).mkdir()
        (folder / f"{case}.py").write_text(source(case))
        ports[case] = nodes.free_port()
    elastic(graded.main, folder, ports, timeout=280)
    return folder


def points(folder, case):
    return {p.name: p for p in grade.judge(folder / case)}


def test_right(seen):
    answers = points(seen, "right")
    assert len(answers) == 10
    assert all(p.right for p in answers.values()), answers


@pytest.mark.parametrize("case", WRONG)
def test_wrong(seen, case):
    answers = points(seen, case)
    assert {name for name, p in answers.items() if not p.right} == WRONG[case][1], answers


HANG = ("    dist.all_reduce(right)", "    if me.rank == 0:\n        dist.all_reduce(right)")


def test_does_not_end(tmp_path, monkeypatch):
    assert HANG[0] in RIGHT
    monkeypatch.setattr(grade, "STILL_S", 4.0)
    (tmp_path / "mine.py").write_text(RIGHT.replace(*HANG, 1))
    (point,) = grade.grade(tmp_path / "mine.py")
    assert not point.right and "DID NOT ARRIVE: rank 1" in point.said, point.said
    assert "mine.py:" in point.said  # the line


def test_a_rank_ends_itself_at_the_limit(tmp_path):
    """What moves all the time is no hang for diagnose."""
    (tmp_path / "mine.py").write_text("while True:\n    pass\n")
    words = ["-m", "ddp_course.grade", tmp_path / "mine.py", tmp_path, 1]
    done = python(*words, env={"RANK": "0"})
    assert done.returncode == 1 and done.stdout.endswith("still running after 1 s\n"), done.stdout
    assert "mine.py" in done.stdout


def test_check(seen, monkeypatch, capsys):
    grade.check(ROOT / "scripts/14_mine.py")
    assert capsys.readouterr().out == "not attempted yet\n"
    monkeypatch.setattr(grade, "grade", lambda *_: list(points(seen, "right").values()))
    grade.check(seen / "right.py")
    assert capsys.readouterr().out.endswith("right, in all 10 points\n")
    monkeypatch.setattr(grade, "grade", lambda *_: list(points(seen, "all_speak").values()))
    with pytest.raises(AssertionError, match="9 of 10 points"):
        grade.check(seen / "all_speak.py")
    assert "NO  rank 0 speaks        lines printed: [3, 2]" in capsys.readouterr().out


def test_no_such_script(tmp_path):
    with pytest.raises(FileNotFoundError):
        grade.check(tmp_path / "none.py")
