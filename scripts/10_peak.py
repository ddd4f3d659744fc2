"""The peak of torch's allocator on each GPU in a step of AdamW, by strategy."""

import gc
import runpy
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.checkpoint import checkpoint

from ddp_course import results
from ddp_course.process_group import process_group

ledger = runpy.run_path(str(Path(__file__).with_name("10_ledger.py")))
WIDTH = ledger["WIDTH"]


def checkpointed(me):
    """DDP, and each block's activations are computed again in backward."""
    ddp, optimizer = ledger["with_ddp"](me)
    for block in ddp.module:
        forward = block.forward
        block.forward = lambda x, f=forward: checkpoint(f, x, use_reentrant=False)
    return ddp, optimizer


STRATEGIES = {"DDP": ledger["with_ddp"], "DDP, checkpointing": checkpointed}
STRATEGIES |= {"ZeRO-1": ledger["with_zero1"], "FSDP2": ledger["with_fsdp2"]}


def peak(me, strategy, batch):
    """MiB at the peak of this rank's third step; the first two allocate what stays."""
    gc.collect()  # the strategy before this one
    before = torch.cuda.memory_allocated()
    model, optimizer = strategy(me)
    x = torch.randn(batch, WIDTH, device=me.device)
    for _ in range(3):
        torch.cuda.reset_peak_memory_stats()
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
    return (torch.cuda.max_memory_allocated() - before) / 2**20


@record
def main():
    with process_group() as me:
        found = {}
        for batch in (16, 2048):
            found[batch] = {}
            for name, strategy in STRATEGIES.items():
                ranks = [None] * me.world_size
                dist.all_gather_object(ranks, peak(me, strategy, batch))
                found[batch][name] = ranks
        results.save("10_peak", {"batches": found}, me.device)
        if me.rank == 0:
            for batch, by_name in found.items():
                print(f"batch {batch}:", {k: f"{max(v):.1f} MiB" for k, v in by_name.items()})


if __name__ == "__main__":
    main()
