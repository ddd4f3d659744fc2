"""All-reduce time while the network card of each node is slowed to one speed after another."""

import subprocess
import time

import torch
import torch.distributed as dist

from ddp_course.tools.collectives import synchronize


def limit(device, mbit):
    """Let what leaves this node through the device be at most so fast (token bucket filter).

    Always the same burst: a queued packet larger than a new, smaller burst would wait for ever.
    """
    command = f"tc qdisc replace dev {device} root tbf rate {mbit}mbit burst 32kb latency 500ms"
    subprocess.run(command.split(), check=True)


def seconds(tensor, repeats):
    """The fastest of some all-reduces; the slowest rank counts."""
    best = float("inf")
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(tensor)
        synchronize(tensor.device)
        took = torch.tensor(time.perf_counter() - start, device=tensor.device)
        dist.all_reduce(took, op=dist.ReduceOp.MAX)
        best = min(best, took.item())
    return best


def sweep(me, device, mbits, mib=4):
    """{Mbit/s: seconds of an all-reduce of 4 bytes, and of mib}, the same on all ranks."""
    found, large = {}, torch.ones(mib * 2**20 // 4, device=me.device)
    try:
        for mbit in mbits:
            dist.barrier()  # nobody is sending any more
            if me.local_rank == 0:
                limit(device, mbit)
            dist.barrier()
            found[mbit] = {"small": seconds(large[:1], 5), "large": seconds(large, 3)}
            large.fill_(1)
    finally:
        if me.local_rank == 0:
            subprocess.run(f"tc qdisc delete dev {device} root".split(), check=False)
    return {"bytes": large.nbytes, "by mbit": found}
