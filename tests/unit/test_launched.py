"""One job of several processes, or several jobs of one: by the environment and the arguments."""

import pytest

from ddp_course.tools.launched import world_of_one

SCRIPT = ["train.py"]
TORCHRUN = {"WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "1"}


@pytest.mark.parametrize("env, words", [
    ({"SLURM_NTASKS": "2"}, "SLURM_NTASKS is 2"),
    ({"SLURM_STEP_NUM_TASKS": "16", "SLURM_PROCID": "3"}, "SLURM_PROCID and SLURM_NTASKS"),
    ({"OMPI_COMM_WORLD_SIZE": "4"}, "torchrun --nproc-per-node 4"),
    ({"PMI_SIZE": "4"}, "PMI_SIZE is 4"),
    ({"WORLD_SIZE": "2"}, "init_process_group"),
])  # fmt: skip
def test_more_tasks_than_ranks(env, words):
    line = world_of_one(1, SCRIPT, env)
    assert words in line and "the world has one rank" in line and "\n" not in line


@pytest.mark.parametrize("options", [
    ["--nproc-per-node", "2"], ["--nproc_per_node=2"], ["--epochs", "3", "--nnodes", "2"],
    ["--standalone"], ["--nproc_per_node", "gpu"],
])  # fmt: skip
def test_torchrun_s_options_behind_the_script(options):
    line = world_of_one(1, [*SCRIPT, *options], {})
    assert "behind the script" in line and "train.py" in line and "\n" not in line


@pytest.mark.parametrize("world_size, argv, env", [
    (1, SCRIPT, {}),
    (1, [*SCRIPT, "--nproc-per-node", "1"], {}),
    (1, [*SCRIPT, "--batch", "8", "--nodes", "2"], {}),
    (1, SCRIPT, {"SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "4"}),  # the way to say it is meant
    (1, SCRIPT, {"SLURM_NTASKS": "1", "WORLD_SIZE": "1"}),
    (2, SCRIPT, {"SLURM_NTASKS": "2"}),
    (8, [*SCRIPT, "--nnodes", "2"], TORCHRUN),  # the script's own option
    (8, SCRIPT, TORCHRUN | {"SLURM_NNODES": "1", "SLURM_NTASKS": "1"}),
    (16, SCRIPT, {"GROUP_WORLD_SIZE": "2", "SLURM_NNODES": "2", "SLURM_NTASKS": "2"}),
    (16, SCRIPT, {"SLURM_NNODES": "2", "SLURM_NTASKS": "16"}),  # srun alone, without torchrun
])  # fmt: skip
def test_all_is_well(world_size, argv, env):
    assert world_of_one(world_size, argv, env) is None


@pytest.mark.parametrize("nodes", ["SLURM_STEP_NUM_NODES", "SLURM_NNODES"])
def test_each_node_is_a_world_of_its_own(nodes):
    env = TORCHRUN | {nodes: "2", "SLURM_NTASKS": "2"}
    line = world_of_one(8, SCRIPT, env)
    assert "each node is a world of its own" in line and "--nnodes 2" in line
    assert world_of_one(8, SCRIPT, env | {"SLURM_NTASKS": "1"}) is None


def test_several_torchruns_on_one_node():
    env = TORCHRUN | {"SLURM_STEP_NUM_NODES": "1", "SLURM_STEP_NUM_TASKS": "4"}
    assert "srun started 4 torchruns on this node" in world_of_one(8, SCRIPT, env)
    # In an allocation of four tasks, torchrun once, not through srun: as it should be.
    assert world_of_one(8, SCRIPT, TORCHRUN | {"SLURM_NNODES": "1", "SLURM_NTASKS": "4"}) is None
