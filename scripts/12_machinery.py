"""Faults of the machinery around training. Run all, or one: --case NAME [--fixed]."""

import io
import logging
import multiprocessing
import os
import signal
import subprocess
import sys
import time

import psutil
import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import gallery

TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]


def one_thread_each(me, fixed, group):
    """Harm: threads that torchrun allows a rank, if nobody says how many."""
    if me.rank:
        return {}
    env = {k: v for k, v in os.environ.items() if k != "OMP_NUM_THREADS"}
    if fixed:
        env["OMP_NUM_THREADS"] = "4"
    done = subprocess.run(
        [*TORCHRUN, "--no-python", "printenv", "OMP_NUM_THREADS"],
        env=env, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return {"harm": int(done.stdout.split()[-1]), "says": "OMP_NUM_THREADS" in done.stderr}


def orphans(me, fixed, group):
    """Harm: ranks that run on after their torchrun was ended."""
    if me.rank:
        return {}
    agent = subprocess.Popen(
        [*TORCHRUN, "--no-python", "sleep", "60"],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    ranks, end = [], time.monotonic() + 60
    while len(ranks) < 2 and time.monotonic() < end:
        time.sleep(0.2)
        ranks = [p for p in psutil.Process(agent.pid).children() if p.name() == "sleep"]
    agent.send_signal(signal.SIGTERM if fixed else signal.SIGKILL)
    agent.wait(60)
    _, left = psutil.wait_procs(ranks, timeout=1)
    for process in left:
        process.kill()
    return {"harm": len(left)}


def same_line_from_every_rank(me, fixed, group):
    """Harm: lines in the log for one message, over all ranks."""
    log = logging.getLogger(f"course {fixed}")
    stream = io.StringIO()
    log.addHandler(logging.StreamHandler(stream))
    log.propagate = False
    log.setLevel(logging.WARNING if fixed and me.rank else logging.INFO)
    log.info("epoch 1: loss 0.5")
    lines = torch.tensor(stream.getvalue().count("\n"))
    dist.all_reduce(lines, group=group)
    return {"harm": lines.item()}


def fork_after_threads(me, fixed, group):
    """Harm: 1 if a forked child stands still in its first operation."""
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    a = torch.ones(400, 400)
    a @ a  # now the parent has a pool of threads; a fork copies the pool's locks, not its threads
    child = multiprocessing.get_context("fork").Process(target=_work, args=(a, fixed))
    child.start()
    child.join(3)
    stuck = child.is_alive()
    child.kill()
    child.join()
    torch.set_num_threads(threads)
    return {"harm": int(stuck)}


def _work(a, fixed):
    if fixed:
        torch.set_num_threads(1)
    (a @ a).sum()
    os._exit(0)


# --- these take the process with them


def other_sizes(me, fixed, group):
    """gloo checks sizes in a thread of its own, where no Python can catch the error."""
    dist.all_reduce(torch.ones(4 if fixed else 4 + me.rank), group=group)


def detail(me, fixed, group):
    """As with TORCH_DISTRIBUTED_DEBUG=DETAIL: DDP reads past the wrapper around gloo's group."""
    if not fixed:
        dist.set_debug_level(dist.DebugLevel.DETAIL)
        group = dist.new_group()
    DDP(nn.Linear(6, 2), process_group=group)


def bad_label(me, fixed, group):
    """One rank's data is broken: what do the others say?"""
    ddp = DDP(nn.Linear(6, 10), process_group=group)
    labels = torch.tensor([3, 10 if me.rank == 1 and not fixed else 4])  # ten classes: 0 to 9
    nn.functional.cross_entropy(ddp(torch.ones(2, 6)), labels).backward()


CASES = [one_thread_each, orphans, same_line_from_every_rank, fork_after_threads]
DEADLY = [other_sizes, detail, bad_label]

if __name__ == "__main__":
    os.environ["DDP_COURSE_DEVICE"] = "cpu"
    cases, deadly = ({case.__name__: case for case in them} for them in (CASES, DEADLY))
    gallery.main("12_machinery", cases, deadly)
