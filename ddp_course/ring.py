"""All-reduce as a schedule: who sends which chunk to whom, step by step. Nothing is sent here.

Every schedule ends with the sum of all ranks' buffers on all ranks. In one step each rank sends
at most one message and receives at most one (of one chunk or several); all leave at once.
"""

from typing import NamedTuple

import numpy as np

from ddp_course.tools.errors import CourseError


class Step(NamedTuple):
    """What is sent in one step: an entry for each chunk on its way.

    Attributes
    ----------
    src, dst : int arrays, shape (sent,)
        From which rank, to which.
    chunk : int array, shape (sent,)
        Which part of the buffer.
    add : bool, or bool array of shape (sent,)
        The receiver adds what comes to what it has; if False it replaces it.
    """

    src: np.ndarray
    dst: np.ndarray
    chunk: np.ndarray
    add: bool


class Schedule(NamedTuple):
    """An algorithm for one number of ranks.

    Attributes
    ----------
    n : int
        Ranks.
    chunks : int
        Parts into which a buffer is divided, sizes as ``numpy.array_split`` makes them.
    steps : list of Step
    """

    n: int
    chunks: int
    steps: list


def ring(n, rank=None):
    """Ring: pass partial sums round, then finished sums (Patarasuk and Yuan 2009).

    Parameters
    ----------
    n : int
        Ranks.
    rank : int, optional
        Only the messages that this rank sends or receives; for large n.

    Returns
    -------
    Schedule
        Of n chunks and 2(n - 1) steps.
    """
    return Schedule(n, n, list(_ring(_self_and_left(n, rank), n)))


def _ring(who, n):
    right = (who + 1) % n
    chunk = (who - np.arange(n)[:, None]) % n  # row s: what each sends in step s
    for s in range(n - 1):  # reduce-scatter
        yield Step(who, right, chunk[s], True)
    for s in range(n - 1):  # all-gather
        yield Step(who, right, (chunk[s] + 1) % n, False)


def star(n, rank=None):
    """Star, or parameter server: rank 0 receives from one after the other, then sends to each.

    Parameters and Returns as for `ring`; one chunk, 2(n - 1) steps.
    """
    return Schedule(n, 1, list(_star(n, rank)))


def _star(n, rank):
    others, zero = np.arange(1, n), np.zeros(1, int)
    none = np.zeros(0, int)
    for src, dst, add in ((others, None, True), (None, others, False)):
        for i in range(n - 1):
            if rank in (None, 0, i + 1):
                a = zero if src is None else src[i : i + 1]
                b = zero if dst is None else dst[i : i + 1]
                yield Step(a, b, zero, add)
            else:
                yield Step(none, none, none, add)


def tree(n, rank=None):
    """Binomial tree: the whole buffer up to rank 0, halving the senders, then down again.

    Parameters and Returns as for `ring`; one chunk, 2 ceil(log2 n) steps.
    """
    return Schedule(n, 1, list(_tree(n, rank)))


def _tree(n, rank):
    levels = []
    for d in 2 ** np.arange((n - 1).bit_length()):
        child = np.arange(d, n, 2 * d)
        if rank is not None:
            child = child[(child == rank) | (child - d == rank)]
        levels.append((child, child - d, np.zeros(len(child), int)))
    for child, parent, chunk in levels:
        yield Step(child, parent, chunk, True)
    for child, parent, chunk in reversed(levels):
        yield Step(parent, child, chunk, False)


def halving_doubling(n, rank=None):
    """Recursive halving, then doubling (Thakur, Rabenseifner and Gropp 2005).

    Where n is no power of two, the ranks above the largest power, p, first add their buffer to
    rank - p's, and get the result from it at the end.

    Parameters and Returns as for `ring`; p chunks, 2 log2 p steps (two more if p < n).
    """
    p = 1 << (n.bit_length() - 1)
    return Schedule(n, p, list(_halving_doubling(n, p, rank)))


def _halving_doubling(n, p, rank):
    extra = np.arange(p, n)
    if rank is not None:
        extra = extra[(extra == rank) | (extra - p == rank)]
    whole = np.tile(np.arange(p), len(extra))
    if p < n:
        yield Step(np.repeat(extra, p), np.repeat(extra - p, p), whole, True)
    distances = [p >> i for i in range(1, p.bit_length())]
    for add, distance in [(True, d) for d in distances] + [(False, d) for d in distances[::-1]]:
        who = np.arange(p)
        if rank is not None:
            who = np.array([rank, rank ^ distance] if rank < p else [], int)
        partner = who ^ distance
        # Halving: the half that the partner is to finish. Doubling: all that one has finished.
        first = (partner if add else who) // distance * distance
        chunk = (first[:, None] + np.arange(distance)).ravel()
        yield Step(np.repeat(who, distance), np.repeat(partner, distance), chunk, add)
    if p < n:
        yield Step(np.repeat(extra - p, p), np.repeat(extra, p), whole, False)


