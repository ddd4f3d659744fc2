"""What this machine has, and how many ranks a lesson starts on it."""

import os
from dataclasses import dataclass

from ddp_course.tools.errors import CourseError

ENV_DEVICE = "DDP_COURSE_DEVICE"
ENV_RANKS = "DDP_COURSE_RANKS"
MAX_CPU_RANKS = 32  # a rank holds about 300 MB before it has done anything


@dataclass(frozen=True)
class Plan:
    """How a lesson launches: the numbers that go into the torchrun line.

    Attributes
    ----------
    device : {"cpu", "cuda"}
    backend : {"gloo", "nccl"}
    ranks : int
        Processes to start on this machine.
    threads : int
        OMP_NUM_THREADS for each rank, so that ranks don't fight over cores.
    gpus, cores : int
        What the machine has.
    """

    device: str
    backend: str
    ranks: int
    threads: int
    gpus: int
    cores: int

    def __str__(self):
        have = f"{_count(self.cores, 'core')}, {_count(self.gpus, 'GPU')}"
        place = "one GPU each" if self.device == "cuda" else "on the CPU"
        return f"{_count(self.ranks, 'rank')} {place}, backend {self.backend} ({have})"


def plan(ranks=None, *, env=os.environ, gpus=None, cores=None):
    """Decide how many ranks to start, and on what.

    Two GPUs or more: one rank per GPU through nccl. Otherwise two ranks on the
    CPU through gloo. One GPU is not shared: nccl refuses two ranks on it.

    Parameters
    ----------
    ranks : int, optional
        What the lesson needs, 4 say. More than there are GPUs: on the CPU.
    env : mapping
        ``DDP_COURSE_DEVICE`` (auto, cpu or cuda) and ``DDP_COURSE_RANKS`` (a
        number, it beats ``ranks``) are read from here.
    gpus, cores : int, optional
        For tests; by default what torch and the operating system report.

    Returns
    -------
    Plan

    Raises
    ------
    CourseError
        The environment wishes for something this machine can't give.
    """
    gpus = count_gpus() if gpus is None else gpus
    cores = count_cores() if cores is None else cores
    wish = _wished_device(env)
    forced = _wished_ranks(env)
    wanted = forced or ranks
    if wish == "cuda" and not gpus:
        raise CourseError(
            f"{ENV_DEVICE}=cuda, but torch sees no GPU here: unset it, or type {ENV_DEVICE}=cpu"
        )
    if wish == "cuda" and wanted and wanted > gpus:
        raise CourseError(
            f"{wanted} ranks wanted on {_count(gpus, 'GPU')}, and nccl takes one rank per GPU: "
            f"type {ENV_RANKS}={gpus}, or {ENV_DEVICE}=cpu to run {wanted} ranks on the CPU"
        )
    if wish == "cuda" or (wish == "auto" and gpus >= 2 and (wanted or gpus) <= gpus):
        device, ranks = "cuda", wanted or gpus
    else:
        device, ranks = "cpu", wanted or 2
    if device == "cpu" and ranks > MAX_CPU_RANKS:
        raise CourseError(
            f"{ranks} ranks wanted on the CPU: type {ENV_RANKS}={MAX_CPU_RANKS} or fewer"
        )
    backend = "nccl" if device == "cuda" else "gloo"
    return Plan(device, backend, ranks, max(1, cores // ranks), gpus, cores)


def rank_device(local_rank, local_world_size, *, env=os.environ, gpus=None):
    """Name the device of one rank, from inside that rank.

    Parameters
    ----------
    local_rank, local_world_size : int
        This rank's number on its node, and how many ranks the node has.
    env, gpus
        As for `plan`.

    Returns
    -------
    str
        "cpu", or "cuda:<local_rank>" if there is a GPU for every rank.

    Raises
    ------
    CourseError
        More ranks than GPUs, where ``DDP_COURSE_DEVICE`` doesn't say cpu.
    """
    gpus = count_gpus() if gpus is None else gpus
    wish = _wished_device(env)
    if wish == "cpu" or (wish == "auto" and gpus <= 1 and local_world_size > gpus):
        return "cpu"
    if local_world_size > gpus:
        fewer = f"--nproc-per-node {gpus}, or " if gpus else ""
        raise CourseError(
            f"{_count(local_world_size, 'rank')} on a node with {_count(gpus, 'GPU')}: "
            f"type {fewer}{ENV_DEVICE}=cpu"
        )
    return f"cuda:{local_rank}"


def count_gpus():
    """GPUs that nccl can use: 0 where torch has no CUDA or no nccl."""
    import torch
    import torch.distributed as dist

    return torch.cuda.device_count() if dist.is_nccl_available() else 0


def count_cores():
    """CPU cores this process may use, which in a container can be fewer than the machine's."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _wished_device(env):
    wish = env.get(ENV_DEVICE, "auto").strip().lower() or "auto"
    if wish not in ("auto", "cpu", "cuda"):
        raise CourseError(f"{ENV_DEVICE}={wish} is not a device: type auto, cpu or cuda")
    return wish


def _wished_ranks(env):
    text = env.get(ENV_RANKS, "").strip()
    if not text:
        return None
    if not text.isdecimal() or int(text) < 1:
        raise CourseError(f"{ENV_RANKS}={text} is not a number of ranks: type 1 or more")
    return int(text)


def _count(n, noun):
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"
