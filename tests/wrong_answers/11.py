"""Lesson 11: wrong answers, each with what the check must say, and other right ones."""

from collections import Counter

import numpy as np

from wrong_answers import right, wrong


@wrong("rank_of", "before this one")
def equal_nodes(group_rank, local_rank, ranks_by_node):
    return group_rank * ranks_by_node[group_rank] + local_rank


@wrong("rank_of", "before this one")
def local_rank_only(group_rank, local_rank, ranks_by_node):
    return local_rank


@wrong("rank_of", "before this one")
def group_rank_added(group_rank, local_rank, ranks_by_node):
    return sum(ranks_by_node[:group_rank]) + group_rank


@wrong("bad_node", "Which node is in all")
def end_of_the_slowest_link(links):
    a, b, _ = min(links, key=lambda link: link[2])
    return a


@wrong("bad_node", "so the answer is None")
def most_slow_links(links):
    slow = [n for a, b, speed in links if speed < 5 for n in (a, b)]
    return Counter(slow).most_common(1)[0][0] if slow else None


@wrong("bad_node", "Which node is in all")
def never_any(links):
    return None


@wrong("needed_mbit", "Bits, not bytes")
def bytes_not_bits(nbytes, n, seconds):
    return 2 * (n - 1) / n * nbytes / seconds / 1e6


@wrong("needed_mbit", "How many steps has a ring")
def one_phase_only(nbytes, n, seconds):
    return (n - 1) / n * nbytes * 8 / seconds / 1e6


@wrong("needed_mbit", "How many steps has a ring")
def buffer_once(nbytes, n, seconds):
    return nbytes * 8 / seconds / 1e6


@wrong("rank_of", "How many ranks are on the nodes before this one?")
def last_node(group_rank, local_rank, ranks_by_node):
    return sum(ranks_by_node[: group_rank + 1]) + local_rank


@wrong("rank_of", "How many ranks are on the nodes before this one?")
def first_size(group_rank, local_rank, ranks_by_node):
    return group_rank * ranks_by_node[0] + local_rank


@wrong("rank_of", "How many ranks are on the nodes before this one?")
def max_size(group_rank, local_rank, ranks_by_node):
    return group_rank * max(ranks_by_node) + local_rank


@wrong("rank_of", "How many ranks are on the nodes before this one?")
def round_robin(group_rank, local_rank, ranks_by_node):
    return local_rank * len(ranks_by_node) + group_rank


@right("rank_of")
def cumulative_sum(group_rank, local_rank, ranks_by_node):
    return np.cumsum([0, *ranks_by_node])[group_rank] + local_rank


@wrong("bad_node", "No node is slow to all others here, so the answer is None.")
def slowest_mean(links):
    ns = {n for a, b, _ in links for n in (a, b)}
    return min(ns, key=lambda n: sum((s for a, b, s in links if n in (a, b))))


@wrong("bad_node", "No node is slow to all others here, so the answer is None.")
def below_half_of_max(links):
    lim = max((s for *_, s in links)) / 2
    for n in sorted({n for a, b, _ in links for n in (a, b)}):
        if all((s < lim for a, b, s in links if n in (a, b))):
            return n


@wrong("bad_node", "No node is slow to all others here, so the answer is None.")
def below_mean(links):
    lim = sum((s for *_, s in links)) / len(links)
    slow = {(a, b) for a, b, s in links if s < lim}
    for n in sorted({n for a, b, _ in links for n in (a, b)}):
        if slow == {(a, b) for a, b, _ in links if n in (a, b)}:
            return n


@wrong("bad_node", "No node is slow to all others here, so the answer is None.")
def in_all_slow(links):
    lim = sorted((s for *_, s in links))[len(links) // 2] / 2
    slow = [{a, b} for a, b, s in links if s < lim]
    common = set.intersection(*slow) if slow else set()
    return min(common) if common else None


@wrong("bad_node", "Which node is in all of the slow pairs, and in no fast one?")
def zero_instead_of_none(links):
    return 0


@right("bad_node")
def median(links):
    m = np.median([s for *_, s in links])
    ns = sorted({n for a, b, _ in links for n in (a, b)})
    for n in ns:
        if all(((s < m / 2) == (n in (a, b)) for a, b, s in links)):
            return np.int64(n)


@wrong("needed_mbit", "How many steps has a ring, and how much of the buffer does each send?")
def mib(nbytes, n, seconds):
    return 2 * (n - 1) / n * nbytes * 8 / seconds / 2**20


@wrong("needed_mbit", "How many steps has a ring, and how much of the buffer does each send?")
def gbit(nbytes, n, seconds):
    return 2 * (n - 1) / n * nbytes * 8 / seconds / 1000000000.0


@wrong("needed_mbit", "How many steps has a ring, and how much of the buffer does each send?")
def all_nodes(nbytes, n, seconds):
    return 2 * (n - 1) * nbytes * 8 / seconds / 1000000.0


@right("needed_mbit")
def integers(nbytes, n, seconds):
    return np.float32(16 * nbytes * (n - 1)) / np.float32(n * seconds * 1000000.0)
