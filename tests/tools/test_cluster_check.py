"""`python -m ddp_course.tools.cluster_check`, from a folder that is no checkout of ours."""

import re

import pytest
from launching import python, torchrun

from ddp_course.tools import cluster_check

MODULE = ("-m", "ddp_course.tools.cluster_check")
NO_LAUNCHER = {"PYTHONWARNINGS": "ignore"}


@pytest.mark.timeout(200)
def test_two_ranks(tmp_path):
    done = torchrun(*MODULE, cwd=tmp_path, env=NO_LAUNCHER)
    assert done.returncode == 0, done.stdout
    for rank in (0, 1):
        line = f"rank {rank}: node 0 .*, local rank {rank}, (cpu|cuda:{rank}), from .*, clock"
        assert re.search(line, done.stdout), done.stdout
    assert re.search(r"slowest: from rank [01] to [01] \(node 0 to 0\), [\d.]+ GB/s", done.stdout)
    assert "all-reduce of 8 MiB: busbw" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_alone_by_hand(tmp_path):
    done = python(*MODULE, cwd=tmp_path, env=NO_LAUNCHER)
    assert done.returncode == 0, done.stdout
    assert "rank 0: node 0" in done.stdout and "start more with torchrun" in done.stdout


def test_slurm_tasks_that_are_worlds_of_one(tmp_path):
    """`srun -n 2 python ...`: each task would find itself alone, and measure nothing."""
    done = python(*MODULE, cwd=tmp_path, env=NO_LAUNCHER | {"SLURM_NTASKS": "2"})
    assert done.returncode == 1
    (line,) = done.stdout.strip().splitlines()
    assert "SLURM_NTASKS" in line and "2" in line


def found(world_size, slow=(2, 0)):
    who = {
        "host": "vm", "local_rank": 0, "device": "cpu", "address": "10.0.0.1", "torch": "2.4",
        "nccl": None, "python": "3.11", "cores": 2, "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    ranks = [who | {"node": r, "cores": 2 + (r == 1)} for r in range(world_size)]
    links = [
        [a, b, 1e6 if (a, b) == slow else 1e9] for a, b in cluster_check.pairs_to_measure(ranks)
    ]
    return {"ranks": ranks, "links": links, "offsets": [0.0] * world_size, "busbw": 2e9}


def test_it_names_the_slow_link_and_what_differs():
    text = "\n".join(cluster_check.describe(found(4)))
    assert "slowest: from rank 2 to 0 (node 2 to 0), 0.001 GB/s; median 1.000 GB/s" in text
    assert "differs between ranks: cores [2, 3, 2, 2]" in text
    assert "torch" not in text


def test_many_ranks_are_measured_by_node():
    ranks = [{"local_rank": r % 8} for r in range(24)]
    assert set(cluster_check.pairs_to_measure(ranks)) == {
        (a, b) for a in (0, 8, 16) for b in (0, 8, 16) if a != b
    }
    assert len(cluster_check.pairs_to_measure(ranks[:16])) == 16 * 15
