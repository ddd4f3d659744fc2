"""Lesson 14's training with other settings than the lesson's, and with other launchers."""

import json

import numpy as np
import pytest
from launch import ROOT, python, torchrun
from PIL import Image


@pytest.fixture(scope="module")
def cases(tmp_path_factory):
    folder, random = tmp_path_factory.mktemp("capstone"), np.random.default_rng(0)
    for part, count in (("train", 6), ("test", 3)):
        for kind in ("cats", "dogs"):
            (folder / "jpegs" / part / kind).mkdir(parents=True)
            for i in range(count):
                pixels = random.integers(0, 256, (70, 90, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(folder / "jpegs" / part / kind / f"{i}.jpg")
    (folder / "a").mkdir()
    (folder / "a/notes.txt").write_text("mine")
    env = {"DDP_COURSE_RUNS": str(folder / "runs"), "DDP_COURSE_DEVICE": "cpu"}
    done = torchrun(ROOT / "tests/workers/capstone.py", folder, env=env, timeout=240)
    assert done.returncode == 0, done.stdout
    return json.loads((folder / "cases.json").read_text()) | {"printed": done.stdout}


def test_the_same_line_again_goes_on(cases):
    plain, again = cases["plain"], cases["again"]
    assert (plain["first"], plain["steps"]) == (0, 44)
    assert (again["first"], again["steps"]) == (44, 44)
    assert again["digests"] == plain["digests"] and again["accuracy"] == plain["accuracy"]
    assert "goes on after step 44 of 44" in cases["printed"]


def test_other_settings_are_refused(cases):
    assert "has --epochs 2, not 3: type that" in cases["longer"]["error"]
    assert "has --model resnet18, not cnn: type that" in cases["other model"]["error"]


def test_fresh_deletes_what_is_its_own(cases):
    fresh = cases["fresh"]
    assert (fresh["first"], fresh["steps"]) == (0, 22)
    checkpoints = [name for name in fresh["files"] if name.startswith("step-")]
    assert [name[:14] for name in checkpoints] == ["step-000000022"]
    assert "notes.txt" in fresh["files"]
    assert sum(name.startswith("events.") for name in fresh["files"]) == 1


def test_accumulation_trains_the_same(cases):
    gap = np.abs(np.subtract(cases["accumulate"]["weight"], cases["plain"]["weight"])).max()
    assert gap < 1e-4
    assert abs(cases["accumulate"]["accuracy"] - cases["plain"]["accuracy"]) < 0.01


def test_workers_change_nothing(cases):
    assert cases["workers"]["digests"] == cases["fresh"]["digests"]


def test_a_signal_to_one_rank_loses_nothing(cases):
    stopped, after, plain = cases["signalled"], cases["after the signal"], cases["plain"]
    assert stopped["code"] == 75 and 30 <= stopped["step"] < 44
    assert f"told to stop: saved after step {stopped['step']}" in cases["printed"]
    assert (after["first"], after["steps"]) == (stopped["step"], 44)
    assert after["digests"] == plain["digests"]


def test_half_precision_learns(cases):
    assert cases["fp16"]["precision"] == "fp16"
    assert cases["fp16"]["accuracy"] > 0.5  # two epochs; a tenth by chance


def test_batches_that_do_not_fit(cases):
    assert "a multiple of 2 (ranks × --accumulate)" in cases["odd batch"]["error"]
    assert "at most 1437 (training images)" in cases["large batch"]["error"]


def test_two_worlds_of_one_stop():
    """As srun starts it where the script gets no ranks: each process would train alone."""
    env = {"SLURM_NTASKS": "2", "DDP_COURSE_DEVICE": "cpu"}
    done = python(ROOT / "scripts/14_train.py", env=env)
    assert done.returncode == 1
    assert "the world has one rank, but SLURM_NTASKS is 2" in done.stdout


def test_a_folder_of_jpegs(cases):
    assert cases["jpegs"]["steps"] == 3
    assert len(set(cases["jpegs"]["digests"])) == 1
