"""Loud faults: each ends in an error. Run all, or one: --case NAME [--fixed]."""

import argparse
import os
import socket
import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.nn as nn
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.checkpoint import checkpoint

from ddp_course import gallery

X = torch.ones(4, 6)


def wrap(model, group, **kwargs):
    return DDP(model, process_group=group, **kwargs)


class Branches(nn.Module):
    """Two layers; `use` says which take part."""

    def __init__(self, use="both"):
        super().__init__()
        self.a, self.b, self.use = nn.Linear(6, 2), nn.Linear(6, 2), use

    def forward(self, x):
        if self.use == "two outputs":
            return self.a(x), self.b(x)
        return self.a(x) + self.b(x) if self.use == "both" else self.a(x)


def unused_parameter(me, fixed, group):
    ddp = wrap(Branches("a"), group, find_unused_parameters=fixed)
    for _ in range(2):
        ddp(X).sum().backward()


def output_misses_the_loss(me, fixed, group):
    ddp = wrap(Branches("two outputs"), group)
    for _ in range(2):
        first, second = ddp(X)
        loss = first.sum() + 0 * second.sum() if fixed else first.sum()
        loss.backward()


def module_prefix(me, fixed, group):
    ddp = wrap(Branches(), group)
    saved = ddp.module.state_dict() if fixed else ddp.state_dict()
    Branches().load_state_dict(saved)


def settings_in_the_checkpoint(me, fixed, group):
    settings = argparse.Namespace(lr=0.1)
    with tempfile.TemporaryFile() as file:
        torch.save({"args": vars(settings) if fixed else settings}, file)
        file.seek(0)
        torch.load(file, weights_only=True)


def ready_twice(me, fixed, group):
    class Checkpointed(Branches):
        def forward(self, x):
            return checkpoint(super().forward, x, use_reentrant=not fixed)

    ddp = wrap(Checkpointed("a"), group, find_unused_parameters=True)
    ddp(X.clone().requires_grad_()).sum().backward()


def more_parameters_on_one_rank(me, fixed, group):
    layers = 2 if fixed else 2 + me.rank
    wrap(nn.Sequential(*[nn.Linear(6, 6) for _ in range(layers)]), group)


def other_shape_on_one_rank(me, fixed, group):
    wrap(nn.Linear(6, 2 if fixed else 2 + me.rank), group)


def lazy_layer(me, fixed, group):
    model = nn.LazyLinear(2)
    if fixed:
        model(X)  # now it knows its shape
    wrap(model, group)


def everything_frozen(me, fixed, group):
    model = Branches().requires_grad_(False)
    if fixed:
        model.b.requires_grad_(True)
    wrap(model, group)


def local_rank_argument(me, fixed, group):
    class Parser(argparse.ArgumentParser):
        def error(self, message):  # argparse prints the message and exits without it
            raise SystemExit(message)

    parser = Parser()
    if not fixed:  # torch.distributed.launch passed --local-rank, torchrun doesn't
        parser.add_argument("--local-rank", type=int, required=True)
    args = parser.parse_args([])
    return {"local_rank": int(os.environ["LOCAL_RANK"]) if fixed else args.local_rank}


def sync_batchnorm_on_cpu(me, fixed, group):
    model = nn.BatchNorm1d(6)
    model = model if fixed else nn.SyncBatchNorm.convert_sync_batchnorm(model)
    wrap(model, group)(X)  # fixed: plain BatchNorm; by hand over the ranks in lesson 08


def mean_of_integers(me, fixed, group):
    count = torch.tensor([3 + me.rank])
    dist.all_reduce(count)
    if fixed:
        count = count / me.world_size
    else:
        count /= me.world_size
    return {"mean": count.tolist()}


def seconds_as_timeout(me, fixed, group):
    group = dist.new_group(timeout=timedelta(seconds=30) if fixed else 30)
    dist.destroy_process_group(group)


def port_taken(me, fixed, group):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = 0 if fixed else taken.getsockname()[1]  # 0: any that is free
        dist.TCPStore("127.0.0.1", port, is_master=True, wait_for_workers=False)


def too_few_ranks(me, fixed, group):
    """torchrun was told of one rank more than will ever start."""
    expected = 1 if fixed else 2
    wait = timedelta(seconds=1)
    dist.TCPStore("127.0.0.1", 0, expected, is_master=True, timeout=wait)


def wrong_interface(me, fixed, group):
    loopback = next(name for _, name in socket.if_nameindex() if name in ("lo", "lo0"))
    os.environ["GLOO_SOCKET_IFNAME"] = loopback if fixed else "eth-nowhere"
    try:
        dist.destroy_process_group(dist.new_group())
    finally:
        del os.environ["GLOO_SOCKET_IFNAME"]


def other_device(me, fixed, group):
    labels = torch.zeros(4, 2, device="cpu" if fixed else "meta")  # meta: a device without memory
    (wrap(Branches(), group)(X) - labels).sum().backward()


CASES = [
    unused_parameter, output_misses_the_loss, ready_twice, module_prefix,
    settings_in_the_checkpoint, more_parameters_on_one_rank, other_shape_on_one_rank, lazy_layer,
    everything_frozen, local_rank_argument, sync_batchnorm_on_cpu, mean_of_integers,
    seconds_as_timeout, port_taken, too_few_ranks, wrong_interface, other_device,
]  # fmt: skip

if __name__ == "__main__":
    os.environ["DDP_COURSE_DEVICE"] = "cpu"
    gallery.main("12_loud", {case.__name__: case for case in CASES})
