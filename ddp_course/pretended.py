"""GPUs for a lesson's command: this machine's own, or pretended ones where they can be."""

from ddp_course import hardware
from ddp_course.tools import rehearse

NAME = "pretended GPU"  # as its driver calls it


def gpus(n, enough=None):
    """What to put before a command that needs GPUs.

    Parameters
    ----------
    n : int
        How many to pretend, where this machine has not enough of its own.
    enough : int, optional
        Real GPUs that do as well. Default: n.

    Returns
    -------
    str or None
        Words that let the command's ranks take this machine's GPUs, and where these are not
        enough start `rehearse`; None, after a line that says what is missing, if GPUs can't be
        pretended here.
    """
    take = f"env {hardware.ENV_DEVICE}=cuda"
    if hardware.count_gpus() >= (enough or n):
        return take
    missing = rehearse.missing()
    if missing:
        print(f"not run here: {missing}")
        return None
    return f"{take} python -m ddp_course.tools.rehearse --gpus {n} --"


def stamp(where):
    """What `plots.stamp` writes under a picture: that no hardware was there, if it was not.

    Parameters
    ----------
    where : dict
        From ``results.load(...)["where"]``.

    Returns
    -------
    dict or str
    """
    if NAME in where["device"]:
        return f"pretended GPUs: torch {where['torch']}'s allocator, no hardware"
    return where
