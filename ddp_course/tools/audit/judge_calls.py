"""Do the ranks' collectives pair up?"""


def judge_calls(verdict, logs):
    """Answer for the collectives that the loops called themselves.

    Parameters
    ----------
    verdict : Verdict
        Is filled.
    logs : list of Log
        Those of ranks whose loop raised count, too, as far as they came.
    """
    # A rank from which no word came has an empty log: nothing is known of its calls.
    there = [log for log in logs if log.names or log.calls]
    if len(there) < 2:
        verdict.evidence += ["there is one rank only"] if len(logs) < 2 else []
        return
    ranks = {log.rank for log in there}
    total, groups = 0, {}
    for log in there:
        groups |= log.groups
    for group, members in groups.items():
        whose = [log for log in there if log.rank in members]
        sequences = [_calls(log, group) for log in whose]
        where = "" if set(members) >= ranks else f" in the group of ranks {members}"
        if line := _first_difference(whose, sequences, where):
            verdict.answer = False
            verdict.evidence.append(line)
        total += min(map(len, sequences))
    if verdict.answer is False:
        return
    failed = list(dict.fromkeys(log.failed for log in logs if log.failed))
    if failed or len(there) < len(logs):
        verdict.evidence += [*failed, f"as far as it is known, {total} collectives pair up"]
        return
    verdict.answer = True
    verdict.evidence.append(
        f"{total} collectives of the loop, alike in kind, type and size on all ranks"
        if total
        else "the loop called none itself (DDP's own are not counted)"
    )


def _calls(log, group):
    return [log.calls[i] for i in log.sequence if log.calls[i].group == group]


def _first_difference(logs, sequences, where):
    for at in range(max(map(len, sequences))):
        calls = [calls[at] if at < len(calls) else None for calls in sequences]
        # A loop that raised called no more: only who ended well, or called another, is odd.
        known = [(log, call) for log, call in zip(logs, calls) if call or not log.failed]
        if len({call and call[1:5] for _, call in known}) > 1:
            said = ", ".join(f"rank {log.rank} {_say(call)}" for log, call in _two_kinds(known))
            return f"collective {at + 1}{where}: {said}"
    for other in sequences[1:]:
        if line := _swapped(logs[0].rank, sequences[0], logs[sequences.index(other)].rank, other):
            return f"collective {line}{where}"
    return None


def _swapped(rank, calls, other_rank, others):
    """Calls alike in kind and size, but by lines that another rank passes in another order."""
    pairs = [(a, b) for a, b in zip(calls, others) if a.site != b.site]
    first = {}
    for at, (a, b) in enumerate(pairs):
        if (b, a) in first:
            return (
                f"{1 + calls.index(b)}: rank {rank} at {b.site} and then at {a.site}, rank "
                f"{other_rank} the other way round ({_say(a)[4 + len(a.site) :]})"
            )
        first.setdefault((a, b), at)
    return None


def _two_kinds(known):
    """One rank for each different call, the first that made it."""
    first = {}
    for log, call in known:
        first.setdefault(call and call[1:5], (log, call))
    return first.values()


def _say(call):
    if call is None:
        return "calls none"
    many = f" of {call.count}" if call.count is not None else ""
    kind = " ".join(x for x in (call.dtype, call.how) if x)
    return f"at {call.site} {call.kind}{many}" + (f" ({kind})" if kind else "")
