"""Joining, leaving, and what a reader is told when it can't work."""

import json
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from launch import ROOT, python, torchrun
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course.models import ToyNet
from ddp_course.nodes import free_port
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import all_or_none
from ddp_course.tools.errors import CourseError

WORKERS = ROOT / "tests/workers"


@pytest.fixture
def alone(monkeypatch):
    """The variables that torchrun sets, for a world of one."""
    port = free_port()
    world = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
    for name, value in {**world, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setenv("DDP_COURSE_DEVICE", "cpu")
    return port


def test_yields_who_i_am_and_cleans_up(alone):
    with process_group() as (rank, local_rank, world_size, device):
        assert (rank, local_rank, world_size, str(device)) == (0, 0, 1, "cpu")
        assert dist.get_backend() == "gloo"
    assert not dist.is_initialized()


def test_an_exception_passes_and_the_group_goes(alone):
    with pytest.raises(ZeroDivisionError), process_group():
        1 / 0  # noqa: B018
    assert not dist.is_initialized()


def test_bad_input_leaves_with_one_line(alone, capsys):
    with pytest.raises(SystemExit) as left, process_group():
        raise CourseError("no such thing")
    assert left.value.code == 1 and capsys.readouterr().err == "rank 0: no such thing\n"
    assert not dist.is_initialized()


def gloo_threads():
    names = (p.read_text().strip() for p in Path("/proc/self/task").glob("*/comm"))
    return [name for name in names if "gloo" in name]


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="reads Linux's /proc")
def test_no_thread_of_the_group_is_left(alone):
    """A thread that is left can abort the process at exit, in a few runs of a hundred."""

    def train():
        model = DDP(ToyNet())
        model(torch.ones(2, 10)).sum().backward()

    with process_group():
        train()
        assert gloo_threads()
    assert gloo_threads() == []


def test_without_torchrun():
    done = python("scripts/00_hello.py")
    assert done.returncode == 1
    assert done.stdout == (
        "scripts/00_hello.py needs a launcher (RANK is not set): "
        "type  torchrun --standalone --nproc-per-node 2 scripts/00_hello.py\n"
    )


def test_gpu_wanted_and_none_there(alone, monkeypatch, capsys):
    monkeypatch.setenv("DDP_COURSE_DEVICE", "cuda")
    monkeypatch.setattr("ddp_course.hardware.count_gpus", lambda: 0)
    with pytest.raises(SystemExit), process_group():
        pass
    assert capsys.readouterr().err.startswith("rank 0: 1 rank on a node with 0 GPUs")


def test_taken_port(alone, capsys):
    with socket.socket() as s:
        s.bind(("", alone))
        s.listen()
        with pytest.raises(SystemExit), process_group():
            pass
    assert f"port {alone} is taken" in capsys.readouterr().err


def test_everywhere_without_a_group():
    assert all_or_none(lambda: 3) == 3
    with pytest.raises(OSError):
        all_or_none(lambda: Path("/nowhere").read_text())


def test_two_ranks_together(tmp_path):
    done = torchrun(WORKERS / "together.py", tmp_path, env={"DDP_COURSE_RUNS": str(tmp_path)})
    assert done.returncode == 0, done.stdout
    ranks = json.loads((tmp_path / "together.json").read_text())["ranks"]
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
    done = torchrun(WORKERS / "no_data.py")
    assert done.returncode == 1
    ours = [line for line in done.stdout.splitlines() if line.startswith("rank ")]
    text = (
        "no folder /nowhere/train: put JPEGs into /nowhere/train/<class>/, or name another folder"
    )
    assert sorted(ours) == [f"rank {r}: {text}" for r in range(2)]
    root_cause = done.stdout.split("Root Cause")[1]
    assert f"CourseError: {text}" in root_cause
