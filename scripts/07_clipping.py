"""Clipping with a scaler under DDP: the order of the calls, and the norm on 1, 2 and 4 ranks."""

import runpy
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import checks, results
from ddp_course.process_group import TIMEOUT, process_group
from ddp_course.tools.collectives import gather

cells = runpy.run_path(str(Path(__file__).with_name("07_scaled.py")))
setup, samples, loss_of = cells["setup"], cells["samples"], cells["loss_of"]


def clip_order(me, order, max_norm=0.5):
    """Length of the step that the optimizer takes, the scale, and the weights."""
    ddp, optimizer, scaler = setup(me)
    before = cells["weights"](ddp.module)
    x, y = samples(me, 8 * me.rank, 8)
    dtype = None if order == "float32" else torch.float16
    scaler.scale(loss_of(ddp, x, y, dtype)).backward()
    if order != "clip, then unscale":
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(ddp.parameters(), max_norm)
    scaler.step(optimizer)
    scale = scaler.get_scale()
    scaler.update()
    after = cells["weights"](ddp.module)
    step = cells["length"](before, after)
    return {"step": step, "scale": scale, "max_norm": max_norm}, after


def clipping(me):
    """Both orders in float16, each beside a clipped step in float32."""
    expected, found = clip_order(me, "float32")[1], {}
    for order in ("unscale, then clip", "clip, then unscale"):
        found[order], after = clip_order(me, order)
        found[order]["gap"] = checks.parity(expected, [after]).value
    return found


def norm_by_ranks(me):
    """{n: norm of the averaged gradient of all samples on n ranks}, unscaled, in float32."""
    norms = {}
    for n in (n for n in (1, 2, 4) if n <= me.world_size):
        group = dist.new_group(range(n), timeout=TIMEOUT)  # all ranks make it, n use it
        if me.rank < n:
            ddp, optimizer, scaler = setup(me, group)
            share = 8 * me.world_size // n
            x, y = samples(me, me.rank * share, share)
            scaler.scale(loss_of(ddp, x, y, dtype=None)).backward()
            scaler.unscale_(optimizer)
            norms[n] = nn.utils.clip_grad_norm_(ddp.parameters(), 1.0).item()
    return norms


@record
def main():
    with process_group() as me:
        mine = {"clip": clipping(me), "norms": norm_by_ranks(me)}
        results.save("07_clipping", {"ranks": gather(mine)}, me.device)


if __name__ == "__main__":
    main()