def two_level(n, rank=None, per_node=8):
    """Ring in each node, ring across the nodes, ring in each node again.

    Reduce-scatter among the ranks of a node; all-reduce of each rank's part with the ranks of
    the same place in the other nodes; all-gather in the node.

    Parameters and Returns as for `ring`; n chunks, 2(per_node - 1) + 2(n/per_node - 1) steps.

    Raises
    ------
    CourseError
        per_node does not divide n.
    """
    _nodes(n, per_node)
    return Schedule(n, n, list(_two_level(n, rank, per_node)))


def _nodes(n, per_node):
    if n % per_node:
        raise CourseError(f"{n} ranks don't fill nodes of {per_node}: choose a multiple")
    return n // per_node


def _two_level(n, rank, g):
    nodes = _nodes(n, g)
    everyone = np.arange(n)
    own_node, own_place = (everyone, everyone) if rank is None else (
        np.unique([rank, rank - rank % g + (rank - 1) % g]), np.unique([rank, (rank - g) % n])
    )  # fmt: skip

    def inside(shift, add):  # a part is the chunks that one rank of each node looks after
        place = own_node % g
        part = (place - shift) % g
        chunk = (part[:, None] * nodes + np.arange(nodes)).ravel()
        right = own_node - place + (place + 1) % g
        return Step(np.repeat(own_node, nodes), np.repeat(right, nodes), chunk, add)

    for s in range(g - 1):
        yield inside(s, True)
    place, node = own_place % g, own_place // g
    for shift, add in ((0, True), (-1, False)):
        for s in range(nodes - 1):
            chunk = (place + 1) % g * nodes + (node - s - shift) % nodes
            yield Step(own_place, (own_place + g) % n, chunk, add)
    for s in range(g - 1):
        yield inside(s - 1, False)


ALGORITHMS = {
    "ring": ring, "star": star, "tree": tree,
    "halving-doubling": halving_doubling, "two-level": two_level,
}  # fmt: skip


def _self_and_left(n, rank):
    return np.arange(n) if rank is None else np.unique([(rank - 1) % n, rank])


class State(NamedTuple):
    """The simulation after a step. The arrays are its own: copy what you keep.

    Attributes
    ----------
    step : Step or None
        What was sent last; None at the start.
    buffers : array, shape (n, chunks, width)
        Every rank's numbers; a chunk shorter than the longest ends in zeros.
    parts : uint64 array, shape (n, chunks), or None
        Whose numbers are in the sum: bit r is set for rank r's. None for more than 64 ranks.
    """

    step: Step
    buffers: np.ndarray
    parts: np.ndarray


def simulate(schedule, data):
    """Run a schedule on data, step by step.

    Parameters
    ----------
    schedule : Schedule
    data : array, shape (n, length)
        What each rank starts with; any length, also one that n does not divide.

    Yields
    ------
    State
        The start, and the state after each step.

    Raises
    ------
    CourseError
        data has not a row for each rank.
    """
    data = np.asarray(data)
    n, chunks = schedule.n, schedule.chunks
    if data.ndim != 2 or len(data) != n:
        raise CourseError(f"data of shape {data.shape}: it needs a row for each of {n} ranks")
    inside = _inside(data.shape[1], chunks)
    buffers = np.zeros((n, *inside.shape), data.dtype)
    buffers[:, inside] = data
    parts = None
    if n <= 64:
        parts = np.repeat(np.uint64(1) << np.arange(n, dtype=np.uint64)[:, None], chunks, axis=1)
    yield State(None, buffers, parts)
    for step in schedule.steps:
        src, dst, chunk, add = step
        for held, plus in ((buffers, np.add), (parts, np.bitwise_or)):
            if held is None:
                continue
            sent = held[src, chunk]  # a copy: everyone sends what it had before the step
            mine = held[dst, chunk]
            adds = np.broadcast_to(add, src.shape).reshape(-1, *[1] * (held.ndim - 2))
            held[dst, chunk] = np.where(adds, plus(mine, sent), sent)
        yield State(step, buffers, parts)


def all_reduce(schedule, data):
    """Run a schedule to its end.

    Returns
    -------
    array, shape (n, length)
        What each rank holds then.
    """
    for state in simulate(schedule, data):
        buffers = state.buffers
    return buffers[:, _inside(np.shape(data)[1], schedule.chunks)]


def _inside(length, chunks):
    """Which places of the buffers hold elements, bool (chunks, width); the rest is padding."""
    sizes = chunk_sizes(length, chunks)
    return np.arange(sizes.max(initial=0)) < sizes[:, None]


def chunk_sizes(length, chunks):
    """Elements in each chunk: as equal as can be, the longer ones first; int array (chunks,)."""
    return length // chunks + (np.arange(chunks) < length % chunks)


