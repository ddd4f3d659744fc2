"""The gradient that DDP leaves in .grad, for three losses, and the bytes it sends."""

import torch
import torch.distributed as dist
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
    """Forward and backward on this rank's shard: .grad by name, and what DDP's buckets held."""
    torch.manual_seed(0)
    model = ToyNet().to(me.device)
    ddp = DDP(model)
    buckets = []

    def keep(state, bucket):
        buckets.append(bucket.buffer())
        return allreduce_hook(state, bucket)  # what DDP does without a hook

    ddp.register_comm_hook(None, keep)
    x, y = (t.chunk(me.world_size)[me.rank].to(me.device) for t in batch(samples))
    F.mse_loss(ddp(x), y, reduction=reduction).backward()
    places = {b.untyped_storage().data_ptr() for b in buckets}
    return {
        "gradient": {name: p.grad.tolist() for name, p in model.named_parameters()},
        "bucket_bytes": sum(b.nbytes for b in buckets),
        "grad_lies_in_bucket": model.net2.bias.grad.untyped_storage().data_ptr() in places,
    }


def half(me):
    """A float16 gradient of 40,000 on each rank: DDP's mean, and the mean by hand from the sum."""
    model = torch.nn.Linear(1, 1, bias=False).to(me.device, torch.float16)
    ddp = DDP(model)
    ddp(torch.full((1, 1), 40_000.0, dtype=torch.float16, device=me.device)).sum().backward()
    by_hand = torch.full((1,), 40_000.0, dtype=torch.float16, device=me.device)
    dist.all_reduce(by_hand)
    return {"ddp": str(model.weight.grad.item()), "by_hand": str((by_hand / me.world_size).item())}


@record
def main():
    with process_group() as me:
        found = {}
        for name, (samples, reduction) in CASES.items():
            found[name] = ddp_gradient(me, samples(me.world_size), reduction)
            if me.rank == 0:
                one, sent = found[name]["gradient"]["net2.bias"][0], found[name]["bucket_bytes"]
                print(f"{name}: net2.bias.grad[0] = {one:.4f}, {sent} bytes in buckets")
        results.save("01_gradients", {"cases": found, "half": half(me)}, me.device)


if __name__ == "__main__":
    main()
