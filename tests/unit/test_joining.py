"""Joining and leaving in a world of one, and what a reader is told when it can't work."""

import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course.models import ToyNet
from ddp_course.nodes import free_port
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import all_or_none
from ddp_course.tools.errors import CourseError


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


def test_all_or_none_without_a_group():
    assert all_or_none(lambda: 3) == 3
    with pytest.raises(OSError):
        all_or_none(lambda: Path("/nowhere").read_text())
