"""The plan for machines that we don't have, and the wishes that it refuses."""

import pytest

from ddp_course.hardware import MAX_CPU_RANKS, CourseError, plan, rank_device


@pytest.mark.parametrize(
    "gpus, ranks, expected",
    [
        (0, None, ("cpu", "gloo", 2)),
        (1, None, ("cpu", "gloo", 2)),  # one GPU is not shared
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


def test_rank_device():
    assert rank_device(1, 2, env={}, gpus=0) == "cpu"
    assert rank_device(1, 2, env={}, gpus=1) == "cpu"
    assert rank_device(0, 1, env={}, gpus=1) == "cuda:0"  # a node with one GPU, of several nodes
    assert rank_device(1, 2, env={}, gpus=2) == "cuda:1"
    assert rank_device(1, 2, env={"DDP_COURSE_DEVICE": "cpu"}, gpus=2) == "cpu"


@pytest.mark.parametrize(
    "env, gpus, says",
    [
        ({}, 2, "4 ranks on a node with 2 GPUs: type --nproc-per-node 2, or DDP_COURSE_DEVICE=cpu"),
        ({"DDP_COURSE_DEVICE": "cuda"}, 0, "type DDP_COURSE_DEVICE=cpu"),
        ({"DDP_COURSE_DEVICE": "cuda"}, 1, "type --nproc-per-node 1"),
    ],
)
def test_more_ranks_than_gpus(env, gpus, says):
    with pytest.raises(CourseError, match=says):
        rank_device(0, 4, env=env, gpus=gpus)
