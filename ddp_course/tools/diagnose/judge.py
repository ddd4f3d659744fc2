"""Who did not arrive: judged from the states of the ranks (`report.RankState`), nothing else."""

from collections import Counter

P2P = {"send", "recv", "isend", "irecv", "batch_isend_irecv"}
JOINING = "init_process_group"


def who_is_missing(ranks):
    """Who did not arrive.

    Parameters
    ----------
    ranks : list of RankState

    Returns
    -------
    culprits : list of int
        Ranks; empty if it can't be told.
    why : str
    """
    for rule in (_twice, _joins, _left, _makes, _behind, disagreement, _elsewhere, _differs):
        found = rule(ranks)
        if found:
            return found
    unknown = next((s.unknown for s in ranks if s.unknown), "")
    if unknown:
        return [], f"all wait at the same line; {unknown}"
    return [], "all wait in the same collective: the network, or a rank on another node"


def named(call):
    """A collective in words: all_reduce of [[14]]."""
    return f"{call['op'].split(':')[-1]} of {call['sizes']}"


def ranks_named(numbers):
    """rank 1; ranks 0, 2."""
    numbers = sorted(numbers)
    return f"rank{'s' * (len(numbers) > 1)} {', '.join(map(str, numbers))}"


def unseen_ranks(ranks):
    """Numbers below the world size of which there is no state."""
    world = max((s.world_size or 0 for s in ranks), default=0)
    return sorted(set(range(world)) - {s.rank for s in ranks})


def _twice(ranks):
    """Two processes that run at once and take themselves for the same rank."""
    here = [s for s in ranks if s.status == "running"]
    for rank, n in Counter(s.rank for s in here).items():
        if n > 1:
            pids = ", ".join(str(s.pid) for s in here if s.rank == rank)
            return [rank], f"{n} processes take themselves for rank {rank} (pids {pids})"
    return None


def _joins(ranks):
    """Ranks that wait in init_process_group."""
    waiting = [s for s in ranks if s.call == JOINING]
    if not waiting:
        return None
    first, asks = waiting[0], {s.endpoint for s in waiting if s.endpoint}
    where = f" at {first.endpoint}" if first.endpoint else ""
    if len(asks) > 1:
        said = "; ".join(f"rank {s.rank} asks {s.endpoint}" for s in waiting)
        return [s.rank for s in waiting], f"they look for each other in different places: {said}"
    worlds = {s.world_size for s in waiting if s.world_size}
    if len(worlds) > 1:
        said = "; ".join(f"rank {s.rank}: {s.world_size}" for s in waiting)
        return [s.rank for s in waiting], f"they don't agree how many there are: {said}"
    unseen = unseen_ranks(ranks)
    if unseen:
        who = ranks_named(s.rank for s in waiting)
        waits = f"{who} wait{'s' * (len(waiting) == 1)} in {JOINING}{where}"
        return unseen, f"not seen here (not started, or on another node), and {waits}"
    if len(waiting) < len(ranks):
        return None  # the next rules tell where the others are
    waits = f"all wait in {JOINING}{where}"
    if first.attempt:
        waits += f", in attempt {first.attempt} after a restart"
    if first.attempt and first.torchruns_store:
        switch = "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"
        return [], f"{waits}: a known race for torchrun's own store; {switch}"
    return [], f"{waits}: is that address this machine, and free?"


def _left(ranks):
    # One that raised while it waited was left by another.
    gone = [s for s in ranks if s.status != "running" and not (s.status == "raised" and s.call)]
    if not gone or len(gone) == len(ranks):
        return None
    if not any(s.call for s in ranks if s not in gone):
        return None  # nobody waits for them
    first = next((s for s in gone if s.status == "raised"), gone[0])
    verb = {"ended": "ended", "killed": "died"}.get(first.status, f"raised {first.error}")
    return [s.rank for s in gone], f"{verb} while others still needed it"


