"""What a run found, as one JSON file under runs/, for the notebook to read."""

import json
import os
import platform
from pathlib import Path

import torch
import torch.distributed as dist

from ddp_course.hardware import count_cores
from ddp_course.tools.errors import CourseError

ROOT = Path(__file__).resolve().parents[1]


def path(name):
    """File of a run: runs/<name>.json in the course folder, or under ``$DDP_COURSE_RUNS``.

    The folder is made: a lesson writes a log beside the file before any rank has saved.
    """
    folder = Path(os.environ.get("DDP_COURSE_RUNS", ROOT / "runs"))
    folder.mkdir(parents=True, exist_ok=True)
    return folder / f"{name}.json"


def where(device="cpu"):
    """Describe what runs here, so that a figure can say where it was measured.

    Parameters
    ----------
    device : str or torch.device

    Returns
    -------
    dict
        torch, python : versions; backend, world_size : of the process group,
        "none" and 1 without one; device : a GPU's name or "cpu";
        cores : those this process may use; threads : torch's, a rank.
    """
    group = dist.is_available() and dist.is_initialized()
    device = torch.device(device)
    return {
        "torch": torch.__version__.split("+")[0],
        "python": platform.python_version(),
        "backend": dist.get_backend() if group else "none",
        "world_size": dist.get_world_size() if group else 1,
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "cores": count_cores(),
        "threads": torch.get_num_threads(),
    }


def save(name, data, device="cpu"):
    """Write a run's result; rank 0 writes, the other ranks return at once.

    The file appears whole or not at all, and replaces the one of the run before.

    Parameters
    ----------
    name : str
        File name without ".json", by custom that of the script.
    data : dict
        Anything JSON can hold; ``where`` is added to it.
    device : str or torch.device
        The device to describe in ``where``.
    """
    if dist.is_available() and dist.is_initialized() and dist.get_rank() != 0:
        return
    file = path(name)
    draft = file.with_suffix(".tmp")
    draft.write_text(json.dumps({**data, "where": where(device)}, indent=1))
    draft.replace(file)


def load(name):
    """Read a run's result.

    Returns
    -------
    dict
        What `save` was given, and ``where``.

    Raises
    ------
    CourseError
        There is no such file, or it is not JSON.
    """
    file = path(name)
    try:
        return json.loads(file.read_text())
    except FileNotFoundError:
        raise CourseError(f"no result {file.name} yet: run the cell with !torchrun first") from None
    except json.JSONDecodeError:
        raise CourseError(f"{file.name} is not JSON: delete it and run its script again") from None
