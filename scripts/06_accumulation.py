"""Gradient accumulation in DDP: how often it sends, and whether the result is the large batch's."""

import runpy
from pathlib import Path

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

cells = runpy.run_path(str(Path(__file__).with_name("06_windows.py")))
model_and_optimizer, windows = cells["model_and_optimizer"], cells["windows"]
VARIANTS = {
    "no no_sync": {"sync_at": None},
    "no_sync, right": {},
    "no_sync, backward only": {"around": "backward only"},
    "no_sync, forward only": {"around": "forward only"},
    "loss not divided": {"k": 1},
    "tail divided by K too": {"k": cells["K"]},
    "sends one step early": {"sync_at": -2},
    "sends at the first": {"sync_at": 0},
}


def run(me, k=None, **how):
    """One epoch; messages per window, and this rank's weights at the end."""
    model, optimizer = model_and_optimizer(me.device)
    ddp, sent = DDP(model), []

    def count(state, bucket):
        sent[-1] += 1
        return allreduce_hook(state, bucket)

    ddp.register_comm_hook(None, count)
    for window in windows(me.rank, me.device):
        sent.append(0)
        optimizer.zero_grad()
        cells["accumulate"](ddp, window, k or len(window), **how)
        optimizer.step()
    return sent, {name: p.cpu() for name, p in model.state_dict().items()}


def one_process(world_size, device):
    """The same epoch on one process: in each step the window of all ranks, as one batch."""
    model, optimizer = model_and_optimizer(device)
    for parts in zip(*(windows(rank, device) for rank in range(world_size))):
        batch = [torch.cat(tensors) for tensors in zip(*(b for window in parts for b in window))]
        optimizer.zero_grad()
        cells["loss_of"](model, batch).backward()
        optimizer.step()
    return {name: p.cpu() for name, p in model.state_dict().items()}


@record
def main():
    with process_group() as me:
        expected, table = one_process(me.world_size, me.device), {}
        for name, how in VARIANTS.items():
            messages, mine = run(me, **how)
            everyone = gather(mine)
            table[name] = {
                "messages": messages,
                "gap": checks.parity(expected, everyone).value,
                "drift": checks.parity(everyone[0], everyone).value,
            }
        results.save("06_accumulation", {"variants": table}, me.device)


if __name__ == "__main__":
    main()
