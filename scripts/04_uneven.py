"""Rank 0 has fewer batches than the others: with Join, and without."""

from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.distributed.algorithms.join import Join
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import results
from ddp_course.process_group import process_group


def build(me, group=None):
    model = nn.Linear(1, 1, bias=False).to(me.device)
    nn.init.ones_(model.weight)
    return model, DDP(model, process_group=group)


def batches(me):
    """Two on rank 0, four on the others. x = rank + 1, so a rank's gradient is rank + 1."""
    return [torch.full((1, 1), me.rank + 1.0, device=me.device)] * (2 if me.rank == 0 else 4)


def with_join(me, by_initial):
    """Gradient that this rank sees in each of its steps."""
    model, ddp = build(me)
    gradients = []
    with Join([ddp], divide_by_initial_world_size=by_initial):
        for x in batches(me):
            model.weight.grad = None
            ddp(x).mean().backward()
            gradients.append(model.weight.grad.item())
    return gradients


def without(me):
    """The same loop: steps done, and the error if there is one."""
    dist.barrier()  # side by side: making a group is under its timeout, too
    model, ddp = build(me, dist.new_group(timeout=timedelta(seconds=2)))
    done = 0
    try:
        for x in batches(me):
            model.weight.grad = None
            ddp(x).mean().backward()
            done += 1
    except RuntimeError as error:
        return done, str(error)
    return done, None


@record
def main():
    with process_group() as me:
        mine = {str(flag): with_join(me, flag) for flag in (True, False)}
        done, error = without(me)  # last, and in a group of its own: after it that group is broken
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine | {"alone": done, "error": error})
        results.save("04_uneven", {"ranks": everyone}, me.device)
        if me.rank == 0:
            for rank, r in enumerate(everyone):
                print(f"rank {rank}: steps with Join {len(r['True'])}, without {r['alone']}")


if __name__ == "__main__":
    main()
