"""Lesson 02: wrong answers, each with what the check must say, and other right ones.

Those to scripts/02_exercises.py are run by tests/workers/exercises.py.
"""

from collections import Counter
from itertools import zip_longest

import torch
import torch.distributed as dist
from torch.distributed import recv, send

from wrong_answers import right, wrong


@wrong("tree_broadcast", "2 rounds are enough for 4 ranks")
def star(tensor, rank, world_size):
    if rank == 0:
        for to in range(1, world_size):
            dist.send(tensor, to)
    else:
        dist.recv(tensor, 0)


@wrong("tree_broadcast", "2 rounds are enough for 4 ranks")
def chain(tensor, rank, world_size):
    if rank > 0:
        dist.recv(tensor, rank - 1)
    if rank + 1 < world_size:
        dist.send(tensor, rank + 1)


@wrong("tree_broadcast", "dist.isend was called: use send and recv only")
def star_at_once(tensor, rank, world_size):
    if rank == 0:
        for work in [dist.isend(tensor, to) for to in range(1, world_size)]:
            work.wait()
    else:
        dist.recv(tensor, 0)


@wrong("tree_broadcast", "dist.broadcast was called: use send and recv only")
def torch_s_own(tensor, rank, world_size):
    dist.broadcast(tensor, 0)


@wrong("tree_broadcast", "only messages bring rank 0's tensor")
def computed(tensor, rank, world_size):
    tensor -= 100 * rank


@wrong("tree_broadcast", "2 rounds are enough for 4 ranks")
def star_by_another_name(tensor, rank, world_size):
    for to in range(1, world_size):
        if rank == 0:
            send(tensor, to)
        elif rank == to:
            recv(tensor, 0)


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


@right("tree_broadcast")
def by_bits(tensor, rank, world_size):
    for bit in range((world_size - 1).bit_length()):
        step = 1 << bit
        if rank < step and rank + step < world_size:
            dist.send(tensor, dst=rank + step)
        if step <= rank < 2 * step:
            dist.recv(tensor, src=rank - step)


@right("tree_broadcast")
def from_anybody(tensor, rank, world_size):
    if rank:
        dist.recv(tensor)
    step = 1 << rank.bit_length()
    while rank + step < world_size:
        dist.send(tensor, rank + step)
        step *= 2


@right("tree_broadcast")
def as_a_list_of_edges(tensor, rank, world_size):
    edges, have = [], [0]
    while len(have) < world_size:
        new = list(range(len(have), min(2 * len(have), world_size)))
        edges += list(zip(have, new))
        have += new
    for src, dst in edges:
        if rank == src:
            dist.send(tensor, dst)
        if rank == dst:
            dist.recv(tensor, src)


@right("tree_broadcast")
def recursively(tensor, rank, world_size):
    def spread(first, last):
        if last - first < 2:
            return
        middle = (first + last) // 2
        if rank == first:
            dist.send(tensor, middle)
        elif rank == middle:
            dist.recv(tensor, first)
        spread(first, middle)
        spread(middle, last)

    spread(0, world_size)


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


@wrong("gather_by_broadcast", "dist.all_gather was called: use broadcast only")
def by_all_gather(tensor, rank, world_size):
    out = [torch.empty_like(tensor) for _ in range(world_size)]
    dist.all_gather(out, tensor)
    return out


@wrong("gather_by_broadcast", "0 broadcasts: 4 are enough")
def made_up(tensor, rank, world_size):
    return [tensor + 100 * (r - rank) for r in range(world_size)]


@wrong("gather_by_broadcast", "that nobody waited for")
def not_waited_for(tensor, rank, world_size):
    out = [tensor.clone() for _ in range(world_size)]
    for src, copy in enumerate(out):
        dist.broadcast(copy, src, async_op=True)
    return out


@wrong("gather_by_broadcast", "8 broadcasts: 4 are enough")
def twice(tensor, rank, world_size):
    out = []
    for src in range(world_size):
        copy = tensor.clone()
        dist.broadcast(copy, src)
        dist.broadcast(copy, src)
        out.append(copy)
    return out


@right("gather_by_broadcast")
def rows(tensor, rank, world_size):
    table = torch.empty(world_size, *tensor.shape, device=tensor.device)
    table[rank] = tensor
    for src in range(world_size):
        dist.broadcast(table[src], src)
    return list(table)


