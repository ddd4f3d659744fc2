"""Collectives that several tools need: exchange, agree, wait, leave.

They work without a process group, too: then there is one rank.
"""

import gc
import os
import pickle
import sys
import time
import weakref
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.functional import pad

from ddp_course.tools.errors import CourseError

SLOW_WORK = timedelta(hours=2)  # for a download; a rank that dies ends the wait at once
_cpu_groups = weakref.WeakKeyDictionary()  # the default group: what cpu_group() made beside it


def together():
    """Whether this process is in a process group.

    Returns
    -------
    bool
    """
    return dist.is_available() and dist.is_initialized()


def get_rank():
    """This process's rank in the default group; 0 without one.

    Returns
    -------
    int
    """
    return dist.get_rank() if together() else 0


def gather(mine, group=None):
    """Exchange what the ranks found: every rank gets a list, one entry a rank.

    `torch.distributed.all_gather_object` without numpy, which it needs and torch does not install.

    Parameters
    ----------
    mine : object
        Anything pickle can hold.
    group : torch.distributed.ProcessGroup, optional
        Of all ranks; the default group where none is given.

    Returns
    -------
    list
        In rank order.
    """
    if not together():
        return [mine]
    device = "cuda" if dist.get_backend(group) == "nccl" else "cpu"
    mine = torch.frombuffer(bytearray(pickle.dumps(mine)), dtype=torch.uint8).to(device)
    sizes = [torch.zeros(1, dtype=torch.long, device=device) for _ in range(dist.get_world_size())]
    dist.all_gather(sizes, torch.tensor([len(mine)], device=device), group=group)
    longest = int(max(sizes))  # all_gather wants one size
    everyone = [torch.empty(longest, dtype=torch.uint8, device=device) for _ in sizes]
    dist.all_gather(everyone, pad(mine, (0, longest - len(mine))), group=group)
    return [pickle.loads(bytes(part[:size].tolist())) for part, size in zip(everyone, sizes)]


def cpu_group():
    """A second group of all ranks, on gloo: it touches no GPU and waits two hours for slow work.

    The first call makes it and is collective. It is kept until the default group goes, since
    freeing it right after a collective can block for ever (seen on torch 2.4, not on 2.14): its
    destructor holds the GIL and waits for gloo's thread to end, and that thread waits for the GIL
    to let go of the collective's tensors.

    Returns
    -------
    torch.distributed.ProcessGroup
    """
    world = dist.group.WORLD
    if world not in _cpu_groups:
        _cpu_groups[world] = dist.new_group(backend="gloo", timeout=SLOW_WORK)
    return _cpu_groups[world]


def synchronize(device):
    """Wait until the work queued on a device is done; the CPU has none queued.

    Parameters
    ----------
    device : str or torch.device
    """
    if torch.device(device).type == "cuda":
        torch.cuda.synchronize(device)


def all_or_none(work, *, first_of_node=False, patient=False):
    """Run ``work()`` on every rank; if it fails on one, fail on all.

    Without this, a rank that can't read its data leaves, and the others wait
    for it in the next collective. Works without a process group too.

    Parameters
    ----------
    work : callable without arguments
    first_of_node : bool
        Run on local rank 0 of each node only. For downloads; patient.
    patient : bool
        Wait for slow work, up to two hours, in `cpu_group`.

    Returns
    -------
    object
        What ``work`` returned; None on a rank that waited.

    Raises
    ------
    CourseError
        On every rank, with the message of the first rank that failed.
    """
    result, failure = None, None
    mine = not first_of_node or int(os.environ.get("LOCAL_RANK", 0)) == 0
    group = cpu_group() if together() and (first_of_node or patient) else None
    try:
        if mine:
            result = work()
    except Exception as error:
        if not together():
            raise
        failure = str(error) if isinstance(error, CourseError) else f"{error!r}"
    if together():
        failure = next((f for f in gather(failure, group) if f), None)
        if failure:
            error = CourseError(failure)
            error.on_every_rank = True
            raise error
    return result


def leave_group():
    """Destroy the default process group without a crash; call it where no DDP model is in use.

    DDP sits in a reference cycle and holds the group, so that a collection comes first. And a
    hook's callback ends in gloo's thread: were that thread the last to hold the group, it would
    have to wait for its own end ("Resource deadlock avoided", exit code -6). So the group is
    kept until nobody else holds it, two seconds at most. `cpu_group` goes with it.
    """
    gc.collect()
    if not together():
        return
    group, alone, end = dist.group.WORLD, object(), time.monotonic() + 2
    second = _cpu_groups.pop(group, None)
    dist.destroy_process_group()
    time.sleep(0.01)  # gloo's threads let go of the last tensors, which needs the GIL: cpu_group
    while sys.getrefcount(group) > sys.getrefcount(alone) and time.monotonic() < end:
        time.sleep(0.001)
    del group, second  # a traceback that passes here would hold them
