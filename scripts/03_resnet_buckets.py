"""Which buckets does DDP make of torchvision's ResNet-50, and when do they travel?"""

import torch
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.profiler import ProfilerActivity, profile
from torchvision.models import resnet50

from ddp_course import results
from ddp_course.process_group import process_group

STEPS = 3


def train(me):
    """The buckets of each step: elements and number of parameters, in the order of sending."""
    torch.manual_seed(0)
    model = DDP(resnet50().to(me.device))
    steps = []

    def noting(group, bucket):
        steps[-1].append([bucket.buffer().numel(), len(bucket.parameters())])
        return allreduce_hook(group, bucket)

    model.register_comm_hook(None, noting)
    images = torch.randn(2, 3, 32, 32, device=me.device)
    for step in range(STEPS):
        steps.append([])
        with profile(activities=[ProfilerActivity.CPU]) as profiler:
            model(images).sum().backward()
        if step == STEPS - 1 and me.rank == 0:
            profiler.export_chrome_trace(str(results.path("03_trace")))
    return steps


@record
def main():
    with process_group() as me:
        steps = train(me)
        results.save("03_resnet_buckets", {"steps": steps}, me.device)
        if me.rank == 0:
            for i, buckets in enumerate(steps):
                print(f"step {i}: elements in each all-reduce {[n for n, _ in buckets]}")


if __name__ == "__main__":
    main()
