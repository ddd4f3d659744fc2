"""Lesson 02: answers to scripts/02_exercises.py, run by tests/workers/exercises.py."""

import torch
import torch.distributed as dist

from wrong_answers import right, wrong


@wrong("tree_broadcast", "a tree needs at most 2")
def star(tensor, rank, world_size):
    if rank == 0:
        for to in range(1, world_size):
            dist.send(tensor, to)
    else:
        dist.recv(tensor, 0)


@wrong("tree_broadcast", "who sends to this rank")
def nothing(tensor, rank, world_size):
    pass


@wrong("tree_broadcast", "who sends to this rank")
def copy_returned(tensor, rank, world_size):
    return tensor.clone()


@wrong("tree_broadcast", "who sends to this rank")
def received_into_a_copy(tensor, rank, world_size):
    if rank < 2:
        dist.send(tensor, rank + 2)
    else:
        dist.recv(tensor.clone(), rank - 2)


@right("tree_broadcast")
def halves(tensor, rank, world_size):
    low, high = 0, world_size  # rank low has it, for the ranks below high
    while high - low > 1:
        middle = (low + high + 1) // 2
        if rank == low:
            dist.send(tensor, middle)
        elif rank == middle:
            dist.recv(tensor, low)
        low, high = (low, middle) if rank < middle else (middle, high)


@wrong("gather_by_broadcast", "into memory of its own")
def not_cloned(tensor, rank, world_size):
    out = []
    for src in range(world_size):
        dist.broadcast(tensor, src)
        out.append(tensor)
    return out


@wrong("gather_by_broadcast", "does every rank broadcast its own copy")
def always_from_0(tensor, rank, world_size):
    out = [tensor.clone() for _ in range(world_size)]
    for copy in out:
        dist.broadcast(copy, 0)
    return out


@wrong("gather_by_broadcast", "return a list of 4 tensors")
def one_tensor(tensor, rank, world_size):
    return tensor


@wrong("gather_by_broadcast", "the input was overwritten")
def copied_too_late(tensor, rank, world_size):
    own, out = tensor.clone(), []
    for src in range(world_size):
        if src == rank:
            tensor.copy_(own)
        dist.broadcast(tensor, src)
        out.append(tensor.clone())
    return out


@right("gather_by_broadcast")
def rows(tensor, rank, world_size):
    table = torch.empty(world_size, *tensor.shape, device=tensor.device)
    table[rank] = tensor
    for src in range(world_size):
        dist.broadcast(table[src], src)
    return list(table)
