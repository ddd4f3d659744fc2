"""Stop in mid-epoch, rebuild everything, go on: what if one part was not saved?"""

import io
import runpy
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import checks, results
from ddp_course.process_group import process_group
from ddp_course.tools import checkpoint
from ddp_course.tools.collectives import gather

training = runpy.run_path(str(Path(__file__).with_name("09_train.py")))
Job, settings, wrap = (training[k] for k in ("Job", "settings", "wrap"))
STOP = 30  # of 69 steps; an epoch has 23
PARTS = ("model", "average", "optimizer", "schedule", "scaler", "position")


def copied(state):  # through a file, as a restart would
    box = io.BytesIO()
    torch.save(state, box)
    return torch.load(io.BytesIO(box.getvalue()), map_location="cpu", weights_only=True)


def stopped(args, me):
    job = Job(args, me.rank, me.world_size, me.device)
    job.train(wrap(job.model, me.device), until=STOP)
    return copied(job.state()), copied(checkpoint.rng_state(me.device))


def finished(args, me, state=None, own=None):
    """Train to the end, from the start or from a state: the weights, and the loss of each step."""
    job, losses = Job(args, me.rank, me.world_size, me.device), []

    def after_step():
        dist.all_reduce(mean := job.loss.detach() / me.world_size)
        losses.append(mean.item())

    ddp = wrap(job.model, me.device)
    if state is not None:
        torch.manual_seed(12345 + me.rank)  # a new process would be somewhere else, too
        job.restore(copied(state), own)  # the optimizer would go on in these very tensors
    job.train(ddp, after_step)
    kept = nn.ModuleDict({"model": job.model, "average": job.average.module}).state_dict()
    return {name: tensor.cpu() for name, tensor in kept.items()}, losses


def leave_out(args, me):
    """{what was missing: gap to the run without a break, of weights and average; the losses}."""
    reference, losses = finished(args, me)
    state, own = stopped(args, me)
    cases = {"nothing": (state, own)}
    cases |= {p: ({k: v for k, v in state.items() if k != p}, own) for p in PARTS}
    cases["random generators"] = (state, None)
    epoch = {"epoch": state["position"]["epoch"], "drawn": 0}
    snapshot = {"model": state["model"], "position": epoch, "step": STOP}
    cases["all but model and epoch"] = (snapshot, None)
    found = {"no break": {"gap": 0.0, "losses": losses[STOP:]}}  # on the same steps
    for name, (kept, generators) in cases.items():
        after, losses = finished(args, me, kept, generators)
        found[name] = {"gap": checks.parity(reference, [after]).value, "losses": losses}
    return found


@record
def main():
    args = settings(["--epochs", "3"])
    with process_group() as me:
        args.batch = me.world_size * (64 // me.world_size)
        results.save("09_parts", {"ranks": gather(leave_out(args, me))}, me.device)


if __name__ == "__main__":
    main()
