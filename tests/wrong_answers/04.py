"""Lesson 04: wrong answers, each with what the check must say, and other right ones."""

import itertools
import math
import random

import torch

from wrong_answers import right, wrong


def shuffled(n, epoch, seed, shuffle):
    if not shuffle:
        return list(range(n))
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch)).tolist()


def length(n, world_size, drop_last):
    return (n // world_size if drop_last else math.ceil(n / world_size)) * world_size


@wrong("my_sampler", "Without shuffling the first world_size samples go to different ranks")
def in_blocks(n, world_size, rank, epoch, seed, shuffle, drop_last):
    order, total = shuffled(n, epoch, seed, shuffle), length(n, world_size, drop_last)
    order = (order * world_size)[:total]
    share = total // world_size
    return order[rank * share : (rank + 1) * share]


@wrong("my_sampler", "How many does each rank get")
def never_padded(n, world_size, rank, epoch, seed, shuffle, drop_last):
    return shuffled(n, epoch, seed, shuffle)[rank::world_size]


@wrong("my_sampler", "How many does each rank get")
def always_padded(n, world_size, rank, epoch, seed, shuffle, drop_last):
    order = shuffled(n, epoch, seed, shuffle) * world_size
    return order[: length(n, world_size, False)][rank::world_size]


@wrong("my_sampler", "what if there are fewer samples than ranks?")
def padded_once(n, world_size, rank, epoch, seed, shuffle, drop_last):
    order, total = shuffled(n, epoch, seed, shuffle), length(n, world_size, drop_last)
    return (order + order)[:total][rank::world_size]


@wrong("my_sampler", "Which seed has the generator in this epoch?")
def epoch_forgotten(n, world_size, rank, epoch, seed, shuffle, drop_last):
    order, total = shuffled(n, 0, seed, shuffle), length(n, world_size, drop_last)
    return (order * world_size)[:total][rank::world_size]


@wrong("my_sampler", "Shuffle before you deal")
def shuffled_after(n, world_size, rank, epoch, seed, shuffle, drop_last):
    mine = (list(range(n)) * world_size)[: length(n, world_size, drop_last)][rank::world_size]
    if shuffle:
        g = torch.Generator().manual_seed(seed + epoch)
        mine = [mine[i] for i in torch.randperm(len(mine), generator=g).tolist()]
    return mine


@wrong("my_sampler", "Shuffle before you deal")
def by_another_generator(n, world_size, rank, epoch, seed, shuffle, drop_last):
    order = list(range(n))
    if shuffle:
        random.Random(seed + epoch).shuffle(order)
    return (order * world_size)[: length(n, world_size, drop_last)][rank::world_size]


@wrong("my_sampler", "Return a list of numbers")
def nothing(n, world_size, rank, epoch, seed, shuffle, drop_last):
    pass


@right("my_sampler")
def with_islice(n, world_size, rank, epoch, seed, shuffle, drop_last):
    order = itertools.cycle(shuffled(n, epoch, seed, shuffle))
    total = length(n, world_size, drop_last)
    return list(itertools.islice(order, rank, total, world_size)) if total else []


@right("my_sampler")
def as_a_tensor(n, world_size, rank, epoch, seed, shuffle, drop_last):
    order = torch.arange(n)
    if shuffle:
        order = torch.randperm(n, generator=torch.Generator().manual_seed(seed + epoch))
    order = order.repeat(world_size)[: length(n, world_size, drop_last)]
    return order[rank::world_size]


@right("my_sampler")
def by_position(n, world_size, rank, epoch, seed, shuffle, drop_last):
    order = shuffled(n, epoch, seed, shuffle)
    positions = range(rank, length(n, world_size, drop_last), world_size)
    return tuple(order[p % n] for p in positions)


@right("my_sampler")
def as_a_matrix(n, world_size, rank, epoch, seed, shuffle, drop_last):
    order = torch.tensor(shuffled(n, epoch, seed, shuffle) * world_size)
    return order[: length(n, world_size, drop_last)].view(-1, world_size)[:, rank].tolist()


@right("my_sampler")
def padded_in_a_loop(n, world_size, rank, epoch, seed, shuffle, drop_last):
    order = shuffled(n, epoch, seed, shuffle)
    if drop_last:
        while len(order) % world_size:
            order.pop()
    first = list(order)
    while len(order) % world_size:
        order += first[: world_size - len(order) % world_size]
    return [x for i, x in enumerate(order) if i % world_size == rank]


@wrong("my_records", "take one record of every")
def by_rank_only(records, rank, world_size, worker, workers):
    for i, record in enumerate(records):
        if i % world_size == rank:
            yield record


@wrong("my_records", "take one record of every")
def by_worker_only(records, rank, world_size, worker, workers):
    return itertools.islice(records, worker, None, workers)


@wrong("my_records", "an endless stream has none")
def read_to_the_end(records, rank, world_size, worker, workers):
    return list(records)[rank * workers + worker :: world_size * workers]


@wrong("my_records", "an endless stream has none")
def collected(records, rank, world_size, worker, workers):
    mine = []
    for i, record in enumerate(records):
        if i % (world_size * workers) == rank * workers + worker:
            mine.append(record)
    return mine


@wrong("my_records", "take one record of every")
def everything_on_the_first(records, rank, world_size, worker, workers):
    return records if rank == worker == 0 else []


@wrong("my_records", "of a stream of")
def numbers_added(records, rank, world_size, worker, workers):
    return itertools.islice(records, rank + worker, None, world_size * workers)


@wrong("my_records", "an endless stream has none")
def skipped_twice(records, rank, world_size, worker, workers):
    own = itertools.islice(records, rank, None, world_size * workers)
    return itertools.islice(own, worker, None, world_size * workers)


@wrong("my_records", "take one record of every")
def by_value(records, rank, world_size, worker, workers):
    for record in records:
        if record % (world_size * workers) == rank * workers + worker:
            yield record


@wrong("my_records", "of a stream of")
def the_tail_is_lost(records, rank, world_size, worker, workers):
    for block in zip(*[iter(records)] * (world_size * workers)):
        yield block[rank * workers + worker]


@right("my_records")
def with_islice_once(records, rank, world_size, worker, workers):
    return itertools.islice(records, rank * workers + worker, None, world_size * workers)


@right("my_records")
def ranks_first(records, rank, world_size, worker, workers):
    return itertools.islice(records, worker * world_size + rank, None, world_size * workers)


@right("my_records")
def in_two_steps(records, rank, world_size, worker, workers):
    of_rank = itertools.islice(records, rank, None, world_size)
    yield from itertools.islice(of_rank, worker, None, workers)


@right("my_records")
def counting_down(records, rank, world_size, worker, workers):
    wait = rank * workers + worker
    for record in records:
        if wait == 0:
            yield record
            wait = world_size * workers
        wait -= 1


@right("my_records")
def as_an_expression(records, rank, world_size, worker, workers):
    turn = itertools.cycle(range(world_size * workers))
    return (r for r, t in zip(records, turn) if t == rank * workers + worker)


@wrong("which_mistake", "Return one of the five words")
def two_words(ledger, samples):
    return "wrong" if ledger[0] == ledger[1] else "fine"


@wrong("which_mistake", "Compare the two epochs of one rank")
def never_repeats(ledger, samples):
    answer = the_right_one(ledger, samples)
    return "right" if answer == "set_epoch forgotten" else answer


@wrong("which_mistake", "a double may be padding")
def padding_is_an_overlap(ledger, samples):
    answer = the_right_one(ledger, samples)
    overlap = any(set(a) & set(b) for a, b in ledger)
    return "different orders" if answer == "right" and overlap else answer


@wrong("which_mistake", "How many different samples does one rank draw")
def epochs_first(ledger, samples):
    return "set_epoch forgotten" if ledger[0] == ledger[1] else the_right_one(ledger, samples)


@wrong("which_mistake", "Is every sample drawn by somebody")
def nothing_is_missing(ledger, samples):
    answer = the_right_one(ledger, samples)
    return "right" if answer == "different orders" else answer


@wrong("which_mistake", "Compare the two ranks")
def ranks_not_compared(ledger, samples):
    answer = the_right_one(ledger, samples)
    return "different orders" if answer == "same draws" else answer


@wrong("which_mistake", "How many different samples does one rank draw")
def order_ignored(ledger, samples):
    if all(set(a) == set(b) for a, b in ledger):
        return "same draws"
    return the_right_one(ledger, samples)


@right("which_mistake")
def the_right_one(ledger, samples):
    (a0, b0), (a1, b1) = ledger
    if a0 == b0 and a1 == b1:
        return "same draws"
    if all(len(set(x)) == samples for x in (a0, b0, a1, b1)):
        return "no sampler"
    if {*a0, *b0} != set(range(samples)) or {*a1, *b1} != set(range(samples)):
        return "different orders"
    return "set_epoch forgotten" if (a0, b0) == (a1, b1) else "right"


@right("which_mistake")
def from_the_back(ledger, samples):
    word = "right"
    if ledger[0] == ledger[1]:
        word = "set_epoch forgotten"
    if any(len(set(a + b)) < samples for a, b in ledger):
        word = "different orders"
    if all(sorted(a) == sorted(b) == list(range(samples)) for a, b in ledger):
        word = "no sampler"
    if all(a == b for a, b in ledger):
        word = "same draws"
    return word


@right("which_mistake")
def with_tensors(ledger, samples):
    t = torch.tensor(ledger)
    if torch.equal(t[:, 0], t[:, 1]):
        return "same draws"
    if all(len(rank.unique()) == samples for epoch in t for rank in epoch):
        return "no sampler"
    seen = [len(epoch.unique()) for epoch in t]
    if min(seen) < samples:
        return "different orders"
    return "set_epoch forgotten" if torch.equal(t[0], t[1]) else "right"


@right("which_mistake")
def by_a_table(ledger, samples):
    rules = {
        "same draws": all(a == b for a, b in ledger),
        "no sampler": all(len(set(a)) == samples for a, _ in ledger),
        "different orders": min(len(set(a) | set(b)) for a, b in ledger) < samples,
        "set_epoch forgotten": ledger[0] == ledger[1],
    }
    return next((word for word, holds in rules.items() if holds), "right")


@right("which_mistake")
def by_matching(ledger, samples):
    alike = all(a == b for a, b in ledger)
    whole = all(len(set(r)) == samples for e in ledger for r in e)
    gaps = any(i not in a + b for a, b in ledger for i in range(samples))
    match alike, whole, gaps:
        case True, _, _:
            return "same draws"
        case _, True, _:
            return "no sampler"
        case _, _, True:
            return "different orders"
    return ["right", "set_epoch forgotten"][ledger[0] == ledger[1]]
