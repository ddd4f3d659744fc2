"""Gradients of one window of micro-batches, accumulated right and in the usual wrong ways."""

from contextlib import nullcontext

import torch
import torch.nn as nn

K, MICRO_BATCHES, SIZE = 4, 10, 8  # ten micro-batches of eight: two windows of four, a tail of two


def model_and_optimizer(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 40), nn.Tanh(), nn.Linear(40, 1)).to(device)
    return model, torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.9)


def windows(rank, device):
    """This rank's windows: lists of micro-batches (inputs, targets), each of SIZE samples."""
    g = torch.Generator().manual_seed(100 + rank)
    x = torch.randn(MICRO_BATCHES, SIZE, 20, generator=g).to(device)
    batches = list(zip(x, x[..., :3].prod(-1, keepdim=True)))
    return [batches[i : i + K] for i in range(0, MICRO_BATCHES, K)]


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
