"""Run by test_process_group.py: what needs more than one rank."""

import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torchvision.datasets import MNIST

from ddp_course import data
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import all_or_none
from ddp_course.tools.errors import CourseError

MNIST.mirrors = ["http://127.0.0.1:9/"]  # nobody listens there: the download must fail


def message(work):
    try:
        work()
    except CourseError as error:
        return str(error)


def fail_on_rank_1():
    if dist.get_rank() == 1:
        raise OSError("the disk of rank 1 is full")


def slow_download(file):
    time.sleep(4)
    with open(file, "a") as f:
        f.write("downloaded\n")


class Slow:
    def __del__(self):
        time.sleep(0.5)


def leave_a_callback():
    """It lets go of the group in gloo's thread, and late, as a comm hook's now and then does."""
    group, zzz = dist.group.WORLD, Slow()  # a closure lets go from z to a

    def callback(future):
        assert group and zzz
        return future.value()[0]

    return group.allreduce([torch.ones(1)]).get_future().then(callback)


def main(folder):
    """What this rank saw."""
    with process_group(timeout=timedelta(seconds=2)) as me:
        mine = {
            "me": [me.rank, me.local_rank, me.world_size, str(me.device)],
            "value": all_or_none(lambda: me.rank * 10),
            "one fails": message(lambda: all_or_none(fail_on_rank_1)),
            "no folder": message(lambda: data.load("folder", folder / "absent")),
            "no name": message(lambda: data.load("imagenet")),
            "no network": message(lambda: data.load("mnist", folder / "mnist")),
        }
        all_or_none(lambda: slow_download(folder / "log"), first_of_node=True)
        mine["log"] = (folder / "log").read_text()
        leave_a_callback().wait()
    return mine
