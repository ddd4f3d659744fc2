"""Lesson 05: wrong answers, each with what the check must say, and other right ones."""

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


def speeds(times):
    """The bandwidth of each ring, from its shortest and longest buffer."""
    return {
        n: 2 * (n - 1) / n * (max(t) - min(t)) / (t[max(t)] - t[min(t)]) for n, t in times.items()
    }


@wrong("slow_card", "take only what the bytes cost")
def times_of_one_size(times):
    by_n = {n: t[max(t)] for n, t in times.items()}
    jumps = {n: by_n[n] / by_n[n - 1] for n in by_n if n > 2}
    n = max(jumps, key=jumps.get)
    return n - 1, jumps[n]


@wrong("slow_card", "look for the slowest")
def algorithm_bandwidth(times):
    n = max(times, key=lambda n: times[n][84_000_000] - times[n][84_000])
    largest, two = times[n], times[2]
    return n - 1, (largest[84_000_000] - largest[84_000]) / (two[84_000_000] - two[84_000])


@wrong("slow_card", "whose card is the new one")
def length_for_rank(times):
    answer = the_slowest(times)
    return answer and (answer[0] + 1, answer[1])


@wrong("slow_card", "look for the slowest")
def first_drop(times):
    b = speeds(times)
    for n in range(3, 9):
        if b[n] < 0.99 * b[n - 1]:
            return n - 1, b[2] / b[n]


@wrong("slow_card", "take only what the bytes cost")
def steps_not_taken_away(times):
    answer = the_slowest(times)
    if answer is None:
        return None
    busbw = {n: 2 * (n - 1) / n / t[8_400_000] for n, t in times.items()}
    return answer[0], busbw[2] / busbw[answer[0] + 1]


@wrong("slow_card", "take only what the bytes cost")
def shares_forgotten(times):
    answer = the_slowest(times)
    if answer is None:
        return None
    cost = {n: t[max(t)] - t[min(t)] for n, t in times.items()}
    return answer[0], cost[answer[0] + 1] / cost[2]


@wrong("slow_card", "take only what the bytes cost")
def upside_down(times):
    answer = the_slowest(times)
    return answer and (answer[0], 1 / answer[1])


@wrong("slow_card", "Equal cards")
def never_none(times):
    b = speeds(times)
    n = min(b, key=lambda n: (round(b[n], 6), n))
    return n - 1, b[2] / b[n]


@wrong("slow_card", "Which bandwidth would each of these rings need")
def never_slow(times):
    return None


@wrong("slow_card", "Return what the task names")
def the_rank_alone(times):
    answer = the_slowest(times)
    return answer and answer[0]


@right("slow_card")
def the_slowest(times):
    b = speeds(times)
    n = min(b, key=lambda n: (round(b[n], 6), n))
    return None if b[n] > 0.99 * b[2] else (n - 1, b[2] / b[n])


@right("slow_card")
def by_a_straight_line(times):
    slope = {n: np.polyfit(list(t), list(t.values()), 1)[0] * n / (n - 1) for n, t in times.items()}
    worst = max(slope.values())
    if worst < 1.01 * slope[2]:
        return None
    return min(n for n in slope if slope[n] > 0.999 * worst) - 1, worst / slope[2]


@right("slow_card")
def as_an_array(times):
    t = np.array([[times[n][s] for s in sorted(times[n])] for n in range(2, 9)])
    n = np.arange(2, 9)
    cost = (t[:, 2] - t[:, 1]) * n / (n - 1)
    factor = np.round(cost / cost[0], 6)
    return (factor.argmax() + 1, factor.max()) if factor.max() > 1 else None


@right("slow_card")
def as_a_list(times):
    answer = the_slowest(times)
    return answer and list(answer)


@right("slow_card")
def growing_ring(times):
    found, worst, good = None, 1.0, None
    for n in sorted(times):
        (_, a), (_, b), _ = sorted(times[n].items())
        per_byte = (b - a) / (2 * (n - 1) / n)
        good = good or per_byte
        if per_byte / good > worst * 1.01:
            found, worst = n - 1, per_byte / good
    return found and (found, worst)
