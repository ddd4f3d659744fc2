"""Where ranks may part: an infinity on one of them, a scale of its own; and accumulation."""

import runpy
from pathlib import Path

import torch
import torch.nn as nn
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import checks, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather
from ddp_course.tools.errors import CourseError

cells = runpy.run_path(str(Path(__file__).with_name("07_scaled.py")))
setup, samples, loss_of = cells["setup"], cells["samples"], cells["loss_of"]


def step(me, infinity=None, scale=2.0**12):
    """One step from a scale; rank 1 alone may meet an infinity. Who skips, who drifts?"""
    ddp, optimizer, scaler = setup(me, scale=scale)
    before = cells["weights"](ddp.module)
    x, y = samples(me, 8 * me.rank, 8)
    if me.rank == 1 and infinity == "before averaging":
        y[0] = 1e30  # its squared error is infinite
    scaler.scale(loss_of(ddp, x, y)).backward()
    if me.rank == 1 and infinity == "after averaging":  # a penalty that this rank alone adds
        next(ddp.parameters()).grad[0, 0] = torch.inf
    scaler.step(optimizer)
    scaler.update()
    everyone = gather(after := cells["weights"](ddp.module))
    drift = checks.parity(everyone[0], everyone).value
    skipped = cells["length"](before, after) == 0
    return {"skipped": skipped, "scale": scaler.get_scale(), "drift": drift}


def accumulated(me, micro, max_norm=0.5):
    """Eight samples in micro-batches under no_sync: scale each, unscale and clip once."""
    ddp, optimizer, scaler = setup(me)
    x, y = samples(me, 8 * me.rank, 8)
    *parts, last = zip(x.chunk(micro), y.chunk(micro))
    with ddp.no_sync():
        for part in parts:
            scaler.scale(loss_of(ddp, *part) / micro).backward()
    scaler.scale(loss_of(ddp, *last) / micro).backward()
    scaler.unscale_(optimizer)
    norm = nn.utils.clip_grad_norm_(ddp.parameters(), max_norm).item()
    scaler.step(optimizer)
    scaler.update()
    return norm, cells["weights"](ddp.module)


@record
def main():
    with process_group() as me:
        if me.world_size < 2:
            raise CourseError("these are questions to several ranks: type  --nproc-per-node 2")
        mine = {case: step(me, case) for case in ("before averaging", "after averaging")}
        mine["same scale"] = step(me)
        mine["other scale"] = step(me, scale=2.0**8 if me.rank == 1 else 2.0**12)
        (norm, after), (norm_of_4, after_4) = accumulated(me, 1), accumulated(me, 4)
        # Clipping hides a wrong factor: so the norms, too.
        mine["accumulated"] = {"norms": {"one batch": norm, "micro-batches": norm_of_4}}
        mine["accumulated"]["gap"] = checks.parity(after, [after_4]).value
        results.save("07_overflow", {"ranks": gather(mine)}, me.device)


if __name__ == "__main__":
    main()
