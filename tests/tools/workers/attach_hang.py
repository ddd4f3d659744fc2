"""Rank 1 sleeps in its own code while rank 0 waits in backward; both keep a loader's worker."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP


def sleeps():
    time.sleep(300)


def main(folder):
    dist.init_process_group("gloo")
    model = DDP(torch.nn.Linear(4, 4))
    batches = iter(torch.utils.data.DataLoader(torch.ones(8, 4), num_workers=1))
    for step in range(3):
        loss = model(next(batches)).sum()
        if step == 2:
            Path(folder, f"there-{dist.get_rank()}").touch()
            if dist.get_rank() == 1:
                sleeps()
        loss.backward()


if __name__ == "__main__":
    main(sys.argv[1])
