"""Lesson 12: wrong answers, each with what the check must say, and other right ones."""

from collections import Counter

import numpy as np

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


@wrong("cause", "then the earliest.")
def latest_own(errors):
    own = [
        e
        for e in errors
        if not any(
            w in e[2]
            for w in ("Connection closed by peer", "Connection reset by peer", "Timed out waiting")
        )
    ]
    return max(own or errors, key=lambda e: e[1])[0]


@wrong("cause", "The list is in no order.")
def reset_forgotten(errors):
    own = [
        e
        for e in errors
        if not any(w in e[2] for w in ("Connection closed by peer", "Timed out waiting"))
    ]
    return min(own or errors, key=lambda e: e[1])[0]


@wrong("cause", "The list is in no order.")
def timeout_forgotten(errors):
    own = [e for e in errors if "by peer" not in e[2]]
    return min(own or errors, key=lambda e: e[1])[0]


@wrong("cause", "then the earliest.")
def lowest_rank(errors):
    own = [e for e in errors if not any(w in e[2] for w in ("by peer", "Timed out"))]
    return min(own or errors)[0]


@wrong("cause", "then the earliest.")
def none_left(errors):
    own = [e for e in errors if not any(w in e[2] for w in ("by peer", "Timed out"))]
    return min(own, key=lambda e: e[1])[0] if own else None


@right("cause")
def sort(errors):
    return sorted(
        errors,
        key=lambda e: (
            any(
                w in e[2]
                for w in (
                    "Connection closed by peer",
                    "Connection reset by peer",
                    "Timed out waiting",
                )
            ),
            e[1],
        ),
    )[0][0]


@wrong("missing", "the kinds don't matter then.")
def fewest_only(called, kinds):
    if len(set(called)) > 1:
        return [r for r, n in enumerate(called) if n == min(called)]
    c = [kinds.count(k) for k in kinds]
    return [r for r, x in enumerate(c) if x == min(c)] if len(set(kinds)) > 1 else []


@wrong("missing", "If not, which kind is rarest?")
def not_commonest(called, kinds):
    b = [r for r, n in enumerate(called) if n < max(called)]
    top = Counter(kinds).most_common(1)[0][0]
    return b or [r for r, k in enumerate(kinds) if k != top]


@wrong("missing", "If not, which kind is rarest?")
def no_equal(called, kinds):
    b = [r for r, n in enumerate(called) if n < max(called)]
    c = [kinds.count(k) for k in kinds]
    return b or [r for r, x in enumerate(c) if x == min(c)]


@right("missing")
def by_numpy(called, kinds):
    called = np.array(called)
    if called.min() < called.max():
        return list(np.nonzero(called < called.max())[0])
    c = np.array([kinds.count(k) for k in kinds])
    return list(np.nonzero(c == c.min())[0]) if len(set(kinds)) > 1 else []


@wrong("judge", "not rank 0's only, with what each of the words would give.")
def equal_is_averaged(local, given):
    if given == local:
        return "own"
    return "averaged" if abs(given[0]) <= max(map(abs, local)) else "summed"


@right("judge")
def judged_by_numpy(local, given):
    own, g = np.array(local), np.array(given)
    near = 0.01 * abs(own).max()
    for w, x in (("summed", own.sum()), ("averaged", own.mean()), ("own", own)):
        if (abs(g - x) <= near).all():
            return np.str_(w)
    return "other"
