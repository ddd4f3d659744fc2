"""The gradient that DDP leaves in .grad, for three losses, and the bytes it sends."""

import torch
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import results
from ddp_course.models import ToyNet
from ddp_course.process_group import process_group

# name: (samples for N ranks, how the loss of a shard is reduced)
CASES = {
    "mean loss, equal shards": (lambda n: 4 * n, "mean"),
    "sum loss, equal shards": (lambda n: 4 * n, "sum"),
    "mean loss, unequal shards": (lambda n: 3 * n - 1, "mean"),
}


def batch(samples):
    """The same numbers in every process and in the notebook."""
    g = torch.Generator().manual_seed(1)
    return torch.randn(samples, 10, generator=g), torch.randn(samples, 5, generator=g)


def ddp_gradient(me, samples, reduction):
    """Forward and backward on this rank's shard; returns .grad by name, and bytes sent off."""
    torch.manual_seed(0)
    model = ToyNet().to(me.device)
    ddp = DDP(model, device_ids=[me.device] if me.device.type == "cuda" else None)
    sent = []

    def count(state, bucket):
        sent.append(bucket.buffer().nbytes)
        return allreduce_hook(state, bucket)  # what DDP does without a hook

    ddp.register_comm_hook(None, count)
    x, y = (t.chunk(me.world_size)[me.rank].to(me.device) for t in batch(samples))
    F.mse_loss(ddp(x), y, reduction=reduction).backward()
    return {name: p.grad.tolist() for name, p in model.named_parameters()}, sum(sent)


@record
def main():
    with process_group() as me:
        found = {}
        for name, (samples, reduction) in CASES.items():
            gradient, sent = ddp_gradient(me, samples(me.world_size), reduction)
            found[name] = {"gradient": gradient, "bucket_bytes": sent}
            if me.rank == 0:
                print(f"{name}: net2.bias.grad[0] = {gradient['net2.bias'][0]:.4f}, {sent} bytes")
        results.save("01_gradients", found, me.device)


if __name__ == "__main__":
    main()
