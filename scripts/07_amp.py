"""Train in float32, bfloat16 and float16 under DDP; what is sent, how fast, how good.

On the CPU this shows that it is right. It shows nothing about speed on GPUs.
"""

import argparse
import gc
import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from ddp_course import data, models, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import synchronize

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def settings():
    parser = argparse.ArgumentParser()
    parser.add_argument("--data", default="digits", choices=data.NAMES)
    parser.add_argument("--model", default="cnn", choices=("cnn", "resnet18"))
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--batch-size", type=int, default=64, help="of all ranks together")
    parser.add_argument("--lr", type=float, default=0.005)
    return parser.parse_args()


def build(args, images):
    if args.model == "resnet18":
        return models.resnet18_small(images.shape[0], images.classes)
    return models.SmallCNN(images.shape, images.classes)


def train(me, args, images, precision, compress):
    torch.manual_seed(0)
    dtype = PRECISIONS[precision]
    cuda = me.device.type == "cuda"
    if cuda:
        gc.collect()  # the model before sits in a reference cycle
        torch.cuda.reset_peak_memory_stats()
    ddp = DDP(build(args, images).to(me.device))
    sent = {}

    def watch(_, bucket):
        """What DDP hands over to be sent; and then sends it as it is, or halved."""
        kind = str(bucket.buffer().dtype)
        sent[kind] = sent.get(kind, 0) + bucket.buffer().nbytes
        hook = default_hooks.bf16_compress_hook if compress else default_hooks.allreduce_hook
        return hook(None, bucket)

    ddp.register_comm_hook(None, watch)
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(me.device.type, enabled=dtype == torch.float16)
    sampler = DistributedSampler(images.train, seed=0, drop_last=True)
    loader = DataLoader(images.train, args.batch_size // me.world_size, sampler=sampler)
    ms, skipped, scale = [], 0, scaler.get_scale()
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            start = time.perf_counter()
            x, y = x.to(me.device), y.to(me.device)
            sent.clear()
            optimizer.zero_grad()
            with torch.amp.autocast(me.device.type, dtype=dtype, enabled=dtype is not None):
                loss = F.cross_entropy(ddp(x), y)
            scaler.scale(loss).backward()  # with enabled=False the scaler does nothing
            scaler.step(optimizer)
            scaler.update()
            scale, before = scaler.get_scale(), scale  # once a step: it waits for the GPU
            skipped += scale < before
            synchronize(me.device)
            ms.append(1e3 * (time.perf_counter() - start))
    dtypes = {str(t.dtype) for p in ddp.parameters() for t in (p, p.grad)}
    found = {
        "sent": sent,
        "parameters and gradients": sorted(dtypes),
        "ms": statistics.median(ms),
        "skipped": skipped,
        "accuracy": evaluate(ddp.module, images.test, me.device, dtype),
    }
    if cuda:
        found["peak MiB"] = torch.cuda.max_memory_allocated() / 2**20
    return found


@torch.no_grad()
def evaluate(model, test, device, dtype):
    model.eval()
    right = 0
    for x, y in DataLoader(test, 256):
        with torch.amp.autocast(device.type, dtype=dtype, enabled=dtype is not None):
            right += (model(x.to(device)).argmax(1) == y.to(device)).sum().item()
    return right / len(test)


@record
def main():
    args = settings()
    torch.set_num_threads(1)
    with process_group() as me:
        images, table = data.load(args.data), {}
        for name in (*PRECISIONS, "bf16 + hook"):
            table[name] = train(me, args, images, name[:4], compress="hook" in name)
            if me.rank == 0:
                print(f"{name}: accuracy {table[name]['accuracy']:.3f}")
            dist.barrier()
        parameters = sum(p.numel() for p in build(args, images).parameters())
        results.save("07_amp", {"runs": table, "parameters": parameters}, me.device)


if __name__ == "__main__":
    main()
