"""A global batch of ranks × accumulation × micro-batch, against one process."""

import runpy
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, data, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

cells = runpy.run_path(str(Path(__file__).with_name("08_model.py")))
mlp, weights = cells["mlp"], cells["weights"]

MICRO, ACCUMULATION = 16, 8


def large_batch(me, train, steps=5):
    """The same large batches on all ranks with accumulation, and on one process alone."""
    size = MICRO * ACCUMULATION * me.world_size
    order = torch.randperm(len(train), generator=torch.Generator().manual_seed(0))
    batches = [
        train[order[torch.arange(i * size, (i + 1) * size) % len(order)]] for i in range(steps)
    ]
    alone, shared = mlp(me.device), mlp(me.device)
    ddp = DDP(shared)
    for model in (alone, ddp):
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        for x, y in batches:
            x, y = x.to(me.device), y.to(me.device)
            optimizer.zero_grad()
            if model is alone:
                F.cross_entropy(model(x), y).backward()
            else:
                own = slice(me.rank * size // me.world_size, (me.rank + 1) * size // me.world_size)
                parts = list(zip(x[own].split(MICRO), y[own].split(MICRO)))
                with ddp.no_sync():
                    for part in parts[:-1]:
                        (F.cross_entropy(ddp(part[0]), part[1]) / len(parts)).backward()
                (F.cross_entropy(ddp(parts[-1][0]), parts[-1][1]) / len(parts)).backward()
            optimizer.step()
    gap = checks.parity(weights(alone), gather(weights(shared))).value
    return {"size": size, "gap": gap}


@record
def main():
    torch.set_num_threads(1)
    with process_group() as me:
        mine = {"large batch": large_batch(me, data.load("digits").train)}
        results.save("08_batch", {"ranks": gather(mine)}, me.device)


if __name__ == "__main__":
    main()
