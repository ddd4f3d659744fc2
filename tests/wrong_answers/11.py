"""Lesson 11: wrong answers, each with what the check must say, and other right ones."""

from collections import Counter

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
