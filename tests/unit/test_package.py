"""Models, results, parity and the exercise checker."""

import json
import math

import pytest
import torch

from ddp_course import checks, results
from ddp_course.models import SmallCNN, ToyNet, resnet18_small
from ddp_course.tools.errors import CourseError


@pytest.mark.parametrize(
    "model, x, out",
    [
        (ToyNet(), (3, 10), (3, 5)),
        (SmallCNN(), (3, 1, 8, 8), (3, 10)),
        (SmallCNN((1, 28, 28)), (3, 1, 28, 28), (3, 10)),
        (SmallCNN((3, 32, 32), classes=7), (3, 3, 32, 32), (3, 7)),
        (resnet18_small(), (2, 3, 32, 32), (2, 10)),
        (resnet18_small(channels=1, classes=4), (2, 1, 28, 28), (2, 4)),
    ],
)
def test_models_give_logits(model, x, out):
    assert model(torch.zeros(x)).shape == out


def test_small_cnn_refuses_odd_images():
    with pytest.raises(ValueError, match="divisible by 4"):
        SmallCNN((1, 30, 30))


def test_results_round_trip(tmp_path, monkeypatch):
    monkeypatch.setenv("DDP_COURSE_RUNS", str(tmp_path / "new"))
    results.save("a", {"loss": 0.5})
    run = results.load("a")
    assert run["loss"] == 0.5
    assert set(run["where"]) == {
        "torch", "python", "backend", "world_size", "device", "cores", "threads",
    }  # fmt: skip
    assert [p.name for p in (tmp_path / "new").iterdir()] == ["a.json"]


def test_a_log_can_be_written_before_any_result(tmp_path, monkeypatch):
    """In a fresh clone there is no runs/, and some lessons begin with a log."""
    monkeypatch.setenv("DDP_COURSE_RUNS", str(tmp_path / "new/runs"))
    results.path("c").with_suffix(".log").write_text("a warning")


def test_results_missing_or_broken(tmp_path, monkeypatch):
    monkeypatch.setenv("DDP_COURSE_RUNS", str(tmp_path))
    with pytest.raises(CourseError, match="no result b.json yet"):
        results.load("b")
    (tmp_path / "b.json").write_text(json.dumps({"x": 1})[:-1])
    with pytest.raises(CourseError, match="not JSON"):
        results.load("b")


def test_parity_finds_the_worst():
    one = {"w": torch.zeros(2, 3), "b": torch.zeros(2)}
    other = {"w": torch.zeros(2, 3), "b": torch.tensor([0.0, 0.5])}
    worse = {"w": torch.tensor([[0.0, 0, 0], [0, 0, -2.0]]), "b": torch.zeros(2)}
    assert checks.parity(one, [one, one]) == (0.0, 0, "", ())
    assert checks.parity(one, [one, other, worse]) == (2.0, 2, "w", (1, 2))
    assert checks.parity({"x": [1, 2]}, [{"x": [1, 2]}]).value == 0
    assert checks.parity({"s": torch.tensor(1.0)}, [{"s": torch.tensor(3.0)}]) == (2.0, 0, "s", ())


def test_parity_does_not_overlook_nan_and_inf():
    nan, inf = torch.tensor([math.nan]), torch.tensor([math.inf])
    assert checks.parity({"x": torch.zeros(1)}, [{"x": nan}]).value == math.inf
    assert checks.parity({"x": inf}, [{"x": -inf}]).value == math.inf
    assert checks.parity({"x": inf}, [{"x": inf}]).value == 0


def test_parity_refuses_what_it_can_not_compare():
    with pytest.raises(ValueError, match=r"differ in names: \['y'\]"):
        checks.parity({"x": [1]}, [{"x": [1], "y": [2]}])
    with pytest.raises(ValueError, match="shape"):
        checks.parity({"x": [1]}, [{"x": [1, 2]}])


def test_exercise(capsys):
    def stub(x):
        raise NotImplementedError

    cases = [(1.0,), (2.0,)]
    checks.exercise(stub, lambda x: 2 * x, cases, "double it")
    assert capsys.readouterr().out == "not attempted yet\n"
    checks.exercise(lambda x: x + x, lambda x: 2 * x, cases, "double it")
    assert capsys.readouterr().out == "right, in all 2 cases\n"
    with pytest.raises(AssertionError, match=r"for \(1.0,\): got 1.0, expected 2.0. double it"):
        checks.exercise(lambda x: x, lambda x: 2 * x, cases, "double it")
    for wrong in (None, [2.0], torch.tensor(2.0)):
        with pytest.raises(AssertionError):
            checks.exercise(lambda x, w=wrong: w, lambda x: 2 * x, cases, "double it")


@pytest.mark.parametrize(
    "expected, right, wrong",
    [
        ([1, 2], (1, 2), [1]),
        ({"a": 1.0}, {"a": 1.0}, {"b": 1.0}),
        (torch.ones(2), torch.ones(2), torch.ones(1)),
        (torch.ones(2), torch.ones(2), [1.0, 1.0]),
        (3, 3, 4),
    ],
)
def test_exercise_compares(expected, right, wrong):
    checks.exercise(lambda: right, lambda: expected, [()], "")
    with pytest.raises(AssertionError):
        checks.exercise(lambda: wrong, lambda: expected, [()], "")


def test_ranks_in_threads():
    def work(own, total):
        return total(own) + 10 * total(torch.tensor(1.0))

    assert [t.item() for t in checks.in_threads(work, [1, 2, 4])] == [37.0] * 3
    with pytest.raises(AssertionError, match="every rank must call total equally often"):
        checks.in_threads(lambda own, total: own and total(own), [0, 1])