@right("gather_by_broadcast")
def as_a_tuple(tensor, rank, world_size):
    copies = tuple(tensor.clone() for _ in range(world_size))
    for src, copy in enumerate(copies):
        dist.broadcast(copy, src=src)
    return copies


@right("gather_by_broadcast")
def all_at_once(tensor, rank, world_size):
    out = [tensor if src == rank else torch.zeros_like(tensor) for src in range(world_size)]
    for work in [dist.broadcast(t, src, async_op=True) for src, t in enumerate(out)]:
        work.wait()
    return out


@right("gather_by_broadcast")
def from_the_last_on(tensor, rank, world_size):
    out = {}
    for src in reversed(range(world_size)):
        out[src] = tensor.detach().clone()
        dist.broadcast(out[src], src)
    return [out[src] for src in range(world_size)]


@right("gather_by_broadcast")
def by_views(tensor, rank, world_size):
    flat = tensor.repeat(world_size)
    pieces = list(flat.split(len(tensor)))
    for src in range(world_size):
        dist.broadcast(pieces[src], src)
    return pieces


def columns(calls):
    return list(zip_longest(*calls))


@wrong("out_of_step", "Return two numbers")
def only_the_rank(calls):
    lengths = [len(c) for c in calls]
    return min(range(len(calls)), key=lengths.__getitem__)


@wrong("out_of_step", "Go through the places from the left")
def by_length(calls):
    lengths = [len(c) for c in calls]
    rank = next((r for r, n in enumerate(lengths) if lengths.count(n) == 1), 0)
    return lengths[rank], rank


@wrong("out_of_step", "It need not be rank 0")
def against_rank_0(calls):
    for place, here in enumerate(columns(calls)):
        for rank, name in enumerate(here):
            if name != here[0]:
                return place, rank


@wrong("out_of_step", "Go through the places from the left")
def short_zip(calls):
    for place, here in enumerate(zip(*calls)):
        for rank, name in enumerate(here):
            if here.count(name) == 1:
                return place, rank
    return 0, 0


@wrong("out_of_step", "It need not be rank 0")
def whole_lists(calls):
    rank = next((r for r, c in enumerate(calls) if calls.count(c) == 1), 0)
    return by_majority(calls)[0], rank


@right("out_of_step")
def that_uses_up_the_lists(calls):
    place = 0
    while True:
        here = [c.pop(0) if c else None for c in calls]
        for rank, name in enumerate(here):
            if here.count(name) == 1:
                return place, rank
        place += 1


@wrong("out_of_step", "Go through the places from the left")
def the_last_place(calls):
    found = None
    for place, here in enumerate(columns(calls)):
        for rank, name in enumerate(here):
            if here.count(name) == 1:
                found = place, rank
    return found


@wrong("out_of_step", "Return two numbers")
def nothing_found(calls):
    pass


@wrong("out_of_step", "Go through the places from the left")
def counted_from_one(calls):
    place, rank = by_majority(calls)
    return place + 1, rank


@right("out_of_step")
def by_majority(calls):
    for place, here in enumerate(columns(calls)):
        usual, _ = Counter(here).most_common(1)[0]
        for rank, name in enumerate(here):
            if name != usual:
                return place, rank


@right("out_of_step")
def as_a_list(calls):
    return list(by_majority(calls))


@right("out_of_step")
def as_a_tensor(calls):
    return torch.tensor(by_majority(calls))


@right("out_of_step")
def with_padding(calls):
    longest = max(len(c) for c in calls)
    padded = [list(c) + [""] * (longest - len(c)) for c in calls]
    place = 0
    while len({row[place] for row in padded}) == 1:
        place += 1
    names = [row[place] for row in padded]
    return place, min(range(len(names)), key=lambda r: names.count(names[r]))


@right("out_of_step")
def by_comparing_each_with_its_neighbours(calls):
    n = len(calls)
    for place in range(max(map(len, calls))):
        here = [c[place : place + 1] for c in calls]
        for rank in range(n):
            if here[rank] != here[rank - 1] and here[rank] != here[(rank + 1) % n]:
                return place, rank
