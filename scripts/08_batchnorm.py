"""BatchNorm on several ranks, against one process with the full batch: own, by hand, torch's."""

import runpy
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, data, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

cells = runpy.run_path(str(Path(__file__).with_name("08_syncbn.py")))
net, HandMadeSyncBN = cells["net"], cells["HandMadeSyncBN"]


def state(model):
    return {k: v.detach().cpu().double() for k, v in model.state_dict().items()}


def full_batch_gap(me, train, norm, convert=False, steps=3, per_rank=8):
    """After some steps, against one process with nn.BatchNorm2d: weights alone, buffers too."""
    size = per_rank * me.world_size
    alone = net(nn.BatchNorm2d).to(me.device)
    model = net(norm)
    if convert:
        model = nn.SyncBatchNorm.convert_sync_batchnorm(model)  # before wrapping
    ddp = DDP(model.to(me.device))
    for trained, first, count in ((alone, 0, size), (ddp, me.rank * per_rank, per_rank)):
        optimizer = torch.optim.SGD(trained.parameters(), lr=0.1)
        for step in range(steps):
            at = step * size + first
            x, y = (t.to(me.device) for t in train[at : at + count])
            optimizer.zero_grad()
            F.cross_entropy(trained(x), y).backward()
            optimizer.step()
    one, ranks = state(alone), gather(state(ddp.module))
    gaps = {}
    for kind, is_kind in (("weights", lambda k: "running" not in k), ("buffers", lambda k: True)):
        some = [{k: v for k, v in d.items() if is_kind(k)} for d in (one, *ranks)]
        gaps[kind] = checks.parity(some[0], some[1:]).value
    return gaps


def torchs_own(me, train):
    """What torch's SyncBatchNorm does here: its gap on GPUs, its words on the CPU."""
    if me.device.type == "cuda":
        return full_batch_gap(me, train, nn.BatchNorm2d, convert=True)
    model = nn.SyncBatchNorm.convert_sync_batchnorm(net(nn.BatchNorm2d))
    try:
        model(train[:8][0])
    except (ValueError, RuntimeError) as error:
        return str(error).splitlines()[0]


@record
def main():
    torch.set_num_threads(1)
    torch.backends.cudnn.allow_tf32 = False  # 10 bits of fraction would hide a gap of 1e-5
    with process_group() as me:
        train = data.load("digits").train
        kinds = {"BatchNorm2d": nn.BatchNorm2d, "HandMadeSyncBN": HandMadeSyncBN}
        mine = {"gap": {name: full_batch_gap(me, train, norm) for name, norm in kinds.items()}}
        mine["SyncBatchNorm"] = torchs_own(me, train)
        results.save("08_batchnorm", {"ranks": gather(mine)}, me.device)


if __name__ == "__main__":
    main()
