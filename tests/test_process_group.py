"""Joining and leaving a process group of two ranks, and what is said without torchrun."""

from launch import ROOT, elastic, python, torchrun
from workers import together


def test_without_torchrun():
    done = python("scripts/00_hello.py")
    assert done.returncode == 1
    assert done.stdout == (
        "scripts/00_hello.py needs a launcher (RANK is not set): "
        "type  torchrun --standalone --nproc-per-node 2 scripts/00_hello.py\n"
    )


def test_two_ranks_together(tmp_path):
    ranks = elastic(together.main, tmp_path, env={"DDP_COURSE_DEVICE": "cpu"})
    for rank, seen in enumerate(ranks):
        assert seen["me"] == [rank, rank, 2, "cpu"]
        assert seen["value"] == rank * 10
        assert seen["one fails"] == "OSError('the disk of rank 1 is full')"
        assert "put JPEGs into" in seen["no folder"]
        assert seen["no name"].startswith("unknown data set 'imagenet': choose from digits")
        assert "can't be read or downloaded" in seen["no network"]
        assert "\n" not in seen["no network"]
        # The others waited for longer than the collective timeout; one of them downloaded.
        assert seen["log"] == "downloaded\n"


def test_missing_data_is_one_line_on_every_rank():
    done = torchrun(ROOT / "tests/workers/no_data.py")
    assert done.returncode == 1
    ours = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    text = (
        "no folder /nowhere/train: put JPEGs into /nowhere/train/<class>/, or name another folder"
    )
    assert sorted(ours) == [f"rank {r}: {text}" for r in range(2)]
    root_cause = done.stdout.split("Root Cause")[1]
    assert f"CourseError: {text}" in root_cause
