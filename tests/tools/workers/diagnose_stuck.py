"""Launches that hang or die under torchrun, for diagnose; run by test_diagnose.py."""

import ctypes
import os
import queue
import signal
import sys
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401 before init: else it holds the group for ever
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Dataset

from ddp_course.tools.collectives import leave_group


def wait_for_data(rank, ddp):
    if rank == 1:
        queue.Queue().get()  # nobody fills it
    backward(ddp)


def deep_in_c(rank, ddp):
    backward(ddp)
    if rank == 1:
        ctypes.PyDLL(None).pause()  # PyDLL keeps the interpreter's lock
    backward(ddp)


def one_less(rank, ddp):
    group = dist.new_group([0, 1])
    if rank == 0:
        dist.all_reduce(torch.ones(3), group=group)
    dist.barrier()


def leaves(rank, ddp):
    if rank == 1:
        return
    backward(ddp)


def bad_sample(rank, ddp):
    backward(ddp)
    if rank == 1:
        {}["label"]
    backward(ddp)


class Samples(Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, number):
        return {}["label"]


def bad_sample_in_worker(rank, ddp):
    backward(ddp)
    if rank == 1:
        next(iter(DataLoader(Samples(), num_workers=1)))
    backward(ddp)


def killed(rank, ddp):
    backward(ddp)
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    backward(ddp)


def says_and_exits(rank, ddp):
    if rank == 1:
        sys.stderr.write("no licence on this node\n")
        sys.exit(7)
    backward(ddp)


def late(rank, ddp):
    """Its own timeout is shorter than --after: a crash, whose cause is on the other rank."""
    group = dist.new_group([0, 1], timeout=timedelta(seconds=2))
    if rank == 1:
        queue.Queue().get()
    dist.all_reduce(torch.ones(2), group=group)


def other_sizes(rank, ddp):
    dist.all_reduce(torch.ones(4 + rank))


def never_used(rank, ddp):
    """The second forward finds that a parameter got no gradient in the first backward."""
    net = DDP(nn.ModuleDict({"body": nn.Linear(4, 2), "adapter": nn.Linear(2, 2)}))
    net.module.forward = net.module["body"].forward
    backward(net)
    backward(net)


def wrong_checkpoint(rank, ddp):
    if rank == 1:
        nn.Linear(4, 2).load_state_dict({"weigth": torch.ones(2, 4), "bias": torch.ones(3)})
    backward(ddp)


def fine(rank, ddp):
    for _ in DataLoader(torch.ones(4), num_workers=1):
        backward(ddp)


def backward(ddp):
    ddp(torch.randn(3, 4)).sum().backward()


def main():
    globals()[sys.argv[1]](dist.get_rank(), DDP(nn.Linear(4, 2)))


if __name__ == "__main__":
    dist.init_process_group("gloo", timeout=timedelta(seconds=100))
    main()
    leave_group()
