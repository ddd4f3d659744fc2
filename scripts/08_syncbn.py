"""SyncBN written by hand, and a small convolutional network with any kind of BatchNorm."""

import runpy
from pathlib import Path

import torch
import torch.nn as nn

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
