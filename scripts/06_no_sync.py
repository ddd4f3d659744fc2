"""How long a window of four micro-batches takes over the slow link, by what no_sync encloses."""

import os
import runpy
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

cells = runpy.run_path(str(Path(__file__).with_name("06_link.py")))
link, ROUNDS, K = cells["Link"](), 5, 4


def window(ddp, x, encloses):
    ddp.zero_grad()
    for i, micro_batch in enumerate(x.chunk(K)):
        last = i == K - 1
        with ddp.no_sync() if encloses == "both" and not last else nullcontext():
            loss = ddp(micro_batch).square().mean() / K
            with ddp.no_sync() if encloses == "backward" and not last else nullcontext():
                loss.backward()


def measure(me):
    """{what no_sync encloses: milliseconds of each window, messages of the last}"""
    x = torch.randn(512, cells["WIDTH"], generator=torch.Generator().manual_seed(me.rank))
    ddp = DDP(cells["model"](), bucket_cap_mb=1)
    ddp.register_comm_hook(None, lambda _, bucket: link.mean(bucket.buffer()))
    for _ in range(2):  # the buckets are rebuilt after the first step
        window(ddp, x, "nothing")
    found = {name: {"ms": []} for name in ("nothing", "backward", "both")}
    for _ in range(ROUNDS):
        for name in found:
            link.sent.clear()
            dist.barrier()
            start = time.perf_counter()
            window(ddp, x, name)
            found[name]["ms"].append(1e3 * (time.perf_counter() - start))
            found[name]["messages"] = len(link.sent)
    return found


@record
def main():
    os.environ["DDP_COURSE_DEVICE"] = "cpu"
    torch.set_num_threads(1)
    with process_group() as me:
        results.save("06_no_sync", {"ranks": gather(measure(me))})


if __name__ == "__main__":
    main()
