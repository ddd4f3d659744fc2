"""Lesson 05: wrong answers, each with what the check must say, and other right ones."""

import itertools
import math

import numpy as np

from wrong_answers import right, wrong


@wrong("my_ring", "nobody sends it to rank 0")
def no_all_gather(n):
    return [[(r, (r + 1) % n, (r - s) % n, "add") for r in range(n)] for s in range(n - 1)]


@wrong("my_ring", "sends what it does not have")
def never_passes_on(n):
    return [
        [(r, (r + 1) % n, (r - s) % n, op) for r in range(n)]
        for op in ("add", "copy")
        for s in range(n - 1)
    ]


@wrong("my_ring", "would count twice")
def adds_all_the_way(n):
    return [[(r, (r + 1) % n, (r - s) % n, "add") for r in range(n)] for s in range(2 * n - 2)]


@wrong("my_ring", "not by a ring")
def star(n):
    up = [[(r, 0, c, "add") for c in range(n)] for r in range(1, n)]
    return up + [[(0, r, c, "copy") for c in range(n)] for r in range(1, n)]


@wrong("ring_turns_at", "Set the two terms")
def half_of_it(nbytes, alpha, bandwidth):
    return max(2, int(nbytes / bandwidth / alpha / 2))


@wrong("ring_turns_at", "There the two are equal")
def one_less(nbytes, alpha, bandwidth):
    return int(nbytes / bandwidth / alpha)


@wrong("ring_turns_at", "divide both by 2(N - 1)")
def times_bandwidth(nbytes, alpha, bandwidth):
    return int(nbytes * bandwidth / alpha)


@wrong("ring_turns_at", "Return a whole number")
def not_rounded(nbytes, alpha, bandwidth):
    return nbytes / bandwidth / alpha


@wrong("ring_turns_at", "at least two ranks")
def no_lower_limit(nbytes, alpha, bandwidth):
    return int(nbytes / bandwidth / alpha) + 1


@wrong("my_ring", "rank, messages in a step, all to the right neighbour).")
def to_the_left(n):
    first = [[(r, (r - 1) % n, (r + s) % n, "add") for r in range(n)] for s in range(n - 1)]
    return first + [
        [(r, (r - 1) % n, (r + s - 1) % n, "copy") for r in range(n)] for s in range(n - 1)
    ]


@wrong("my_ring", "Nobody has sent chunk 0 on from rank 1")
def one_round_early(n):
    first = [[(r, (r + 1) % n, (r - s) % n, "add") for r in range(n)] for s in range(n - 1)]
    return first + [[(r, (r + 1) % n, (r - s) % n, "copy") for r in range(n)] for s in range(n - 1)]


@wrong("my_ring", "write (src, dst, chunk, 'add' or 'copy')")
def one_step(n):
    return [(r, (r + 1) % n, r, "add") for r in range(n)]


@wrong("my_ring", "return a list of steps, each a list")
def nothing(n):
    pass


@wrong("my_ring", "rank, messages in a step, all to the right neighbour).")
def extra_step(n):
    first = [[(r, (r + 1) % n, (r - s) % n, "add") for r in range(n)] for s in range(n - 1)]
    return first + [[(r, (r + 1) % n, (r + 1 - s) % n, "copy") for r in range(n)] for s in range(n)]


@wrong("my_ring", "rank, messages in a step, all to the right neighbour).")
def chain_whole(n):
    up = [[(r, r + 1, c, "add") for c in range(n)] for r in range(n - 1)]
    return up + [[((r - 1) % n, r, c, "copy") for c in range(n)] for r in range(n - 1)]


@wrong("my_ring", "rank, messages in a step, all to the right neighbour).")
def empty_step_at_the_end(n):
    first = [[(r, (r + 1) % n, (r - s) % n, "add") for r in range(n)] for s in range(n - 1)]
    second = [[(r, (r + 1) % n, (r + 1 - s) % n, "copy") for r in range(n)] for s in range(n - 1)]
    return first + second + [[]]


@right("my_ring")
def generators(n):
    first = (
        tuple((r, (r + 1) % n, (r - s - 1) % n, "add") for r in range(n)) for s in range(n - 1)
    )
    second = (tuple((r, (r + 1) % n, (r - s) % n, "copy") for r in range(n)) for s in range(n - 1))
    return tuple(first) + tuple(second)


@right("my_ring")
def numpy_integers(n):
    r = np.arange(n)
    out = []
    for s in range(2 * n - 2):
        op = "add" if s < n - 1 else "copy"
        out.append(list(zip(r, (r + 1) % n, (r - s) % n, [op] * n)))
    return out


@right("my_ring")
def lists_for_tuples(n):
    return [
        [[r, (r + 1) % n, (r - s) % n, "add" if s < n - 1 else "copy"] for r in range(n)]
        for s in range(2 * n - 2)
    ]


@wrong("ring_turns_at", "There the two are equal, or the bytes still win.")
def rounded(nbytes, alpha, bandwidth):
    return max(2, round(nbytes / bandwidth / alpha))


@wrong("ring_turns_at", "There the two are equal, or the bytes still win.")
def rounded_up(nbytes, alpha, bandwidth):
    return max(2, math.ceil(nbytes / bandwidth / alpha))


@right("ring_turns_at")
def numpy_integer(nbytes, alpha, bandwidth):
    return max(np.int64(2), np.int64(nbytes / bandwidth / alpha) + 1)


@right("ring_turns_at")
def by_trying(nbytes, alpha, bandwidth):
    return next(n for n in itertools.count(2) if n * alpha > nbytes / bandwidth)
