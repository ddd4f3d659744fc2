"""A model whose gradients go through a hook by name, and a count of the bytes that it sends."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel as DDP

HOOKS = ("allreduce", "fp16", "bf16", "PowerSGD 4", "PowerSGD 1", "PowerSGD 1, no feedback")


def mlp():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
        nn.Linear(512, 10),
    )  # fmt: skip


def wrap_with_hook(me, name):
    # 25 MiB hold the whole model: PowerSGD needs one bucket over gloo (see the traps).
    ddp = DDP(mlp().to(me.device), bucket_cap_mb=25)
    if name.startswith("PowerSGD"):
        state = powerSGD_hook.PowerSGDState(
            process_group=None,
            matrix_approximation_rank=int(name[9]),
            start_powerSGD_iter=2,  # the first two steps send everything
            use_error_feedback="no feedback" not in name,
        )
        ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    else:
        suffix = "_hook" if name == "allreduce" else "_compress_hook"
        ddp.register_comm_hook(None, getattr(default_hooks, name + suffix))
    return ddp


class CountedAllReduce:
    """Takes the place of dist.all_reduce, which every hook here calls, and adds up the bytes."""

    def __init__(self):
        self.real, self.bytes = dist.all_reduce, 0

    def __call__(self, tensor, *args, **kwargs):
        self.bytes += tensor.nbytes
        return self.real(tensor, *args, **kwargs)
