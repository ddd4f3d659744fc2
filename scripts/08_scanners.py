"""Each rank has images of a scanner of its own: what does rank 0's model make of the other's?"""

import runpy
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import data, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

cells = runpy.run_path(str(Path(__file__).with_name("08_syncbn.py")))
net, HandMadeSyncBN = cells["net"], cells["HandMadeSyncBN"]


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


@record
def main():
    torch.set_num_threads(1)
    with process_group() as me:
        images = data.load("digits")
        kinds = {"BatchNorm2d": nn.BatchNorm2d, "HandMadeSyncBN": HandMadeSyncBN}
        mine = {name: two_scanners(me, images, norm) for name, norm in kinds.items()}
        results.save("08_scanners", {"ranks": gather(mine)}, me.device)


if __name__ == "__main__":
    main()
