"""Join the other ranks, and leave them again without a crash.

Lesson 02 writes both halves out by hand and shows what each line is for.
"""

import os
import sys
import traceback
from contextlib import contextmanager
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

# DDP's constructor imports this module, and its functions take the default group as a default
# argument, evaluated at import. Imported after init_process_group, they hold the group for ever:
# gloo's threads then outlive destroy_process_group and can abort the process when Python ends.
import torch.distributed.nn.functional  # noqa: F401
from torch.distributed.elastic.multiprocessing.errors import get_error_handler

from ddp_course.hardware import rank_backend, rank_device
from ddp_course.tools.collectives import leave_group
from ddp_course.tools.errors import CourseError

TIMEOUT = timedelta(seconds=60)  # torch's own is 30 min for gloo: long to stare at a hang
_NEEDED = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class Ranks(NamedTuple):
    """Who this process is.

    Attributes
    ----------
    rank : int
        Number among all processes, 0 to world_size - 1.
    local_rank : int
        Number among the processes of this node; also of its GPU, where each has its own.
    world_size : int
        Processes in all.
    device : torch.device
        Where this rank's tensors live.
    """

    rank: int
    local_rank: int
    world_size: int
    device: torch.device


@contextmanager
def process_group(timeout=TIMEOUT, *, point_to_point=False):
    """Initialise the default process group, and destroy it in the right order.

    Keep the model, the wrapper and the optimizer in a function that you call
    inside the block: DDP holds the group, and the group must be the last to go.

    Parameters
    ----------
    timeout : datetime.timedelta
        How long a collective waits for the other ranks before it raises.
    point_to_point : bool
        The block sends and receives tensors on ``device``. gloo takes CUDA tensors in collectives
        only, so ranks that share a GPU then run on the CPU; rank 0 says so on stderr.

    Yields
    ------
    Ranks

    Raises
    ------
    SystemExit
        After one line for the reader on stderr: not started by torchrun, more ranks than
        GPUs, a port that is taken, or a CourseError raised inside the block.
    """
    try:
        yield _join(timeout, point_to_point)
    except CourseError as error:
        _say(error)
        raise SystemExit(1) from None
    except BaseException as error:
        # The traceback keeps the frames alive, the frames keep DDP alive.
        traceback.clear_frames(error.__traceback__)
        raise
    finally:
        leave_group()


def _join(timeout, point_to_point):
    missing = [name for name in _NEEDED if name not in os.environ]
    if missing:
        script = os.path.relpath(sys.argv[0]) if sys.argv[0] else "script.py"
        raise CourseError(
            f"{script} needs a launcher ({missing[0]} is not set): "
            f"type  torchrun --standalone --nproc-per-node 2 {script}"
        )
    rank, local_rank, world_size, local_world_size = (int(os.environ[n]) for n in _NEEDED[:4])
    device = torch.device(rank_device(local_rank, local_world_size))
    backend = rank_backend(device.type, local_world_size)
    if device.type == "cuda" and backend == "gloo" and point_to_point:
        device = torch.device("cpu")
        if rank == 0:
            sys.stderr.write("on the CPU: gloo, which shares the GPU, sends no CUDA tensors\n")
    if device.type == "cuda":
        torch.cuda.set_device(device)  # first, or every rank opens a context on GPU 0
    try:
        dist.init_process_group(
            backend,
            timeout=timeout,
            device_id=device if backend == "nccl" else None,  # gloo's is not bound to a device
            **_meeting_point(rank, world_size, timeout),
        )
    except dist.DistNetworkError as error:
        if "EADDRINUSE" not in str(error):
            raise
        raise CourseError(
            f"port {os.environ['MASTER_PORT']} is taken: choose another MASTER_PORT, "
            "or let torchrun --standalone pick a free one"
        ) from None
    return Ranks(rank, local_rank, world_size, device)


def _meeting_point(rank, world_size, timeout):
    """After a restart: a store of this attempt's own (lesson 09 shows why).

    torchrun keeps one store for all attempts, and in it are the addresses of ranks that are dead.
    Its restart count tells attempts apart, on one node; several nodes may count differently.
    """
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0))
    if not attempt or os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True":
        return {}
    if int(os.environ.get("GROUP_WORLD_SIZE", 1)) > 1:
        raise CourseError(
            "a restart on several nodes would meet the addresses of dead ranks: start torchrun "
            "with --rdzv-backend c10d and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 in its environment"
        )
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    store = dist.TCPStore(address, port, world_size, is_master=False, timeout=timeout)
    return {
        "store": dist.PrefixStore(f"attempt {attempt}", store),
        "rank": rank,
        "world_size": world_size,
    }


def _say(error):
    """Tell of bad input in one line, and in torchrun's closing report."""
    who = f"rank {os.environ['RANK']}: " if "RANK" in os.environ else ""
    sys.stderr.write(f"{who}{error}\n")  # one write: print() sends the line's end on its own
    sys.stderr.flush()
    if "TORCHELASTIC_ERROR_FILE" in os.environ:
        get_error_handler().record_exception(error.with_traceback(None))
    if getattr(error, "on_every_rank", False):
        dist.barrier()  # torchrun ends the others as soon as one leaves: let all speak first
