"""A model on two devices, inside DDP: the same training, and no less memory."""

import os

import torch
import torch.nn as nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather


class TwoDevices(nn.Module):
    """Half of the layers on one device, half on another; the activations move between them."""

    def __init__(self, first, second):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = first, second
        self.front = nn.Sequential(nn.Linear(10, 256), nn.Tanh(), nn.Linear(256, 256)).to(first)
        self.back = nn.Sequential(nn.Linear(256, 256), nn.Tanh(), nn.Linear(256, 5)).to(second)

    def forward(self, x):
        x = self.front(x.to(self.first))
        return self.back(x.to(self.second))  # autograd brings the gradient back


GPUS = 0 if os.environ.get("DDP_COURSE_DEVICE") == "cpu" else torch.cuda.device_count()


def my_devices(me):
    """Two GPUs for each rank where this node has enough; otherwise the CPU, twice."""
    if 2 * int(os.environ["LOCAL_WORLD_SIZE"]) <= GPUS:
        first = 2 * me.local_rank  # not rank: each node numbers its GPUs from 0
        return torch.device("cuda", first), torch.device("cuda", first + 1)
    return torch.device("cpu"), torch.device("cpu")


def train(me, model, ddp=None, steps=3):
    """Alone on all samples, or as one of the ranks on its share."""
    g = torch.Generator().manual_seed(1)
    x = torch.randn(16 * me.world_size, 10, generator=g)
    y = torch.randn(16 * me.world_size, 5, generator=g)
    if ddp is not None:
        x, y = x.chunk(me.world_size)[me.rank], y.chunk(me.world_size)[me.rank]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        out = (ddp or model)(x)
        (out - y.to(out.device)).square().mean().backward()
        optimizer.step()
    return {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}


@record
def main():
    os.environ["DDP_COURSE_DEVICE"] = "cpu"  # gloo takes the gradients of several devices
    with process_group() as me:
        model = TwoDevices(*my_devices(me))
        together = train(me, model, DDP(model))
        alone = train(me, TwoDevices(*my_devices(me)))
        mine = {
            "devices": [str(d) for d in my_devices(me)],
            "gap": checks.parity(alone, [together]).value,
            "bytes": [
                sum(p.nbytes for p in half.parameters()) for half in (model.front, model.back)
            ],
        }
        results.save("10_two_devices", {"ranks": gather(mine)}, my_devices(me)[0])
        if me.rank == 0:
            print("devices of rank 0:", mine["devices"], "gap to one process:", mine["gap"])


if __name__ == "__main__":
    main()
