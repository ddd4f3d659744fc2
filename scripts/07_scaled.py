"""A model, a scaler and samples, for the questions to the scaler under DDP."""

import torch
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP


def setup(me, group=None, scale=2.0**12):
    """A small DDP model, plain SGD (lr 1, so that a step is the gradient), a scaler."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(me.device)
    ddp = DDP(model, process_group=group)
    scaler = torch.amp.GradScaler(me.device.type, init_scale=scale)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=1.0), scaler


def samples(me, first, count):
    """Some of the job's samples; there are eight for each rank."""
    g = torch.Generator().manual_seed(1)
    total = 8 * me.world_size
    x, y = torch.randn(total, 16, generator=g), 3 * torch.randn(total, 4, generator=g)
    return (t[first : first + count].to(me.device) for t in (x, y))


def loss_of(model, x, y, dtype=torch.float16):
    with torch.amp.autocast(x.device.type, dtype=dtype, enabled=dtype is not None):
        return (model(x) - y).square().mean()


def weights(model):
    return {name: p.detach().cpu().clone() for name, p in model.named_parameters()}


def length(before, after):
    return sum((after[k] - before[k]).double().square().sum() for k in before).sqrt().item()
