"""Lesson 12: wrong answers, each with what the check must say, and other right ones."""

from wrong_answers import right, wrong


@wrong("cause", "Leave out those about a peer")
def earliest_of_all(errors):
    return min(errors, key=lambda e: e[1])[0]


@wrong("cause", "then the earliest")
def in_list_order(errors):
    own = [e for e in errors if "RuntimeError" not in e[2]]
    return own[0][0] if own else errors[0][0]


@wrong("cause", "in no order")
def first_without_peer(errors):
    return next(e[0] for e in errors if "peer" not in e[2])


@wrong("missing", "All called equally many")
def counts_only(called, kinds):
    return [r for r, n in enumerate(called) if n < max(called)]


@wrong("missing", "the kinds don't matter")
def kinds_only(called, kinds):
    rare = min(kinds.count(k) for k in kinds)
    return [r for r, k in enumerate(kinds) if kinds.count(k) == rare]


@wrong("missing", "got")
def one_rank_only(called, kinds):
    return [called.index(min(called))]


@wrong("judge", "each rank's value")
def own_or_averaged(local, given):
    return "own" if given == local else "averaged"


@wrong("judge", "each rank's value")
def rank_0_only(local, given):
    mean = sum(local) / len(local)
    return "averaged" if abs(given[0] - mean) < 0.01 else "summed"


@wrong("judge", "expected averaged")
def no_tolerance(local, given):
    n, total = len(local), sum(local)
    for word, want in (("averaged", total / n), ("summed", total)):
        if all(abs(g - want) < 1e-9 for g in given):
            return word
    return "own" if given == local else "other"
