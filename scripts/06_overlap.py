"""When does each bucket leave and arrive, and how much of that hides behind backward?"""

import os
import runpy
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

link = runpy.run_path(str(Path(__file__).with_name("06_link.py")))
Link, Watch = link["Link"], link["Watch"]
CAPS_MB = (1000, 3, 1, 0.001)


def step(watch, x):
    dist.barrier()
    now = {"ready": [], "buckets": [], "forward": time.perf_counter()}
    watch.steps.append(now)
    loss = watch.ddp(x).square().mean()
    now["backward"] = time.perf_counter()
    loss.backward()
    now["end"] = time.perf_counter()


def in_ms(step):
    """The step's moments in milliseconds from the start of forward."""

    def since(t):
        return 1e3 * (t - step["forward"])

    return {
        "backward": since(step["backward"]),
        "computed": since(step["ready"][-1]),
        "end": since(step["end"]),
        "buckets": [[since(b["leaves"]), since(b["arrives"])] for b in step["buckets"]],
        "ready": [b["ready"] for b in step["buckets"]],
    }


def measure(me, rounds=8):
    """{link: {cap in MB: its steps}}; all kinds take turns, and the first two rounds don't count.

    In its first step DDP has one bucket only, in the second it uses the rebuilt ones.
    """
    x = torch.randn(512, link["WIDTH"], generator=torch.Generator().manual_seed(me.rank))
    links = {"this machine": Link(slow=False), "slow link": Link()}
    watches = {name: {c: Watch(c, through) for c in CAPS_MB} for name, through in links.items()}
    for _ in range(rounds):
        for by_cap in watches.values():
            for watch in by_cap.values():
                step(watch, x)
    return {
        name: {cap: [in_ms(s) for s in watch.steps[2:]] for cap, watch in by_cap.items()}
        for name, by_cap in watches.items()
    }


@record
def main():
    os.environ["DDP_COURSE_DEVICE"] = "cpu"
    torch.set_num_threads(1)
    with process_group() as me:
        mine = measure(me)
        results.save("06_overlap", {"ranks": gather(mine)})
        for name, by_cap in mine.items() if me.rank == 0 else ():
            typical = {c: statistics.median(s["end"] for s in v) for c, v in by_cap.items()}
            print(f"{name}: ms a step by bucket cap in MB:",
                  ", ".join(f"{c}: {ms:.0f}" for c, ms in typical.items()))  # fmt: skip


if __name__ == "__main__":
    main()
