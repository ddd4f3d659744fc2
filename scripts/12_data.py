"""Silent: data and metrics, with what the audit says or the harm. --case NAME [--fixed]: one."""

import os
from importlib import import_module

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils import data as tud
from torch.utils.data import DataLoader, DistributedSampler

from ddp_course import gallery
from ddp_course.tools import audit
from ddp_course.tools.collectives import gather

drift = import_module("12_drift")
N, EPOCHS = 48, 3


def samples(n=N):
    g = torch.Generator().manual_seed(0)
    return tud.TensorDataset(torch.randn(n, 6, generator=g), torch.randn(n, 2, generator=g))


def split(me, dataset, **kwargs):
    kwargs = {"num_replicas": me.world_size, "rank": me.rank, **kwargs}
    return DataLoader(dataset, 4, sampler=DistributedSampler(dataset, **kwargs))


def train(me, group, loader, validation=None, set_epoch=True):
    ddp = DDP(drift.build(), process_group=group)
    optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
    torch.manual_seed(me.rank)
    with audit.watch(ddp, optimizer, loader, validation) as report:
        for epoch in range(EPOCHS):
            if set_epoch and isinstance(loader.sampler, DistributedSampler):
                loader.sampler.set_epoch(epoch)
            for x, y in loader:
                optimizer.zero_grad()
                drift.loss_of(ddp, x, y).backward()
                optimizer.step()
            for _ in validation or ():
                pass
    return {"audit": gallery.answers(report)}


def no_sampler(me, fixed, group):
    data = samples()
    loader = split(me, data) if fixed else DataLoader(data, 4, shuffle=True)
    return train(me, group, loader)


def own_sampler_seed(me, fixed, group):
    return train(me, group, split(me, samples(), seed=0 if fixed else me.rank))


def set_epoch_forgotten(me, fixed, group):
    return train(me, group, split(me, samples()), set_epoch=fixed)


def replicas_of_one_node(me, fixed, group):
    """num_replicas from this node's device count: here a node has one device."""
    n, rank = (me.world_size, me.rank) if fixed else (1, 0)
    return train(me, group, split(me, samples(), num_replicas=n, rank=rank))


def stream_given_whole(me, fixed, group):
    data = samples(24)

    class Stream(tud.IterableDataset):
        def __iter__(self):
            first, step = (me.rank, me.world_size) if fixed else (0, 1)
            return (data[i] for i in range(first, len(data), step))

    return train(me, group, DataLoader(Stream(), 4))


def own_split_seed(me, fixed, group):
    g = torch.Generator().manual_seed(0 if fixed else me.rank)
    training, validation = tud.random_split(samples(), [40, 8], generator=g)
    return train(me, group, split(me, training), DataLoader(validation, 4))


def other_order_of_files(me, fixed, group):
    """os.listdir promises no order: each rank has its own list of the same files."""
    x, y = samples().tensors
    g = torch.Generator().manual_seed(me.rank)
    order = torch.arange(N) if fixed else torch.randperm(N, generator=g)
    return train(me, group, split(me, tud.TensorDataset(x[order], y[order])))


def same_augmentation(me, fixed, group):
    """Harm: the share of noise that two ranks draw alike."""
    torch.manual_seed(5 + me.rank if fixed else 5)
    noise = torch.randn(100)
    first = noise.clone()
    dist.broadcast(first, 0, group=group)
    alike = torch.tensor(float((noise == first).float().mean()) if me.rank else 0.0)
    dist.all_reduce(alike, dist.ReduceOp.MAX, group=group)
    return {"harm": alike.item()}


def resumed_one_epoch_early(me, fixed, group):
    """In play: the checkpoint holds the epoch that is through. Harm: epochs made twice."""
    made, saved = [], 0
    for run in ("killed after two epochs", "resumed"):
        start = saved + 1 if fixed and run == "resumed" else saved
        for epoch in range(start, 2 if run.startswith("killed") else EPOCHS):
            made.append(epoch)
            saved = epoch
    return {"harm": len(made) - len(set(made))}


# --- metrics: 13 validation samples, a model that is right on some


def predictions():
    g = torch.Generator().manual_seed(3)
    labels = torch.randint(0, 4, (13,), generator=g)
    wrong = torch.arange(13) % 4 == 1
    return torch.where(wrong, (labels + 1) % 4, labels), labels


def mine_of(me, padded=False):
    """This rank's samples: the sampler's, padded to equal numbers, or every N-th."""
    if padded:
        return list(DistributedSampler(range(13), me.world_size, me.rank, shuffle=False))
    return list(range(me.rank, 13, me.world_size))


def right_of(me, padded=False):
    """How many of this rank's samples the model gets right, of how many."""
    predicted, labels = predictions()
    mine = mine_of(me, padded)
    return (predicted[mine] == labels[mine]).sum().item(), len(mine)


def accuracy_from(right, seen, group):
    counts = torch.tensor([right, seen]).double()
    dist.all_reduce(counts, group=group)
    return (counts[0] / counts[1]).item()


def error_of(accuracy):
    predicted, labels = predictions()
    return {"harm": abs(accuracy - (predicted == labels).double().mean().item())}


def padding_in_evaluation(me, fixed, group):
    right, seen = right_of(me, padded=not fixed)
    return error_of(accuracy_from(right, seen, group))


def mean_of_means(me, fixed, group):
    right, seen = right_of(me)
    if fixed:
        return error_of(accuracy_from(right, seen, group))
    return error_of(accuracy_from(right / seen, 1, group))


def metric_of_rank_0(me, fixed, group):
    counts = torch.tensor([*right_of(me)]).double()
    if fixed:
        dist.all_reduce(counts, group=group)
    else:
        dist.broadcast(counts, 0, group=group)  # what rank 0 prints
    return error_of((counts[0] / counts[1]).item())


def gathered_out_of_order(me, fixed, group):
    """Rank after rank is not the order of the data set."""
    (predicted, labels), mine = predictions(), mine_of(me)
    parts = gather([mine, predicted[mine].tolist()])
    together = torch.tensor([p for _, part in parts for p in part])
    if fixed:
        place = torch.tensor([i for indices, _ in parts for i in indices])
        together = together[place.argsort()]
    return error_of((together == labels).double().mean().item())


CASES = [
    no_sampler, own_sampler_seed, set_epoch_forgotten, replicas_of_one_node, stream_given_whole,
    own_split_seed, other_order_of_files, same_augmentation, resumed_one_epoch_early,
    padding_in_evaluation, mean_of_means, metric_of_rank_0, gathered_out_of_order,
]  # fmt: skip

if __name__ == "__main__":
    os.environ["DDP_COURSE_DEVICE"] = "cpu"
    gallery.main("12_data", {case.__name__: case for case in CASES})
