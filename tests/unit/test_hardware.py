"""The plan for machines that we don't have, and the wishes that it refuses."""

import runpy

import pytest
from launch import ROOT

from ddp_course.hardware import (
    MAX_CPU_RANKS,
    MAX_SHARING,
    CourseError,
    plan,
    rank_backend,
    rank_device,
)
from ddp_course.process_group import Ranks

SHARED = {"DDP_COURSE_DEVICE": "cuda", "DDP_COURSE_RANKS": "2"}


@pytest.mark.parametrize(
    "gpus, ranks, expected",
    [
        (0, None, ("cpu", "gloo", 2)),
        (1, None, ("cpu", "gloo", 2)),  # one GPU is shared by those who ask for it
        (1, 1, ("cuda", "nccl", 1)),
        (2, None, ("cuda", "nccl", 2)),
        (8, None, ("cuda", "nccl", 8)),
        (0, 4, ("cpu", "gloo", 4)),
        (2, 4, ("cpu", "gloo", 4)),  # a lesson needs four, there are two GPUs
        (8, 4, ("cuda", "nccl", 4)),
    ],
)
def test_plan(gpus, ranks, expected):
    made = plan(ranks, env={}, gpus=gpus, cores=2)
    assert (made.device, made.backend, made.ranks) == expected


@pytest.mark.parametrize(
    "env, gpus, expected",
    [
        ({"DDP_COURSE_DEVICE": "cpu"}, 8, ("cpu", 2)),
        ({"DDP_COURSE_RANKS": "2"}, 1, ("cpu", 2)),
        ({"DDP_COURSE_RANKS": "1"}, 1, ("cuda", 1)),
        ({"DDP_COURSE_DEVICE": "CPU", "DDP_COURSE_RANKS": "3"}, 8, ("cpu", 3)),
        ({"DDP_COURSE_DEVICE": "cuda"}, 1, ("cuda", 1)),
        ({"DDP_COURSE_DEVICE": "cuda", "DDP_COURSE_RANKS": "2"}, 8, ("cuda", 2)),
        ({"DDP_COURSE_RANKS": "4"}, 0, ("cpu", 4)),
        ({"DDP_COURSE_DEVICE": "", "DDP_COURSE_RANKS": ""}, 0, ("cpu", 2)),
    ],
)
def test_environment_forces(env, gpus, expected):
    made = plan(env=env, gpus=gpus, cores=2)
    assert (made.device, made.ranks) == expected


@pytest.mark.parametrize(
    "env, gpus, says",
    [
        ({"DDP_COURSE_DEVICE": "cuda"}, 0, "type DDP_COURSE_DEVICE=cpu"),
        ({"DDP_COURSE_DEVICE": "cuda", "DDP_COURSE_RANKS": "8"}, 0, "torch sees no GPU"),
        ({"DDP_COURSE_DEVICE": "cuda", "DDP_COURSE_RANKS": "8"}, 2, "type DDP_COURSE_RANKS=2"),
        ({"DDP_COURSE_DEVICE": "cuda", "DDP_COURSE_RANKS": "3"}, 2, "type DDP_COURSE_RANKS=2"),
        (
            {"DDP_COURSE_DEVICE": "cuda", "DDP_COURSE_RANKS": "9"},
            1,
            f"9 ranks wanted on one GPU: type DDP_COURSE_RANKS={MAX_SHARING}",
        ),
        ({"DDP_COURSE_DEVICE": "tpu"}, 0, "type auto, cpu or cuda"),
        ({"DDP_COURSE_RANKS": "two"}, 0, "type 1 or more"),
        ({"DDP_COURSE_RANKS": "0"}, 0, "type 1 or more"),
        ({"DDP_COURSE_RANKS": "-2"}, 0, "type 1 or more"),
        ({"DDP_COURSE_RANKS": "1000"}, 0, f"type DDP_COURSE_RANKS={MAX_CPU_RANKS}"),
    ],
)
def test_impossible_wish_is_one_line(env, gpus, says):
    with pytest.raises(CourseError) as error:
        plan(env=env, gpus=gpus, cores=2)
    assert says in str(error.value) and "\n" not in str(error.value)


