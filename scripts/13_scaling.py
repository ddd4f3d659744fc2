"""How much do 1 to N ranks give: weak and strong scaling, beside as many independent processes.

All sizes run in one launch, in turns, so that other load on the machine meets each alike: n ranks
work, the others sleep in a barrier. CPU and gloo, or one GPU a rank.
"""

import statistics
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset

from ddp_course import results
from ddp_course.models import SmallCNN
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather, synchronize

BATCH, IMAGE = 64, (3, 32, 32)
ROUNDS, STEPS = 6, 4
MESSAGES = (4, 2**20)  # bytes, for alpha and bandwidth


def endless(loader):
    while True:
        yield from loader


def stepper(me, batch, group=None, amp=False, bucket_mb=None, loader=False, dp=False):
    """A function that makes one training step; with a group, under DDP."""
    torch.manual_seed(0)
    model = SmallCNN(IMAGE).to(me.device)
    images, labels = torch.randn(batch, *IMAGE), torch.randint(0, 10, (batch,))
    fixed = images.to(me.device), labels.to(me.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    net = DDP(model, process_group=group, bucket_cap_mb=bucket_mb) if group else model
    if dp:
        net = torch.nn.DataParallel(model)
    batches = endless(DataLoader(TensorDataset(images, labels), batch, pin_memory=True))

    def step():
        x, y = (t.to(me.device, non_blocking=True) for t in next(batches)) if loader else fixed
        optimizer.zero_grad()
        with torch.autocast(me.device.type, torch.bfloat16, enabled=amp):
            loss = F.cross_entropy(net(x), y)
        loss.backward()
        optimizer.step()

    return step


def variants(me, n, group):
    """What else a GPU box can compare, all with n GPUs. On a CPU: nothing of it helps."""
    if me.device.type != "cuda" or n < 2 or n > torch.cuda.device_count() or me.rank >= n:
        return {}
    kinds = {
        "weak, bfloat16": stepper(me, BATCH, group, amp=True),
        "weak, from a loader": stepper(me, BATCH, group, loader=True),
        "weak, buckets of 0.2 MB": stepper(me, BATCH, group, bucket_mb=0.2),
    }
    if me.rank == 0:  # one process, all GPUs
        kinds["DataParallel"] = stepper(me, n * BATCH, dp=True)
    return kinds


def timed(work, times, group, device):
    """Seconds a call, from a common start to the slowest rank's end."""
    dist.barrier(group)
    start = time.perf_counter()
    for _ in range(times):
        work()
    synchronize(device)
    dist.barrier(group)
    return (time.perf_counter() - start) / times


def measure(me):
    sizes = [n for n in (1, 2, 4, 8, 16) if n <= me.world_size]
    groups = {n: dist.new_group(range(n)) for n in sizes}  # every rank calls for every group
    kinds = {}
    for n in sizes:
        if me.rank < n:
            kinds[f"independent {n}"] = stepper(me, BATCH), n
            kinds[f"weak {n}"] = stepper(me, BATCH, groups[n]), n
            kinds[f"strong {n}"] = stepper(me, BATCH // n, groups[n]), n
            for nbytes in MESSAGES:
                message = torch.zeros(nbytes // 4, device=me.device)
                send = (lambda m, g: lambda: dist.all_reduce(m, group=g))(message, groups[n])
                kinds[f"all-reduce {nbytes} {n}"] = send, n
    names = [f"{kind} {n}" for n in sizes for kind in ("independent", "weak", "strong")]
    names += [f"all-reduce {nbytes} {n}" for n in sizes for nbytes in MESSAGES]
    extra = variants(me, n, groups[n])
    kinds |= {
        f"{kind} {n}": (step, 1 if kind == "DataParallel" else n) for kind, step in extra.items()
    }
    names += [f"{kind} {n}" for kind in gather(list(extra))[0]]
    seconds = {name: [] for name in names}
    for _ in range(ROUNDS):
        for name in names:
            dist.barrier()  # the idle ones wait here for the next kind
            if name in kinds:
                work, n = kinds[name]
                seconds[name].append(timed(work, STEPS, groups[n], me.device))
    return seconds


@record
def main():
    with process_group() as me:
        if me.device.type == "cpu":
            torch.set_num_threads(1)
        seconds = measure(me)  # rank 0 takes part in everything
        nbytes = 4 * sum(p.numel() for p in SmallCNN(IMAGE).parameters())
        found = {"seconds": seconds, "batch": BATCH, "gradient bytes": nbytes}
        results.save("13_scaling", found, me.device)
        if me.rank == 0:
            for name, times in seconds.items():
                print(f"{name:24} {1e3 * statistics.median(times[1:]):8.2f} ms")


if __name__ == "__main__":
    main()
