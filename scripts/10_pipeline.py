"""Four ranks as a mesh: two copies of a model that is cut into two stages, and what waits where."""

import os
import time

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.elastic.multiprocessing.errors import record
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather
from ddp_course.tools.errors import CourseError

STEPS, BATCH, MICRO_BATCHES = 3, 32, 4
SCHEDULES = {"GPipe": ScheduleGPipe, "1F1B": Schedule1F1B}


def whole_model():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 64), nn.Tanh(),
        nn.Linear(64, 64), nn.Tanh(), nn.Linear(64, 4),
    )  # fmt: skip


def samples():
    g = torch.Generator().manual_seed(1)
    return torch.randn(BATCH, 16, generator=g), torch.randn(BATCH, 4, generator=g)


def one_process(device):
    """The reference: the whole model, the whole batch. Weights by name."""
    model = whole_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x, y = (t.to(device) for t in samples())
    for _ in range(STEPS):
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return {k: v.detach().cpu() for k, v in model.state_dict().items()}


def two_by_two(me, kind, average=True):
    """Two stages, and world_size / 2 copies of each: who this rank is, and its stage's weights."""
    mesh = init_device_mesh(me.device.type, (me.world_size // 2, 2), mesh_dim_names=("data", "pp"))
    copy, stage = mesh.get_local_rank("data"), mesh.get_local_rank("pp")
    layers = list(whole_model().named_children())
    mine = layers[:4] if stage == 0 else layers[4:]
    part = nn.Sequential()
    for name, layer in mine:  # the names of the whole model stay
        part.add_module(name, layer)
    part.to(me.device)
    copies = mesh.get_group("data")  # the ranks with this stage; the others have other weights
    pipe = PipelineStage(part, stage, 2, me.device, group=mesh.get_group("pp"))
    schedule = SCHEDULES[kind](pipe, MICRO_BATCHES, loss_fn=F.mse_loss)
    optimizer = torch.optim.SGD(part.parameters(), lr=0.1)
    # Each copy takes its share of the batch; all ranks of a copy know it, two of them use it.
    x, y = (t.chunk(me.world_size // 2)[copy].to(me.device) for t in samples())
    for _ in range(STEPS):
        optimizer.zero_grad()
        if stage == 0:
            schedule.step(x)
        else:
            schedule.step(target=y)
        if average:
            for p in part.parameters():
                dist.all_reduce(p.grad, group=copies)
                p.grad /= me.world_size // 2
        optimizer.step()
    weights = {k: v.detach().cpu() for k, v in part.state_dict().items()}
    groups = {name: dist.get_process_group_ranks(mesh.get_group(name)) for name in ("data", "pp")}
    return groups | {"copy": copy, "stage": stage}, weights


def parity(me, kind, average=True):
    who, weights = two_by_two(me, kind, average)
    expected = one_process(me.device)
    gap = checks.parity({k: expected[k] for k in weights}, [weights]).value
    return who | {"gap": gap, "parameters": sum(w.numel() for w in weights.values())}


def stage_in_ddp(me, give_shapes):
    """The whole model as one stage, in DDP: what it says, or the gap to one process."""
    alone, _ = dist.new_subgroups(1)  # a pipeline for each rank
    model = whole_model().to(me.device)
    x, y = (t.chunk(me.world_size)[me.rank].to(me.device) for t in samples())
    shapes = {
        "input_args": (x.chunk(MICRO_BATCHES)[0],),
        "output_args": (y.chunk(MICRO_BATCHES)[0],),
    }
    shapes = shapes if give_shapes else {}
    ddp = DDP(model)
    stage = PipelineStage(ddp, 0, 1, me.device, group=alone, **shapes)
    schedule = ScheduleGPipe(stage, MICRO_BATCHES, loss_fn=F.mse_loss)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    try:
        for _ in range(STEPS):
            optimizer.zero_grad()
            schedule.step(x, target=y)
            optimizer.step()
    except RuntimeError as error:
        return str(error.__cause__ or error).split(" at ")[0]
    weights = {k: v.detach().cpu() for k, v in model.state_dict().items()}
    return checks.parity(one_process(me.device), [weights]).value


class Sleep(torch.autograd.Function):
    """Stands for a device that computes: waits, and notes from when to when."""

    @staticmethod
    def forward(ctx, x, seconds, note):
        ctx.seconds, ctx.note = seconds, note
        note("F", seconds)
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        ctx.note("B", 2 * ctx.seconds)  # about twice the work of forward
        return gradient, None, None


class Slow(nn.Module):
    def __init__(self, seconds):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.seconds, self.notes, self.alive, self.peak = seconds, [], 0, 0

    def note(self, kind, seconds):
        start = time.monotonic()  # one clock for all processes of a machine
        time.sleep(seconds)
        self.notes.append([kind, start, time.monotonic()])
        self.alive += 1 if kind == "F" else -1  # micro-batches whose activations are held
        self.peak = max(self.peak, self.alive)

    def forward(self, x):
        return Sleep.apply(x * self.weight, self.seconds, self.note)


def timeline(me, kind, micro_batches, seconds=0.03):
    """One stage a rank, each as slow as the others: when did this one work?"""
    slow = Slow(seconds).to(me.device)
    stage = PipelineStage(slow, me.rank, me.world_size, me.device)
    schedule = SCHEDULES[kind](stage, micro_batches, loss_fn=F.mse_loss)
    x = torch.ones(micro_batches, 1, device=me.device)
    for _ in range(2):  # the first step also exchanges shapes
        slow.notes, slow.alive, slow.peak = [], 0, 0
        dist.barrier()
        if me.rank == 0:
            schedule.step(x)
        elif me.rank == me.world_size - 1:
            schedule.step(target=x)
        else:
            schedule.step()
    return {"notes": slow.notes, "peak": slow.peak}


@record
def main():
    os.environ["DDP_COURSE_DEVICE"] = "cpu"  # its subject is the order of things, not speed
    with process_group() as me:
        if me.world_size not in (4, 8):
            raise CourseError("a mesh of two stages and two copies: type  --nproc-per-node 4")
        mine = {
            "GPipe": parity(me, "GPipe"),
            "1F1B": parity(me, "1F1B"),
            "not averaged": parity(me, "GPipe", average=False),
            "in DDP": stage_in_ddp(me, give_shapes=False),
            "in DDP, shapes given": stage_in_ddp(me, give_shapes=True),
            "timelines": {
                f"{kind}, {m}": timeline(me, kind, m)
                for kind, m in (("GPipe", 4), ("GPipe", 8), ("1F1B", 8))
            },
        }
        results.save("10_pipeline", {"ranks": gather(mine)}, me.device)
        if me.rank == 0:
            print("largest gap to one process:", mine["GPipe"]["gap"])


if __name__ == "__main__":
    main()
