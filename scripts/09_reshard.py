"""A sharded model: save it on N ranks, go on with it on M. Type the same command with another N."""

import os

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.nn as nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.fsdp import fully_shard

from ddp_course import checks, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

STEPS = 4  # in each life


def build():
    torch.manual_seed(0)
    layers = [nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 8)]
    return nn.Sequential(*layers)


def train(model, optimizer, first, rank=0, world_size=1):
    """Steps first to first + STEPS; a step's 24 samples are shared by the ranks."""
    for step in range(first, first + STEPS):
        g = torch.Generator().manual_seed(step)
        x, y = torch.randn(24, 16, generator=g), torch.randn(24, 8, generator=g)
        x, y = (t.chunk(world_size)[rank] for t in (x, y))
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()


@record
def main():
    os.environ["DDP_COURSE_DEVICE"] = "cpu"
    folder = results.path("09_reshard").with_suffix("")
    with process_group() as me:
        model = fully_shard(build())
        optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
        first = STEPS if folder.exists() else 0
        dist.barrier()  # all have looked before anybody saves
        if first:
            weights, moments = get_state_dict(model, optimizer)  # where each part belongs, here
            state = {"model": weights, "optimizer": moments}
            dcp.load(state, checkpoint_id=folder)
            set_state_dict(
                model, optimizer, model_state_dict=weights, optim_state_dict=moments
            )  # fmt: skip
        train(model, optimizer, first, me.rank, me.world_size)
        weights, moments = get_state_dict(model, optimizer)
        if not first:
            dcp.save({"model": weights, "optimizer": moments}, checkpoint_id=folder)

        alone = build()
        adam = torch.optim.Adam(alone.parameters(), lr=0.01)
        for start in range(0, first + STEPS, STEPS):
            train(alone, adam, start)
        whole = {name: tensor.full_tensor() for name, tensor in weights.items()}
        gap = checks.parity(alone.state_dict(), [whole]).value
        mine = {"first": first, "numbers": sum(t.to_local().numel() for t in weights.values())}
        results.save("09_reshard", {"ranks": gather(mine | {"gap": gap})})
        if me.rank == 0:
            print(f"{me.world_size} ranks, steps {first} to {first + STEPS}: done")


if __name__ == "__main__":
    main()