class Count(NamedTuple):
    """What a schedule costs.

    Attributes
    ----------
    steps : int
    sent, received : int arrays, shape (n,)
        Bytes, by rank.
    """

    steps: int
    sent: np.ndarray
    received: np.ndarray


def count(schedule, nbytes):
    """Count steps and bytes by going through the schedule; no data is moved.

    Parameters
    ----------
    schedule : Schedule
        Of one rank (``ring(65_536, rank=0)``), and only that rank's bytes are right.
    nbytes : int
        Size of each rank's buffer.

    Returns
    -------
    Count
    """
    nothing = [np.zeros(0, int)]
    src, dst, chunk = (np.concatenate(nothing + [s[i] for s in schedule.steps]) for i in range(3))
    size = chunk_sizes(nbytes, schedule.chunks)[chunk]
    sent, received = (np.bincount(who, size, schedule.n).astype(int) for who in (src, dst))
    return Count(len(schedule.steps), sent, received)


def seconds(algorithm, n, nbytes, alpha, bandwidth, *, per_node=8):
    """Time of an all-reduce in the α-β model: each step costs α, each byte 1/bandwidth.

    Adding the numbers up is taken as free, and no two messages share a link.

    Parameters
    ----------
    algorithm : key of ALGORITHMS
    n : int
        Ranks.
    nbytes : float
        Size of a rank's buffer.
    alpha : float
        Seconds that a message costs, however short.
    bandwidth : float
        Bytes per second of one link, in each direction.
    per_node : int
        Ranks in a node, for "two-level"; all links are taken as equal.

    Returns
    -------
    float
        Seconds. Sources: Thakur, Rabenseifner and Gropp 2005; Patarasuk and Yuan 2009. The tests
        compare each formula with what its schedule costs step by step.

    Raises
    ------
    CourseError
        No such algorithm, or per_node does not divide n.
    """
    size = nbytes / bandwidth
    if algorithm == "ring":
        return 2 * (n - 1) * (alpha + size / n)
    if algorithm == "star":
        return 2 * (n - 1) * (alpha + size)
    if algorithm == "tree":
        return 2 * (n - 1).bit_length() * (alpha + size)
    if algorithm == "halving-doubling":
        p = 1 << (n.bit_length() - 1)
        folded = 2 * (alpha + size) if p < n else 0
        return 2 * (p.bit_length() - 1) * alpha + 2 * (p - 1) / p * size + folded
    if algorithm == "two-level":
        inside = 2 * (per_node - 1) * (alpha + size / per_node)
        nodes = _nodes(n, per_node)
        return inside + 2 * (nodes - 1) * (alpha + size / per_node / nodes)
    raise CourseError(f"unknown algorithm {algorithm!r}: choose from {', '.join(ALGORITHMS)}")


def what_if(
    n, per_node, nbytes, *, fixed, alpha_in, bandwidth_in, alpha_between, bandwidth_between
):
    """Time of three algorithms where links inside a node and between nodes differ.

    A step lasts as long as its slowest message: one link between two nodes slows a whole flat ring.
    Ranks are numbered node by node, and each has a link of its own in and out of its node.

    Parameters
    ----------
    n, per_node : int
        Ranks, and ranks in a node; per_node divides n, or there is one node.
    nbytes : float
        Size of a rank's buffer.
    fixed : float
        Seconds that a call costs, whatever the algorithm.
    alpha_in, alpha_between : float
        Seconds of a message, however short.
    bandwidth_in, bandwidth_between : float
        Bytes per second of one link, in each direction.

    Returns
    -------
    dict of str to float
        Seconds of "ring", "two-level" and "tree". The tests compare them with the schedules, step
        by step, and ring_calculator.js with them.

    Raises
    ------
    CourseError
        per_node does not divide n.
    """
    per_node = min(per_node, n)
    nodes = _nodes(n, per_node)
    inside, between = (alpha_in, bandwidth_in), (alpha_between, bandwidth_between)
    links = [inside] * (per_node > 1) + [between] * (nodes > 1)
    levels = 0.0
    for d in 2 ** np.arange((n - 1).bit_length()):
        child = np.arange(d, n, 2 * d)
        crosses = child // per_node != (child - d) // per_node
        used = [between if c else inside for c in np.unique(crosses)]
        levels += max(alpha + nbytes / bandwidth for alpha, bandwidth in used)
    return {
        "ring": fixed + max(seconds("ring", n, nbytes, *link) for link in links),
        # A ring inside each node, and one across the nodes for each rank's part.
        "two-level": fixed
        + seconds("ring", per_node, nbytes, *inside)
        + seconds("ring", nodes, nbytes / per_node, *between),
        "tree": fixed + 2 * levels,
    }
