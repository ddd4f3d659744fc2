"""Gradient accumulation in DDP: how often it sends, and whether the result is the large batch's."""

from contextlib import nullcontext

import torch
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

K, MICRO_BATCHES, SIZE = 4, 10, 8  # ten micro-batches of eight: two windows of four, a tail of two


def model_and_optimizer(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 1)).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def data(rank, device):
    """This rank's micro-batches: (inputs, targets), each of SIZE samples."""
    g = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(MICRO_BATCHES, SIZE, 20, generator=g).to(device)
    return list(zip(x, x[..., :3].prod(-1, keepdim=True)))


def windows(batches):
    return [batches[i : i + K] for i in range(0, len(batches), K)]


def loss_of(model, batch):
    return (model(batch[0]) - batch[1]).square().mean()


def accumulate(ddp, window, k, sync_at=-1, around="forward and backward"):
    """The gradients of one window, without the optimizer's step.

    sync_at is the micro-step that sends, None if all do; k is what the loss is divided by.
    """
    for i, batch in enumerate(window):
        sends = sync_at is None or i == sync_at % len(window)
        silent = nullcontext() if sends else ddp.no_sync()
        if around == "backward only":
            loss = loss_of(ddp, batch) / k
            with silent:
                loss.backward()
        elif around == "forward only":
            with silent:
                loss = loss_of(ddp, batch) / k
            loss.backward()
        else:
            with silent:
                (loss_of(ddp, batch) / k).backward()


VARIANTS = {
    "no no_sync": {"sync_at": None},
    "no_sync, right": {},
    "no_sync, backward only": {"around": "backward only"},
    "no_sync, forward only": {"around": "forward only"},
    "loss not divided": {"k": 1},
    "tail divided by K too": {"k": K},
    "sends one step early": {"sync_at": -2},
    "sends at the first": {"sync_at": 0},
}


def run(me, batches, k=None, **how):
    """One epoch; messages per window, and this rank's weights at the end."""
    model, optimizer = model_and_optimizer(me.device)
    ddp = DDP(model)
    sent = []

    def count(state, bucket):
        sent[-1] += 1
        return allreduce_hook(state, bucket)

    ddp.register_comm_hook(None, count)
    for window in windows(batches):
        sent.append(0)
        optimizer.zero_grad()
        accumulate(ddp, window, k or len(window), **how)
        optimizer.step()
    return {"messages": sent, "weights": weights(model)}


def one_process(world_size, device):
    """The same epoch on one process: in each step the window of all ranks, as one batch."""
    model, optimizer = model_and_optimizer(device)
    everybody = [windows(data(r, device)) for r in range(world_size)]
    for parts in zip(*everybody):
        batch = [torch.cat(tensors) for tensors in zip(*(b for window in parts for b in window))]
        optimizer.zero_grad()
        loss_of(model, batch).backward()
        optimizer.step()
    return weights(model)


def weights(model):
    return {name: p.detach().cpu() for name, p in model.state_dict().items()}


@record
def main():
    with process_group() as me:
        expected = one_process(me.world_size, me.device)
        batches, table = data(me.rank, me.device), {}
        for name, how in VARIANTS.items():
            mine = run(me, batches, **how)
            everyone = gather(mine["weights"])
            table[name] = {
                "messages": mine["messages"],
                "gap": checks.parity(expected, everyone).value,
                "drift": checks.parity(everyone[0], everyone).value,
            }
        results.save("06_accumulation", {"variants": table}, me.device)
        if me.rank == 0:
            print(f"{len(table)} variants, {MICRO_BATCHES} micro-batches, windows of {K}")


if __name__ == "__main__":
    main()
