"""Lesson 05: wrong answers, each with what the check must say, and other right ones."""

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
