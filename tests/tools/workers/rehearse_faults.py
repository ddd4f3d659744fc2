"""What a GPU would refuse, and what it wouldn't, on two ranks; run by test_rehearse.py.

Each case notes what it raised, on this rank. Those that hang on hardware raise before they talk.
"""

import json
import multiprocessing
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

from ddp_course.tools import audit
from ddp_course.tools.collectives import leave_group

CASES = {}


def case(function):
    CASES[function.__name__] = function
    return function


@case  # comes first: after it, each rank has a GPU of its own
def set_device_forgotten(rank):
    dist.all_reduce(torch.ones(2, device="cuda"), group=dist.new_group())


@case
def all_ranks_on_gpu_0(rank):
    dist.all_reduce(torch.ones(2, device="cuda:0"), group=dist.new_group())


@case
def labels_on_the_cpu(rank):
    net = DDP(nn.Linear(3, 2).cuda())
    F.cross_entropy(net(torch.randn(4, 3).cuda()), torch.zeros(4, dtype=torch.long))


@case
def input_on_the_cpu(rank):
    DDP(nn.Linear(3, 2).cuda())(torch.randn(4, 3))


@case
def device_ids_of_rank_0(rank):
    DDP(nn.Linear(3, 2).cuda(), device_ids=[0])(torch.randn(4, 3))


@case
def collective_of_a_cpu_tensor(rank):
    dist.all_reduce(torch.ones(2))


@case
def numpy_without_cpu(rank):
    torch.ones(2, device="cuda").numpy()


@case
def misspelt(rank):
    torch.cuda.max_memory_alocated()


@case
def monitored_barrier(rank):
    dist.monitored_barrier()


@case
def data_parallel_of_a_cpu_module(rank):
    nn.DataParallel(nn.Linear(3, 2))(torch.randn(4, 3).cuda())


@case
def too_few_gpus(rank):
    torch.ones(2, device=f"cuda:{rank + 1}")  # rank 0 is right here


@case
def other_gpu(rank):
    torch.ones(2, device=f"cuda:{1 - rank}") + torch.ones(2, device="cuda")


@case
def tensor_of_another_gpu_in_a_bound_group(rank):
    group = dist.new_group(device_id=torch.device("cuda", rank))
    dist.all_reduce(torch.ones(2, device=f"cuda:{1 - rank}"), group=group)


@case
def fork_after_cuda(rank):
    seen = multiprocessing.get_context("fork").SimpleQueue()

    def child():
        try:
            torch.ones(2, device="cuda")
            seen.put("it worked")
        except RuntimeError as error:
            seen.put(str(error))

    fork = multiprocessing.get_context("fork").Process(target=child)
    fork.start()
    fork.join()
    raise RuntimeError(seen.get())


@case
def no_twin(rank):
    weights = [torch.randn(8, 3, device="cuda"), torch.randn(8, 2, device="cuda")]
    x, h = torch.randn(1, 1, 3, device="cuda"), torch.zeros(1, 1, 2, device="cuda")
    torch._cudnn_rnn(x, weights, 2, None, h, h, 2, 2, 0, 1, False, 0.0, True, False, [], None)


@case
def out_of_memory(rank):
    torch.empty(65 << 20, dtype=torch.uint8, device="cuda")


@case
def memory_that_another_rank_has(rank):
    taken = torch.empty(40 << 20, dtype=torch.uint8, device="cuda:0") if rank else None
    dist.barrier()
    try:
        if rank == 0:
            torch.empty(40 << 20, dtype=torch.uint8, device="cuda:0")
    finally:
        dist.barrier()
        del taken
        torch.cuda.empty_cache()


@case
def right(rank):
    """Nothing is wrong here, and the audit says so; its peak is known."""
    torch.cuda.reset_peak_memory_stats()
    x = torch.randn(64, 3, generator=torch.Generator().manual_seed(1))
    data = TensorDataset(x, (x.sum(1) > 0).long())
    sampler = DistributedSampler(data)
    loader = DataLoader(data, 8, sampler=sampler, pin_memory=True)
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 2))
    net = DDP(nn.SyncBatchNorm.convert_sync_batchnorm(net).cuda(), device_ids=[rank])
    optimizer = torch.optim.AdamW(net.parameters())
    with audit.watch(net, optimizer, loader) as report:
        for epoch in range(2):
            sampler.set_epoch(epoch)
            for x, y in loader:
                optimizer.zero_grad()
                F.cross_entropy(net(x.cuda(non_blocking=True)), y.cuda()).backward()
                optimizer.step()
    half = torch.ones(2, device="cuda", dtype=torch.bfloat16)
    dist.all_reduce(half)
    assert half.tolist() == [2, 2]
    return [verdict.answer for verdict in report.verdicts()]


@case
def wrong_by_audit(rank):
    """Each rank trains the module beneath DDP: no error anywhere, and the audit sees it."""
    net = DDP(nn.Linear(3, 2).cuda())
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    with audit.watch(net, optimizer) as report:
        for _ in range(3):
            optimizer.zero_grad()
            net.module(torch.randn(4, 3).cuda() + rank).sum().backward()
            optimizer.step()
    return report.in_sync.answer


def main():
    rank, found = int(os.environ["LOCAL_RANK"]), {}
    dist.init_process_group("nccl")
    for name, run in CASES.items():
        if name == "labels_on_the_cpu":
            torch.cuda.set_device(rank)
        try:
            found[name] = run(rank)
        except Exception as error:
            found[name] = f"{type(error).__name__}: {error}"
        print(name, found[name])
    torch.empty(30 << 20, dtype=torch.uint8, device="cuda")
    found["peak"] = torch.cuda.max_memory_allocated()
    torch.cuda.reset_peak_memory_stats()  # the table has the peak from before that, too
    Path(sys.argv[1], f"{rank}.json").write_text(json.dumps(found))
    leave_group()


if __name__ == "__main__":
    main()
