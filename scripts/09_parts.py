"""Stop in mid-epoch, rebuild everything, go on: what if one part was not saved?"""

import io
import runpy
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader

from ddp_course import checks, results
from ddp_course.process_group import process_group
from ddp_course.tools import checkpoint
from ddp_course.tools.collectives import gather

training = runpy.run_path(str(Path(__file__).with_name("09_train.py")))
Job, settings, wrap = (training[k] for k in ("Job", "settings", "wrap"))
STOP = 30  # of 69 steps; an epoch has 23
PARTS = ("model", "average", "optimizer", "schedule", "scaler", "position")


class PadsAfterTheCut(training["ResumableSampler"]):
    """What we had first: the padding sample comes from the rest of the epoch."""

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        rest = torch.randperm(self.size, generator=g).tolist()[self.drawn :]
        rest += rest[: -len(rest) % self.world_size]
        return iter(rest[self.rank :: self.world_size])


def copied(state):
    """Through a file, as a restart would."""
    box = io.BytesIO()
    torch.save(state, box)
    return torch.load(io.BytesIO(box.getvalue()), map_location="cpu", weights_only=True)


def new_job(args, rank, world_size, device, whole):
    """With `whole`, the short batch at the end of an epoch is left out."""
    job = Job(args, rank, world_size, device)
    if whole:
        train, batch = job.images.train, args.batch // world_size
        own = torch.Generator()
        job.loader = DataLoader(train, batch, sampler=job.sampler, generator=own, drop_last=True)
    return job


def stopped(args, me, whole=False):
    job = new_job(args, me.rank, me.world_size, me.device, whole)
    job.train(wrap(job, me.device), until=STOP)
    return copied(job.state()), copied(checkpoint.rng_state(me.device))


def finished(args, me, state=None, own=None, alone=False, kind=None, whole=False):
    """Train to the end, from the start or from a state; what all bits of it are then."""
    rank, world_size = (0, 1) if alone else (me.rank, me.world_size)
    job = new_job(args, rank, world_size, me.device, whole)
    ddp = job.model if alone else wrap(job, me.device)
    if kind:
        job.sampler.__class__ = kind
    if state is not None:
        torch.manual_seed(12345 + me.rank)  # a new process would be somewhere else, too
        job.restore(copied(state), own)  # the optimizer would go on in these very tensors
    job.train(ddp)
    tensors = {f"average {k}": v for k, v in job.average.module.state_dict().items()}
    tensors |= job.model.state_dict()
    return {k: v.detach().cpu().clone() for k, v in tensors.items()}, job.step


def without(state, *parts):
    return {k: v for k, v in state.items() if k not in parts}


def leave_out(args, me):
    """{what was missing: gap to the run without a break, of weights and average}."""
    reference, steps = finished(args, me)
    state, own = stopped(args, me)
    epoch = state["position"]["epoch"]
    cases = {"nothing": (state, own)}
    cases |= {part: (without(state, part), own) for part in PARTS}
    cases["random generators"] = (state, None)
    # The snapshot of many tutorials: weights, and the number of the epoch that is running.
    snapshot = {"model": state["model"], "position": {"epoch": epoch, "drawn": 0}, "step": STOP}
    cases["all but model and epoch"] = (snapshot, None)
    found = {}
    for name, (kept, generators) in cases.items():
        after, at = finished(args, me, kept, generators)
        found[name] = {"gap": checks.parity(reference, [after]).value, "steps": at}
    after, at = finished(args, me, state, own, kind=PadsAfterTheCut)
    found["padding after the cut"] = {"gap": checks.parity(reference, [after]).value, "steps": at}
    return found | {"steps": steps}


def other_size(args, me):
    """Saved by all ranks, resumed on one: gap to all ranks resuming."""
    found, args.float32 = {}, True  # float16 would round the two ways differently
    for name, noise, whole in (
        ("no noise, whole batches", 0.0, True),
        ("no noise, a short last batch", 0.0, False),
        ("dropout and augmentation", 0.2, True),
    ):
        args.noise = noise
        state, own = stopped(args, me, whole)
        together, _ = finished(args, me, state, own, whole=whole)
        if me.rank == 0:
            alone, _ = finished(args, me, state, own, alone=True, whole=whole)
            found[name] = checks.parity(together, [alone]).value
    return found


@record
def main():
    args = settings(["--epochs", "3"])
    with process_group() as me:
        args.batch = me.world_size * (64 // me.world_size)
        mine = {"left out": leave_out(args, me), "other size": other_size(args, me)}
        results.save("09_parts", {"ranks": gather(mine)}, me.device)
        if me.rank == 0:
            print("stopped at step", STOP, "and resumed in", len(mine["left out"]), "ways")


if __name__ == "__main__":
    main()
