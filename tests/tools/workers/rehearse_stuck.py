"""A GPU script in which rank 1 hangs, or dies; run by test_rehearse.py under diagnose."""

import os
import queue
import sys

import torch
import torch.distributed as dist

rank = int(os.environ["LOCAL_RANK"])
torch.cuda.set_device(rank)
dist.init_process_group("nccl")
x = torch.ones(2, device="cuda")
dist.all_reduce(x)
if rank == 1 and sys.argv[1] == "hangs":
    queue.Queue().get()
if rank == 1 and sys.argv[1] == "dies":
    x + torch.ones(2)
dist.all_reduce(x)
