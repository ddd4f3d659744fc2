"""Checks of lesson 02's exercises: the right tensors, in few enough rounds, by the right calls."""

import inspect
import math
from collections import Counter
from contextlib import contextmanager
from itertools import count

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

VERBS = ("all_gather", "all_reduce", "all_to_all", "barrier", "batch_isend", "broadcast", "gather")
VERBS += ("irecv", "isend", "monitored_barrier", "recv", "reduce", "scatter", "send")
COMMUNICATE = [n for n in dir(dist) if n.startswith(VERBS) and callable(getattr(dist, n))]

_block = count()  # all ranks watch the same blocks, so they agree on its number


class Handle:
    """The Work of an asynchronous call; it leaves the list `still_open` when somebody waits."""

    def __init__(self, work, still_open):
        self.work, self.open = work, still_open
        still_open.append(self)

    def wait(self, *args):
        self._close()
        return self.work.wait(*args)

    def get_future(self):
        self._close()
        return self.work.get_future()

    def _close(self):
        if self in self.open:
            self.open.remove(self)

    def __getattr__(self, name):
        return getattr(self.work, name)


def agree(me, right, hint):
    """Fail on all ranks if it is wrong on one: nobody is left waiting, and all say the same."""
    told = [None] * me.world_size
    dist.all_gather_object(told, None if right else hint)
    wrong = [text for text in told if text]
    assert not wrong, wrong[0]


def arguments(function, args, kwargs):
    """{name: value} of a call, however it was written."""
    return inspect.signature(function).bind(*args, **kwargs).arguments


class Watched:
    """What a rank called, and in which round the last message reached it.

    Attributes
    ----------
    calls : Counter
        By name, of every function of ``torch.distributed`` that communicates.
    open : list
        Asynchronous calls that nobody has waited for.
    round : int
        A message leaves one round later than the newest that its sender had received or sent
        before (Lamport's clock): 0 on a rank that neither sent nor received.
    """

    def __init__(self, me):
        self.me, self.calls, self.round, self.messages = me, Counter(), 0, Counter()
        self.open = []
        # The clock of a message travels beside it, through the store that the ranks met at.
        self.store = dist.PrefixStore(f"rounds {next(_block)}", c10d._get_default_store())

    def sent(self, dst):
        self.round += 1
        self.store.set(self._key(self.me.rank, dst), str(self.round))

    def received(self, src):
        key = self._key(src, self.me.rank)
        if self.store.check([key]):
            self.round = max(self.round, int(self.store.get(key)))

    def _key(self, src, dst):
        self.messages[src, dst] += 1
        return f"{src} to {dst}, {self.messages[src, dst]}"

    def watch(self, name):
        real = getattr(dist, name)

        def watched(*args, **kwargs):
            self.calls[name] += 1
            given = arguments(real, args, kwargs)
            if name in ("send", "isend"):
                self.sent(given.get("dst", given.get("group_dst")))
            out = real(*args, **kwargs)
            if given.get("async_op"):
                out = Handle(out, self.open)
            if name == "recv":
                self.received(out)  # recv returns the rank that it heard
            return out

        return watched


@contextmanager
def watched(me, attempt):
    """Watch this rank's calls of ``torch.distributed`` in a block."""
    seen, real = Watched(me), {name: getattr(dist, name) for name in COMMUNICATE}
    imported = {k: v for k, v in attempt.__globals__.items() if v in real.values()}
    for name in COMMUNICATE:
        setattr(dist, name, seen.watch(name))
    for k, v in imported.items():  # from torch.distributed import send
        attempt.__globals__[k] = getattr(dist, v.__name__)
    try:
        yield seen
    finally:
        for name, function in real.items():
            setattr(dist, name, function)
        attempt.__globals__.update(imported)


def refuse_other_calls(me, seen, allowed):
    others = sorted(set(seen.calls) - set(allowed))
    called = f"dist.{others[0]} was called: use {' and '.join(allowed)} only" if others else ""
    agree(me, not others, called)


def check_broadcast(me, attempt, size):
    """Is `attempt` a broadcast from rank 0, by send and recv, in log2(N) rounds?"""
    mine = torch.arange(size, dtype=torch.float32, device=me.device) + 100 * me.rank
    expected = mine.clone()
    dist.broadcast(expected, src=0)
    with watched(me, attempt) as seen:
        attempt(mine, me.rank, me.world_size)
    refuse_other_calls(me, seen, ("send", "recv"))
    agree(
        me,
        torch.equal(mine, expected),
        f"rank {me.rank} holds {mine[:3].tolist()}..., rank 0 sent {expected[:3].tolist()}...: "
        "who sends to this rank, and in which round?",
    )
    heard = me.rank == 0 or seen.calls["recv"]
    agree(me, heard, "some rank has no dist.recv: only messages bring rank 0's tensor")
    rounds = math.ceil(math.log2(me.world_size))
    agree(
        me,
        seen.round <= rounds,
        f"the last message of rank {me.rank} came or went in round {seen.round}, and {rounds} "
        f"rounds are enough for {me.world_size} ranks: "
        "in each round, let every rank that has the tensor send it on",
    )


def check_gather(me, attempt, size):
    """Does `attempt` give every rank the list of all tensors, by one broadcast from each?"""
    mine = torch.arange(size, dtype=torch.float32, device=me.device) + 100 * me.rank
    before = mine.clone()
    expected = [torch.empty_like(mine) for _ in range(me.world_size)]
    dist.all_gather(expected, mine)
    with watched(me, attempt) as seen:
        got = attempt(mine, me.rank, me.world_size)
    refuse_other_calls(me, seen, ("broadcast",))
    agree(me, not seen.open, "a broadcast with async_op=True that nobody waited for")
    a_list = isinstance(got, (list, tuple)) and len(got) == me.world_size
    agree(me, a_list, f"return a list of {me.world_size} tensors, one a rank")
    agree(me, all(isinstance(g, torch.Tensor) for g in got), "return tensors")
    for src, (g, e) in enumerate(zip(got, expected)):
        agree(
            me,
            torch.equal(g, e),
            f"rank {me.rank} has {g[:3].tolist()}... from rank {src}, not {e[:3].tolist()}...: "
            "does every rank broadcast its own copy, and into memory of its own?",
        )
    agree(me, torch.equal(mine, before), "the input was overwritten: broadcast into a clone")
    called = seen.calls["broadcast"]
    enough = f"{called} broadcasts: {me.world_size} are enough, one from each rank"
    agree(me, called == me.world_size, enough)
