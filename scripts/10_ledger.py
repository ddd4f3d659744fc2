"""Bytes of parameters, gradients and optimizer state that each rank holds, by strategy."""

import gc

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

WIDTH, BLOCKS = 256, 4


class Block(nn.Module):
    """The two large layers of a transformer's block, with a residual."""

    def __init__(self):
        super().__init__()
        self.up = nn.Linear(WIDTH, 4 * WIDTH)
        self.down = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(x)))


def build():
    torch.manual_seed(0)
    return nn.Sequential(*[Block() for _ in range(BLOCKS)])


def local(tensor):
    """The part of a tensor that is in this process."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


def nbytes(tensors):
    return sum(local(t).nbytes for t in tensors)


def adam(parameters):
    return torch.optim.AdamW(parameters, lr=1e-3)


def with_ddp(me):
    model = build().to(me.device)
    return DDP(model), adam(model.parameters())


def with_zero1(me):
    ddp, _ = with_ddp(me)
    sharded = ZeroRedundancyOptimizer(ddp.parameters(), torch.optim.AdamW, lr=1e-3)
    return ddp, sharded


def with_fsdp2(me):
    model = build().to(me.device)
    mesh = init_device_mesh(me.device.type, (me.world_size,))
    for block in model:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, adam(model.parameters())


def with_tensor_parallel(me):
    model = build().to(me.device)
    mesh = init_device_mesh(me.device.type, (me.world_size,))
    for block in model:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})
    return model, adam(model.parameters())


def optimizer_state(optimizer):
    inner = optimizer.optim if isinstance(optimizer, ZeroRedundancyOptimizer) else optimizer
    states = (t for state in inner.state.values() for t in state.values())
    return [t for t in states if torch.is_tensor(t) and t.dim() > 0]  # not the step counts


def whole(tensor):
    tensor = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
    return tensor.detach().cpu().clone()


def measure(me, strategy, same_batch):
    """Two steps: what is held after them, and the weights that came out."""
    model, optimizer = strategy(me)
    g = torch.Generator().manual_seed(1)
    x = torch.randn(8 * me.world_size, WIDTH, generator=g)
    x = x if same_batch else x.chunk(me.world_size)[me.rank]
    for _ in range(2):
        optimizer.zero_grad()
        model(x.to(me.device)).square().mean().backward()
        optimizer.step()
    parameters = list(model.parameters())
    held = {
        "parameters": nbytes(parameters),
        "gradients": nbytes(p.grad for p in parameters),
        "optimizer": nbytes(optimizer_state(optimizer)),
    }
    module = model.module if isinstance(model, DDP) else model
    return held, {name: whole(p) for name, p in module.named_parameters()}


STRATEGIES = {  # and: do all ranks work on the same batch?
    "DDP": (with_ddp, False),
    "ZeRO-1": (with_zero1, False),
    "FSDP2": (with_fsdp2, False),
    "tensor parallel": (with_tensor_parallel, True),
}


def ledger(me):
    found, reference = {}, None
    for name, (strategy, same_batch) in STRATEGIES.items():
        held, weights = measure(me, strategy, same_batch)
        reference = reference or weights
        found[name] = held | {"gap to DDP": checks.parity(reference, [weights]).value}
        gc.collect()
        dist.barrier()
    return found


@record
def main():
    with process_group() as me:
        mine = ledger(me)
        size = sum(p.numel() for p in build().parameters())
        results.save("10_ledger", {"size": size, "ranks": gather(mine)}, me.device)
        if me.rank == 0:
            print(f"{size:,} parameters, {len(mine)} strategies")


if __name__ == "__main__":
    main()
