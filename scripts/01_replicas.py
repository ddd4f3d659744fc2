"""What a module remembers of one forward through nn.DataParallel on all GPUs."""

import torch
import torch.nn as nn

from ddp_course import results


class Forgetful(nn.Module):
    """Counts samples in three ways: in place in a buffer, in an attribute, in BatchNorm's mean."""

    def __init__(self):
        super().__init__()
        self.register_buffer("in_place", torch.zeros(1))
        self.attribute = 0
        self.norm = nn.BatchNorm1d(1, momentum=1.0)

    def forward(self, x):
        self.in_place += len(x)
        self.attribute = self.attribute + len(x)
        return self.norm(x)


def forget():
    """One forward of 8 samples, 0 to 7: what the module remembers of it."""
    module = Forgetful().cuda()
    nn.DataParallel(module)(torch.arange(8.0, device="cuda:0").unsqueeze(1))
    seen = {"in_place": module.in_place.item(), "attribute": module.attribute}
    return seen | {"mean": module.norm.running_mean.item(), "gpus": torch.cuda.device_count()}


if __name__ == "__main__":
    found = forget()
    results.save("01_replicas", found, "cuda:0")
    print(found)
