"""Is this launch one job of several processes, or several jobs of one?

`srun -n 2 python train.py` starts two processes that know nothing of each other when the script
takes its ranks from torchrun's variables; so does `torchrun train.py --nproc-per-node 2`, where
the options go to the script. Each then trains alone, on all the data, and nothing fails.
"""

import os
import sys

# How many processes a launcher started, by what it tells them.
TASKS = (
    "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",
    "OMPI_COMM_WORLD_SIZE",
    "PMI_SIZE",
    "MPI_LOCALNRANKS",
    "WORLD_SIZE",
)
NODES = ("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES")
# Of torchrun; --master-addr isn't here, since scripts have an option of that name themselves.
OPTIONS = ("--nproc-per-node", "--nnodes", "--node-rank", "--rdzv-endpoint", "--rdzv-backend",
           "--standalone")  # fmt: skip


def world_of_one(world_size, argv=None, env=None):
    """Say so where each process, or each node, is a world of its own and more were asked for.

    Set ``SLURM_NTASKS=1`` to say that it is meant, one process in an allocation of several
    tasks: it goes before the other variables of Slurm.

    Parameters
    ----------
    world_size : int
        Ranks in this process's group; 1 without one.
    argv : list of str, optional
        By default sys.argv: the script and what came behind it.
    env : dict of str to str, optional
        By default os.environ.

    Returns
    -------
    str or None
        One line: what was seen, and what to type. None where all is well.
    """
    argv, env = sys.argv if argv is None else argv, os.environ if env is None else env
    meant = _number(env, "SLURM_NTASKS") == 1
    if world_size == 1:
        if option := _behind(argv):
            script = os.path.basename(argv[0]) or "train.py"
            return (
                f"the world has one rank, and torchrun's option {option} stands behind the "
                f"script, which gets it instead: type torchrun {option} ... {script}"
            )
        for name in TASKS:
            if meant and name.startswith("SLURM"):
                continue
            if (tasks := _number(env, name)) > 1:
                return (
                    f"the world has one rank, but {name} is {tasks}: each process is a world of "
                    f"its own; {_instead(name, tasks)}"
                )
        return None
    nodes = next((n for n in (_number(env, name) for name in NODES) if n), 0)
    tasks = max(_number(env, name) for name in TASKS[:2])
    if _number(env, "GROUP_WORLD_SIZE") != 1 or tasks < 2 or meant:
        return None
    if nodes > 1:
        return (
            f"Slurm gave {nodes} nodes, but torchrun knows one: each node is a world of its own, "
            f"of {world_size} ranks; type srun torchrun --nnodes {nodes} --rdzv-backend c10d "
            "--rdzv-endpoint <first node>:29500 ..."
        )
    if _number(env, "SLURM_STEP_NUM_TASKS") > 1:  # set by srun, so torchrun was started by each
        return (
            f"srun started {tasks} torchruns on this node, each a world of its own, of "
            f"{world_size} ranks; type srun --ntasks-per-node 1 torchrun ..."
        )
    return None


def _behind(argv):
    """torchrun's first option that asks for more than one process, as it was typed; or None."""
    for at, word in enumerate(argv[1:], 1):
        option, _, value = word.partition("=")
        value = value or "".join(argv[at + 1 : at + 2])
        if option.replace("_", "-") in OPTIONS and value != "1":
            return option if option == "--standalone" else f"{option} {value}".strip()
    return None


def _number(env, name):
    value = env.get(name, "")
    return int(value) if value.isdigit() else 0


def _instead(name, tasks):
    if name == "WORLD_SIZE":
        return "call init_process_group before, with rank and world size from the environment"
    if name.startswith("SLURM"):
        return (
            "start one torchrun a node (srun --ntasks-per-node 1 torchrun --nproc-per-node ...), "
            "or set RANK and WORLD_SIZE from SLURM_PROCID and SLURM_NTASKS; one task is meant: "
            "SLURM_NTASKS=1"
        )
    return f"type torchrun --nproc-per-node {tasks} ... instead of mpirun"
