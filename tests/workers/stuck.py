"""Launches that hang or die, for ddp_course.diagnose; run by test_diagnose.py."""

import ctypes
import os
import queue
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course.process_group import process_group


def wait_for_data(me, ddp):
    if me.rank == 1:
        queue.Queue().get()  # nobody fills it
    backward(ddp)


def deep_in_c(me, ddp):
    backward(ddp)
    if me.rank == 1:
        ctypes.PyDLL(None).pause()  # PyDLL keeps the interpreter's lock
    backward(ddp)


def one_less(me, ddp):
    group = dist.new_group([0, 1])
    if me.rank == 0:
        dist.all_reduce(torch.ones(3), group=group)
    dist.barrier()


def leaves(me, ddp):
    if me.rank == 1:
        return
    backward(ddp)


def bad_sample(me, ddp):
    backward(ddp)
    if me.rank == 1:
        {}["label"]
    backward(ddp)


def killed(me, ddp):
    backward(ddp)
    if me.rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    backward(ddp)


def says_and_exits(me, ddp):
    if me.rank == 1:
        sys.stderr.write("no licence on this node\n")
        sys.exit(7)
    backward(ddp)


def late(me, ddp):
    """Its own timeout is shorter than our patience: a crash, whose cause is on the other rank."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))
    if me.rank == 1:
        queue.Queue().get()
    dist.all_reduce(torch.ones(2), group=group)


def fine(me, ddp):
    backward(ddp)


def backward(ddp):
    ddp(torch.randn(3, 4)).sum().backward()


def main():
    with process_group() as me:
        globals()[sys.argv[1]](me, DDP(nn.Linear(4, 2)))


if __name__ == "__main__":
    main()
