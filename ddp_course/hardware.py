"""What this machine has, and how many ranks a lesson starts on it."""

import os
from dataclasses import dataclass

from ddp_course.tools.errors import CourseError

ENV_DEVICE = "DDP_COURSE_DEVICE"
ENV_RANKS = "DDP_COURSE_RANKS"
MAX_CPU_RANKS = 32  # a rank holds about 300 MB before it has done anything
MAX_SHARING = 8  # on one GPU: each rank's CUDA context takes some 500 MB of its memory


@dataclass(frozen=True)
class Plan:
    """How a lesson launches: the numbers that go into the torchrun line.

    Attributes
    ----------
    device : {"cpu", "cuda"}
    backend : {"gloo", "nccl"}
        gloo with device "cuda": the ranks share one GPU.
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
        ranks = _count(self.ranks, "rank")
        if self.device == "cuda" and self.backend == "gloo":
            return f"{ranks} share one GPU through gloo: real CUDA, slow transport ({have})"
        each = "on one GPU" if self.ranks == 1 else "one GPU each"
        place = each if self.device == "cuda" else "on the CPU"
        return f"{ranks} {place}, backend {self.backend} ({have})"


def plan(ranks=None, *, env=os.environ, gpus=None, cores=None):
    """Decide how many ranks to start, and on what.

    Two GPUs or more: one rank per GPU through nccl. Otherwise two ranks on the
    CPU through gloo; a single rank takes the GPU where there is one.

    nccl refuses two ranks on one GPU, gloo does not: it copies CUDA tensors through the host's
    memory. So with ``DDP_COURSE_DEVICE=cuda`` the ranks share a machine's only GPU. Several GPUs
    are not shared: with three ranks on two, the one with a GPU to itself would wait for the others.

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
    usual = {"cpu": 2, "cuda": gpus}.get(wish, max(2, gpus))
    ranks = _wished_ranks(env) or ranks or usual
    if wish == "cuda" and not gpus:
        raise CourseError(
            f"{ENV_DEVICE}=cuda, but torch sees no GPU here: unset it, or type {ENV_DEVICE}=cpu"
        )
    if wish == "cuda" and ranks > gpus > 1:
        raise CourseError(
            f"{ranks} ranks wanted on {_count(gpus, 'GPU')}, and nccl takes one rank per GPU: "
            f"type {ENV_RANKS}={gpus}, or {ENV_DEVICE}=cpu to run {ranks} ranks on the CPU"
        )
    device = "cuda" if wish == "cuda" or (wish == "auto" and ranks <= gpus) else "cpu"
    backend = rank_backend(device, ranks, gpus=gpus)
    if backend == "gloo":
        most, place = (MAX_CPU_RANKS, "the CPU") if device == "cpu" else (MAX_SHARING, "one GPU")
        if ranks > most:
            raise CourseError(f"{ranks} ranks wanted on {place}: type {ENV_RANKS}={most} or fewer")
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
        "cpu"; "cuda:<local_rank>" if there is a GPU for every rank; "cuda:0" if the ranks share
        the only GPU, for which ``DDP_COURSE_DEVICE`` must say cuda.

    Raises
    ------
    CourseError
        More ranks than GPUs, where ``DDP_COURSE_DEVICE`` doesn't say cpu.
    """
    gpus = count_gpus() if gpus is None else gpus
    wish = _wished_device(env)
    if wish == "cpu" or (wish == "auto" and gpus <= 1 and local_world_size > gpus):
        return "cpu"
    if gpus == 1 and local_world_size <= MAX_SHARING:
        return "cuda:0"
    if local_world_size > gpus:
        most = MAX_SHARING if gpus == 1 else gpus
        fewer = f"--nproc-per-node {most}, or " if gpus else ""
        raise CourseError(
            f"{_count(local_world_size, 'rank')} on a node with {_count(gpus, 'GPU')}: "
            f"type {fewer}{ENV_DEVICE}=cpu"
        )
    return f"cuda:{local_rank}"


def rank_backend(device, local_world_size, *, gpus=None):
    """Name the backend that fits a rank's device.

    Parameters
    ----------
    device : str
        As from `rank_device`.
    local_world_size : int
        Ranks on this node.
    gpus
        As for `plan`.

    Returns
    -------
    {"gloo", "nccl"}
        nccl where each rank has a GPU to itself.
    """
    if device == "cpu":
        return "gloo"
    gpus = count_gpus() if gpus is None else gpus
    return "nccl" if local_world_size <= gpus else "gloo"


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
