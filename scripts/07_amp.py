"""Train in float32, bfloat16 and float16 under DDP; what is sent, how fast, how good.

On the CPU this shows that it is right. It shows nothing about speed on GPUs.
"""

import gc
import runpy
import statistics
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler

from ddp_course import data, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import synchronize

cells = runpy.run_path(str(Path(__file__).with_name("07_pieces.py")))


def train(me, args, images, precision, compress):
    dtype, kind = cells["PRECISIONS"][precision], me.device.type
    if kind == "cuda":
        gc.collect()  # the model before sits in a reference cycle
        torch.cuda.reset_peak_memory_stats()
    ddp, sent = DDP(cells["build"](args, images).to(me.device)), {}
    ddp.register_comm_hook(None, cells["watching"](sent, compress))
    optimizer = torch.optim.AdamW(ddp.parameters(), lr=args.lr)
    scaler = torch.amp.GradScaler(kind, enabled=dtype == torch.float16)
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
            with torch.amp.autocast(kind, dtype=dtype, enabled=dtype is not None):
                loss = F.cross_entropy(ddp(x), y)
            scaler.scale(loss).backward()  # with enabled=False the scaler does nothing
            scaler.step(optimizer)
            scaler.update()
            scale, before = scaler.get_scale(), scale  # once a step: it waits for the GPU
            skipped += scale < before
            synchronize(me.device)
            ms.append(1e3 * (time.perf_counter() - start))
    dtypes = {str(t.dtype) for p in ddp.parameters() for t in (p, p.grad)}
    found = {"sent": sent, "parameters and gradients": sorted(dtypes), "skipped": skipped}
    found["ms"] = statistics.median(ms)
    found["accuracy"] = cells["accuracy"](ddp.module, images.test, me.device, dtype)
    if kind == "cuda":
        found["peak MiB"] = torch.cuda.max_memory_allocated() / 2**20
    return found


@record
def main():
    args = cells["settings"]()
    torch.set_num_threads(1)
    with process_group() as me:
        images, table = data.load(args.data), {}
        for name in (*cells["PRECISIONS"], "bf16 + hook"):
            table[name] = train(me, args, images, name[:4], compress="hook" in name)
            if me.rank == 0:
                print(f"{name}: accuracy {table[name]['accuracy']:.3f}")
        parameters = sum(p.numel() for p in cells["build"](args, images).parameters())
        results.save("07_amp", {"runs": table, "parameters": parameters}, me.device)


if __name__ == "__main__":
    main()
