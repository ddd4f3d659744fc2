"""BatchNorm on several ranks: own statistics, rank 0's buffers, and SyncBN written by hand."""

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

# A sum over the ranks that autograd knows: written out in lesson 02.
AllReduce = runpy.run_path(str(Path(__file__).with_name("02_halves.py")))["AllReduce"]


class HandMadeSyncBN(nn.BatchNorm2d):
    """BatchNorm whose mean and variance are those of all ranks' samples together."""

    def forward(self, x):
        if not self.training:
            return super().forward(x)
        over = (0, 2, 3)  # all but the channels
        own = [x.sum(over), x.square().sum(over), x.new_full((1,), x.numel() / x.shape[1])]
        total, squares, count = AllReduce.apply(torch.cat(own)).split([len(own[0])] * 2 + [1])
        mean = total / count
        var = (squares / count - mean.square()).clamp_min(0)  # rounding can make it negative
        with torch.no_grad():
            self.running_mean.lerp_(mean, self.momentum)
            self.running_var.lerp_(var * count / (count - 1), self.momentum)  # unbiased, as torch
            self.num_batches_tracked += 1
        x = (x - mean[:, None, None]) / (var[:, None, None] + self.eps).sqrt()
        return x * self.weight[:, None, None] + self.bias[:, None, None]


def net(norm):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), norm(8), nn.ReLU(), nn.MaxPool2d(2),
        nn.Conv2d(8, 16, 3, padding=1), norm(16), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


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


def scanned(images, scanner):
    """The same digits from another scanner: scanner 0 is well lit, scanner 1 ten times darker."""
    return images / (1 + 9 * scanner)


def two_scanners(me, images, norm, epochs=5):
    """Each rank's images come from a scanner of its own. Accuracy on the images of each."""
    x, y = images.train[me.rank :: me.world_size]
    x = scanned(x, me.rank)
    model = net(norm).to(me.device)
    ddp = DDP(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(epochs):
        order = torch.randperm(len(x), generator=torch.Generator().manual_seed(epoch))
        for batch in order[: len(x) // 32 * 32].split(32):
            optimizer.zero_grad()
            F.cross_entropy(ddp(x[batch].to(me.device)), y[batch].to(me.device)).backward()
            optimizer.step()
    test, labels = images.test[:]
    return [accuracy(model, scanned(test, r), labels, me.device) for r in range(me.world_size)]


@torch.no_grad()
def accuracy(model, x, y, device):
    model.eval()
    return (model(x.to(device)).argmax(1) == y.to(device)).double().mean().item()


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
        images = data.load("digits")
        mine = {
            "gap": {
                "BatchNorm2d": full_batch_gap(me, images.train, nn.BatchNorm2d),
                "HandMadeSyncBN": full_batch_gap(me, images.train, HandMadeSyncBN),
            },
            "scanners": {
                "BatchNorm2d": two_scanners(me, images, nn.BatchNorm2d),
                "HandMadeSyncBN": two_scanners(me, images, HandMadeSyncBN),
            },
            "SyncBatchNorm": torchs_own(me, images.train),
        }
        results.save("08_batchnorm", {"ranks": gather(mine)}, me.device)
        if me.rank == 0:
            print("measured", ", ".join(mine))


if __name__ == "__main__":
    main()
