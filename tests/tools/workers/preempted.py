"""A training that a signal reaches in the middle: preempted.py FOLDER WHO, under torchrun.

WHO gets SIGTERM, sent by rank 1 after step 17 of the first life: "rank", this process alone, or
"all", torchrun and this process with its DataLoader workers, as when a whole container ends.
"""

import hashlib
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # noqa: F401  # imported later it would hold the group
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader

from ddp_course.tools import checkpoint, preemption
from ddp_course.tools.collectives import leave_group

STEPS = 40


def train(folder, after_step=lambda step: None, workers=0):
    """From the newest checkpoint to the end; the step it began at, and the weights' digest."""
    torch.manual_seed(0)
    model = torch.nn.Linear(8, 1)
    ddp = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    first = 0
    if found := checkpoint.load(folder):
        model.load_state_dict(found.state["model"])
        optimizer.load_state_dict(found.state["optimizer"])
        checkpoint.set_rng_state(found.mine)
        first = found.step
    else:
        torch.manual_seed(1000 + dist.get_rank())
    loader = DataLoader(
        range(first, STEPS),
        batch_size=None,
        num_workers=workers,
        worker_init_fn=preemption.deafen,
        generator=torch.Generator(),
    )
    preemption.listen()
    for step, _ in enumerate(loader, first + 1):
        optimizer.zero_grad()
        ddp(torch.randn(4, 8)).square().mean().backward()
        optimizer.step()
        after_step(step)
        if preemption.requested():
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            checkpoint.save(folder, step, state, checkpoint.rng_state())
            preemption.leave(step)
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return first, hashlib.sha256(str(weights.tolist()).encode()).hexdigest()[:16]


def send(who):
    if who == "all":
        os.kill(os.getppid(), signal.SIGTERM)
        for worker in multiprocessing.active_children():
            os.kill(worker.pid, signal.SIGTERM)
    os.kill(os.getpid(), signal.SIGTERM)


def main(folder, who):
    def after_step(step):
        fresh = os.environ["TORCHELASTIC_RESTART_COUNT"] == "0" and not (folder / "sent").exists()
        if dist.get_rank() == 1 and step == 17 and fresh:
            folder.mkdir(exist_ok=True)
            (folder / "sent").touch()
            send(who)

    dist.init_process_group("gloo")
    try:
        first, digest = train(folder, after_step, workers=1)
        sys.stdout.write(f"rank {dist.get_rank()} from step {first}, weights {digest}\n")
    finally:
        leave_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