def _makes(ranks):
    """Calls that every rank must make, whatever the counts say."""
    making = [s for s in ranks if s.call in ("new_group", JOINING, "DDP(...)")]
    if not making or len(making) == len(ranks):
        return None
    others = [s.rank for s in ranks if s not in making]
    call, where = making[0].call, making[0].endpoint
    asked = f" at {where}" if where else ""
    who = ranks_named(s.rank for s in making)
    why = f"did not come to {call}{asked} (it holds up {who}): every rank must call it"
    return others, why + _forked(s for s in ranks if s not in making)


def _behind(ranks):
    """The counts know, whatever the stacks look like.

    A rank that is behind may itself wait for a third, so the one who waits for nobody is named.
    """
    holds_up = {}  # waiting rank: (ranks that are behind it, why)
    for waiting in ranks:
        if not waiting.open:
            continue
        group, seq = waiting.open["group"], waiting.open["seq"]
        behind = {s.rank: s.counts[group] for s in ranks if group in s.counts}
        behind = {rank: called for rank, called in behind.items() if called < seq}
        if behind:
            called = ", ".join(map(str, sorted(set(behind.values()))))
            why = f"called {called} collectives, rank {waiting.rank} is in number {seq}"
            holds_up[waiting.rank] = (sorted(behind), f"{why} ({named(waiting.open)})")
    if not holds_up:
        return None
    for culprits, why in holds_up.values():
        if free := [rank for rank in culprits if rank not in holds_up]:
            return free, why
    culprits, why = next(iter(holds_up.values()))
    back = [rank for rank in culprits if rank in holds_up]
    others = "; ".join(f"rank {rank} waits for {ranks_named(holds_up[rank][0])}" for rank in back)
    return culprits, f"{why}, while {others}"


def disagreement(ranks):
    """The same number in the same group, but not the same collective."""
    for meeting in {(s.open["group"], s.open["seq"]) for s in ranks if s.open}:
        there = [s for s in ranks if s.open and (s.open["group"], s.open["seq"]) == meeting]
        kinds = Counter(_kind(s.open) for s in there).most_common()
        if len(kinds) > 1:
            few = [kind for kind, n in kinds if n < kinds[0][1]] or [kind for kind, _ in kinds]
            odd = [s.rank for s in there if _kind(s.open) in few]
            said = "; ".join(f"rank {s.rank}: {named(s.open)}" for s in there)
            return odd, f"the ranks disagree about collective number {meeting[1]}: {said}"
    return None


def _kind(call):
    """What must agree between ranks; a root gives more than the others."""
    rooted = any(word in call["op"] for word in ("scatter", "gather", "all_to_all"))
    return call["op"] if rooted else named(call)


def _elsewhere(ranks):
    """Some wait, others stand in code of their own."""
    busy = [s.rank for s in ranks if not s.call]
    if not busy:
        return None
    known = _forked(s for s in ranks if not s.call)
    if len(busy) < len(ranks):
        waits = next(s for s in ranks if s.call)
        return busy, f"did not come to {waits.call}, where rank {waits.rank} waits{known}"
    return busy, f"no rank waits for another: each stands in its own code{known}"


def _forked(ranks):
    """What is known of forks that stand still (identify.FORKED)."""
    return next((f"; {x}" for s in ranks for x in s.notes if x.startswith("forked")), "")


def _differs(ranks):
    """All wait, but by their stacks not in the same call."""
    calls = {s.call for s in ranks}
    said = "; ".join(f"rank {s.rank} in {s.call}" for s in ranks)
    if calls <= P2P:
        return [s.rank for s in ranks], f"each waits for the other: {said}"
    known = [s for s in ranks if s.open]
    if len(known) == len(ranks) and len({s.open["group"] for s in ranks}) == 1:
        return None  # the counts say that it is the same collective
    places = {(s.call, tuple(s.lines[-1][:2]) if s.lines else None) for s in ranks}
    if len(calls) > 1 or (len(places) > 1 and not known):
        return [s.rank for s in ranks], f"they wait in different places: {said}"
    return None