@pytest.mark.parametrize("needs", [None, 4])
def test_two_ranks_share_one_gpu(needs):
    made = plan(needs, env=SHARED, gpus=1, cores=2)
    assert (made.device, made.backend, made.ranks) == ("cuda", "gloo", 2)
    assert str(made) == (
        "2 ranks share one GPU through gloo: real CUDA, slow transport (2 cores, 1 GPU)"
    )


def test_a_lesson_that_needs_four_shares_one_gpu():
    made = plan(4, env={"DDP_COURSE_DEVICE": "cuda"}, gpus=1, cores=2)
    assert (made.device, made.backend, made.ranks) == ("cuda", "gloo", 4)


def test_ranks_share_the_cores():
    assert plan(env={}, gpus=0, cores=16).threads == 8
    assert plan(4, env={}, gpus=0, cores=2).threads == 1


def test_describes_itself():
    assert str(plan(env={}, gpus=0, cores=2)) == (
        "2 ranks on the CPU, backend gloo (2 cores, 0 GPUs)"
    )
    assert str(plan(env={}, gpus=2, cores=1)) == (
        "2 ranks one GPU each, backend nccl (1 core, 2 GPUs)"
    )
    assert str(plan(1, env={}, gpus=1, cores=2)) == (
        "1 rank on one GPU, backend nccl (2 cores, 1 GPU)"
    )


def test_rank_device():
    assert rank_device(1, 2, env={}, gpus=0) == "cpu"
    assert rank_device(1, 2, env={}, gpus=1) == "cpu"
    assert rank_device(0, 1, env={}, gpus=1) == "cuda:0"  # a node with one GPU, of several nodes
    assert rank_device(1, 2, env={}, gpus=2) == "cuda:1"
    assert rank_device(1, 2, env={"DDP_COURSE_DEVICE": "cpu"}, gpus=2) == "cpu"
    assert rank_device(1, 2, env=SHARED, gpus=1) == "cuda:0"
    assert rank_device(1, 2, env=SHARED, gpus=2) == "cuda:1"


@pytest.mark.parametrize(
    "device, ranks, gpus, backend",
    [("cpu", 2, 2, "gloo"), ("cuda", 2, 2, "nccl"), ("cuda", 1, 1, "nccl"), ("cuda", 2, 1, "gloo")],
)
def test_rank_backend(device, ranks, gpus, backend):
    assert rank_backend(device, ranks, gpus=gpus) == backend


@pytest.mark.parametrize(
    "env, gpus, says",
    [
        ({}, 2, "4 ranks on a node with 2 GPUs: type --nproc-per-node 2, or DDP_COURSE_DEVICE=cpu"),
        ({"DDP_COURSE_DEVICE": "cuda"}, 0, "type DDP_COURSE_DEVICE=cpu"),
    ],
)
def test_more_ranks_than_gpus(env, gpus, says):
    with pytest.raises(CourseError, match=says):
        rank_device(0, 4, env=env, gpus=gpus)


def test_too_many_to_share():
    with pytest.raises(CourseError, match=f"type --nproc-per-node {MAX_SHARING}, or "):
        rank_device(0, MAX_SHARING + 1, env=SHARED, gpus=1)


def test_a_module_on_two_gpus_counts_from_its_node(monkeypatch):
    """Ranks 2 and 3 of two nodes with four GPUs each."""
    script = runpy.run_path(str(ROOT / "scripts/10_two_devices.py"))["my_devices"]
    monkeypatch.setitem(script.__globals__, "GPUS", 4)
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    names = [[str(d) for d in script(Ranks(2 + n, n, 4, None))] for n in (0, 1)]
    assert names == [["cuda:0", "cuda:1"], ["cuda:2", "cuda:3"]]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "4")  # eight GPUs are not there
    assert {d.type for d in script(Ranks(0, 0, 4, None))} == {"cpu"}
