"""One training twice: with Hugging Face Accelerate, and with what it does written out."""

import os
import sys
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Subset

from ddp_course import checks, data, models, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

BATCH, ACCUMULATE, STEPS, CLIP = 64, 2, 60, 1.0  # BATCH: images in a micro-batch, on all ranks


def pieces():
    """Model, optimizer, schedule and data: the same for both."""
    torch.manual_seed(0)
    model = models.SmallCNN()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
    images = data.load("digits")
    order = torch.cat([torch.randperm(len(images.train)) for _ in range(6)])
    train = Subset(images.train, order[: STEPS * ACCUMULATE * BATCH].tolist())
    return model, optimizer, schedule, train, images.test


def with_accelerate():
    from accelerate import Accelerator, DataLoaderConfiguration

    accelerator = Accelerator(
        cpu=True,
        gradient_accumulation_steps=ACCUMULATE,
        dataloader_config=DataLoaderConfiguration(split_batches=True),  # BATCH is that of all ranks
    )
    model, optimizer, schedule, train, test = pieces()
    loader, test = DataLoader(train, BATCH), DataLoader(test, BATCH)
    model, optimizer, schedule, loader, test = accelerator.prepare(
        model, optimizer, schedule, loader, test
    )
    for pixels, labels in loader:
        with accelerator.accumulate(model):
            accelerator.backward(F.cross_entropy(model(pixels), labels))
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    model.eval()
    right = drawn = 0
    with torch.no_grad():
        for pixels, labels in test:
            out, labels = accelerator.gather_for_metrics((model(pixels), labels))
            right, drawn = right + (out.argmax(1) == labels).sum().item(), drawn + len(labels)
    return accelerator.unwrap_model(model).state_dict(), right / drawn, type(model).__name__


def written_out(me):
    model, optimizer, schedule, train, test = pieces()
    ddp, share = DDP(model), BATCH // me.world_size
    mine = [i for i in range(len(train)) if i % BATCH // share == me.rank]  # its part of each batch
    for i, (pixels, labels) in enumerate(DataLoader(Subset(train, mine), share)):
        last = (i + 1) % ACCUMULATE == 0
        with nullcontext() if last else ddp.no_sync():
            (F.cross_entropy(ddp(pixels), labels) / ACCUMULATE).backward()
        if last:
            nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()
    counts = torch.zeros(2, dtype=torch.float64)
    part = Subset(test, range(me.rank, len(test), me.world_size))
    with torch.no_grad():
        for pixels, labels in DataLoader(part, BATCH):
            counts += torch.tensor([(model(pixels).argmax(1) == labels).sum(), len(labels)])
    dist.all_reduce(counts)
    return model.state_dict(), (counts[0] / counts[1]).item()


def scheduler_steps():
    """How often Accelerate steps a schedule in one call: by default, and with split_batches."""
    from accelerate import Accelerator, DataLoaderConfiguration

    found = {}
    for split in (False, True):
        accelerator = Accelerator(cpu=True, dataloader_config=DataLoaderConfiguration(split))
        model, optimizer, schedule, *_ = pieces()
        model, optimizer, prepared = accelerator.prepare(model, optimizer, schedule)
        model(torch.zeros(1, 1, 8, 8)).sum().backward()
        optimizer.step()
        prepared.step()
        found[str(split)] = schedule.last_epoch
    return found


def run(me):
    theirs, accuracy, wrapper = with_accelerate()
    ours, written = written_out(me)
    gap = checks.parity(theirs, gather(ours)).value
    found = {"gap": gap, "accuracy": accuracy, "written_out": written}
    found |= {"wrapper": wrapper, "schedule": scheduler_steps()}
    results.save("14_accelerate", found)
    if me.rank == 0:
        print(f"accuracy {accuracy:.4f} and {written:.4f}, weights at most {gap:.0e} apart")


@record
def main():
    os.environ["DDP_COURSE_DEVICE"] = "cpu"  # the comparison is about bits
    try:
        import accelerate  # noqa: F401
    except ModuleNotFoundError:
        sys.exit('Accelerate is not installed: type  pip install -e ".[accelerate]"')
    with process_group() as me:
        run(me)


if __name__ == "__main__":
    main()
