"""The gradient scaler under DDP: clipping, overflow on one rank, scales that differ."""

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, results
from ddp_course.process_group import TIMEOUT, process_group
from ddp_course.tools.collectives import gather
from ddp_course.tools.errors import CourseError


def setup(me, group=None, scale=2.0**12):
    """A small DDP model, plain SGD (lr 1, so that a step is the gradient), a scaler."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)).to(me.device)
    ddp = DDP(model, process_group=group)
    scaler = torch.amp.GradScaler(me.device.type, init_scale=scale)
    return ddp, torch.optim.SGD(ddp.parameters(), lr=1.0), scaler


def samples(me, first, count):
    """Some of the job's samples; there are eight for each rank."""
    g = torch.Generator().manual_seed(1)
    total = 8 * me.world_size
    x, y = torch.randn(total, 16, generator=g), 3 * torch.randn(total, 4, generator=g)
    return (t[first : first + count].to(me.device) for t in (x, y))


def loss_of(model, x, y, dtype=torch.float16):
    with torch.amp.autocast(x.device.type, dtype=dtype, enabled=dtype is not None):
        return (model(x) - y).square().mean()


def weights(model):
    return {name: p.detach().cpu().clone() for name, p in model.named_parameters()}


def length(before, after):
    return sum((after[k] - before[k]).double().square().sum() for k in before).sqrt().item()


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


def clip_order(me, order, max_norm=0.5):
    """Length of the step that the optimizer takes, the scale, and the weights."""
    ddp, optimizer, scaler = setup(me)
    before = weights(ddp.module)
    x, y = samples(me, 8 * me.rank, 8)
    dtype = None if order == "float32" else torch.float16
    scaler.scale(loss_of(ddp, x, y, dtype)).backward()
    if order != "clip, then unscale":
        scaler.unscale_(optimizer)
    nn.utils.clip_grad_norm_(ddp.parameters(), max_norm)
    scaler.step(optimizer)
    scale = scaler.get_scale()
    scaler.update()
    after = weights(ddp.module)
    return {"step": length(before, after), "scale": scale, "max_norm": max_norm}, after


def clipping(me):
    """Both orders in float16, each beside a clipped step in float32."""
    expected, found = clip_order(me, "float32")[1], {}
    for order in ("unscale, then clip", "clip, then unscale"):
        found[order], after = clip_order(me, order)
        found[order]["gap"] = checks.parity(expected, [after]).value
    return found


def overflow(me, before_averaging):
    """Rank 1 alone meets an infinity, in its loss or in a gradient after DDP. Who skips?"""
    ddp, optimizer, scaler = setup(me)
    before = weights(ddp.module)
    x, y = samples(me, 8 * me.rank, 8)
    if me.rank == 1 and before_averaging:
        y[0] = 1e30  # its squared error is infinite
    scaler.scale(loss_of(ddp, x, y)).backward()
    if me.rank == 1 and not before_averaging:  # as from a penalty that this rank alone adds
        next(ddp.parameters()).grad[0, 0] = torch.inf
    scaler.step(optimizer)
    scaler.update()
    after = weights(ddp.module)
    return {"skipped": length(before, after) == 0, "scale": scaler.get_scale(), "weights": after}


def goes_on(me, scale):
    """One step from the scale that a checkpoint had; it may have been loaded on rank 0 only."""
    ddp, optimizer, scaler = setup(me, scale=scale)
    x, y = samples(me, 8 * me.rank, 8)
    scaler.scale(loss_of(ddp, x, y)).backward()
    scaler.step(optimizer)
    scaler.update()
    return {"weights": weights(ddp.module)}


def accumulated(me, k=4, max_norm=0.5):
    """K micro-batches of 2 under no_sync: scale each, unscale and clip once. And one of 8."""
    after, norms = {}, {}
    for name, micro in (("micro-batches", k), ("one batch", 1)):
        ddp, optimizer, scaler = setup(me)
        x, y = samples(me, 8 * me.rank, 8)
        parts = list(zip(x.chunk(micro), y.chunk(micro)))
        with ddp.no_sync():
            for part in parts[:-1]:
                scaler.scale(loss_of(ddp, *part) / micro).backward()
        scaler.scale(loss_of(ddp, *parts[-1]) / micro).backward()
        scaler.unscale_(optimizer)
        norms[name] = nn.utils.clip_grad_norm_(ddp.parameters(), max_norm).item()
        scaler.step(optimizer)
        scaler.update()
        after[name] = weights(ddp.module)
    gap = checks.parity(after["one batch"], [after["micro-batches"]]).value
    return {"gap": gap, "norms": norms}  # clipping hides a wrong factor: so the norms, too


def drift(me, mine):
    """Largest difference of any rank's weights from rank 0's."""
    everyone = gather(mine.pop("weights"))
    return checks.parity(everyone[0], everyone).value


@record
def main():
    with process_group() as me:
        if me.world_size < 2:
            raise CourseError("these are questions to several ranks: type  --nproc-per-node 4")
        mine = {"norms": norm_by_ranks(me), "accumulated": accumulated(me)}
        mine["clip"] = clipping(me)
        for name, run in (
            ("before averaging", lambda: overflow(me, True)),
            ("after averaging", lambda: overflow(me, False)),
            ("same scale", lambda: goes_on(me, 2.0**12)),
            ("other scale", lambda: goes_on(me, 2.0**8 if me.rank == 1 else 2.0**12)),
        ):
            mine[name] = run()
            mine[name]["drift"] = drift(me, mine[name])
        results.save("07_scaler", {"ranks": gather(mine)}, me.device)
        if me.rank == 0:
            print("measured", ", ".join(mine))


if __name__ == "__main__":
    main()
