"""Saved by all ranks, resumed on one: is it still the same training?"""

import runpy
from pathlib import Path

import torch
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader

from ddp_course import checks, results
from ddp_course.process_group import process_group
from ddp_course.tools import checkpoint

parts = runpy.run_path(str(Path(__file__).with_name("09_parts.py")))
Job, settings, wrap, copied = (parts[k] for k in ("Job", "settings", "wrap", "copied"))
STOP = parts["STOP"]


def new_job(args, rank, world_size, device, whole):
    """With `whole`, the short batch at the end of an epoch is left out."""
    job = Job(args, rank, world_size, device)
    if whole:
        own, batch = torch.Generator(), args.batch // world_size
        images = job.loader.dataset
        job.loader = DataLoader(images, batch, sampler=job.sampler, generator=own, drop_last=True)
    return job


def finished(job, model, state, own):
    job.restore(copied(state), own)
    job.train(model)
    return {name: tensor.cpu() for name, tensor in job.model.state_dict().items()}


def gap(args, me, whole):
    """How far one rank that goes on alone ends from all ranks going on together."""
    job = new_job(args, me.rank, me.world_size, me.device, whole)
    job.train(wrap(job.model, me.device), until=STOP)
    state, own = copied(job.state()), copied(checkpoint.rng_state(me.device))
    again = new_job(args, me.rank, me.world_size, me.device, whole)
    together = finished(again, wrap(again.model, me.device), state, own)
    if me.rank:
        return None
    one = new_job(args, 0, 1, me.device, whole)
    return checks.parity(together, [finished(one, one.model, state, None)]).value


@record
def main():
    args = settings(["--epochs", "3", "--float32"])  # float16 would round the two ways differently
    found = {}
    with process_group() as me:
        args.batch = me.world_size * (64 // me.world_size)
        for name, noise, whole in (
            ("no noise, whole batches", 0.0, True),
            ("no noise, a short last batch", 0.0, False),
            ("dropout and augmentation", 0.2, True),
        ):
            args.noise = noise
            found[name] = gap(args, me, whole)
        results.save("09_other_size", {"gaps": found}, me.device)
        if me.rank == 0:
            print("saved by", me.world_size, "ranks, resumed by one, in", len(found), "trainings")


if __name__ == "__main__":
    main()
