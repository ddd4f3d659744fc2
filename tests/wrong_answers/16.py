"""Lesson 16: wrong answers, each with what the check must say, and other right ones."""

import numpy as np

from wrong_answers import right, wrong


@wrong("bus_bandwidth_at_least", "2(N - 1)/N")
def algorithm_bandwidth(nbytes, durations_us):
    return nbytes / min(durations_us) / 1e3


@wrong("bus_bandwidth_at_least", "wait least")
def of_the_longest(nbytes, durations_us):
    n = len(durations_us)
    return 2 * (n - 1) / n * nbytes / max(durations_us) / 1e3


@wrong("bus_bandwidth_at_least", "wait least")
def of_the_mean(nbytes, durations_us):
    n = len(durations_us)
    return 2 * (n - 1) / n * nbytes / (sum(durations_us) / n) / 1e3


@wrong("bus_bandwidth_at_least", "wait least")
def of_rank_0(nbytes, durations_us):
    n = len(durations_us)
    return 2 * (n - 1) / n * nbytes / durations_us[0] / 1e3


@wrong("bus_bandwidth_at_least", "Check the unit")
def bytes_per_second(nbytes, durations_us):
    n = len(durations_us)
    return 2 * (n - 1) / n * nbytes / min(durations_us) * 1e6


@wrong("bus_bandwidth_at_least", "2(N - 1)/N")
def times_n(nbytes, durations_us):
    n = len(durations_us)
    return 2 * (n - 1) * nbytes / min(durations_us) / 1e3


@wrong("bus_bandwidth_at_least", "one number")
def one_a_rank(nbytes, durations_us):
    n = len(durations_us)
    return [2 * (n - 1) / n * nbytes / t / 1e3 for t in durations_us]


@right("bus_bandwidth_at_least")
def with_numpy(nbytes, durations_us):
    n = len(durations_us)
    return 2 * (n - 1) / n * nbytes / np.min(np.array(durations_us) * 1e-6) / 1e9


@right("bus_bandwidth_at_least")
def numpy_float32(nbytes, durations_us):
    n = len(durations_us)
    return np.float64(2 - 2 / n) * (nbytes / 1e9) / (sorted(durations_us)[0] / 1e6)


@right("bus_bandwidth_at_least")
def the_best_of_all(nbytes, durations_us):
    n = len(durations_us)
    return max(2 * (n - 1) * nbytes / n / t / 1000 for t in durations_us)


@right("bus_bandwidth_at_least")
def seconds_first(nbytes, durations_us):
    seconds, n = min(durations_us) / 1e6, len(durations_us)
    algbw = nbytes / seconds / 1e9
    return algbw * 2 * (n - 1) / n


@right("bus_bandwidth_at_least")
def in_a_loop(nbytes, durations_us):
    shortest = float("inf")
    for t in durations_us:
        shortest = t if t < shortest else shortest
    return nbytes * 2e-3 * (len(durations_us) - 1) / len(durations_us) / shortest


@wrong("ask_first", "launched")
def the_ones_that_complain(counters):
    most = max(c[0] for c in counters.values())
    return sorted(r for r, c in counters.items() if c[0] == most)


@wrong("ask_first", "launched")
def completed_only(counters):
    most = max(c[1] for c in counters.values())
    return sorted(r for r, c in counters.items() if c[1] < most)


@wrong("ask_first", "more that are behind")
def the_very_last_only(counters):
    for which in (0, 1):
        numbers = [c[which] for c in counters.values()]
        if min(numbers) < max(numbers):
            return sorted(r for r, c in counters.items() if c[which] == min(numbers))
    return []


@wrong("ask_first", "nobody is behind")
def everybody_if_equal(counters):
    least = min(c[0] for c in counters.values())
    return sorted(r for r, c in counters.items() if c[0] == least)


@wrong("ask_first", "All of them")
def all_ranks(counters):
    return sorted(counters)


@wrong("ask_first", "in order")
def unsorted(counters):
    for which in (0, 1):
        most = max(c[which] for c in counters.values())
        behind = [r for r, c in counters.items() if c[which] < most]
        if behind:
            return behind[::-1]
    return []


@wrong("ask_first", "launched")
def unfinished_work(counters):
    return sorted(r for r, c in counters.items() if c[0] > c[1]) if counters else []


@right("ask_first")
def as_a_tuple(counters):
    def behind(which):
        return tuple(sorted(r for r in counters if counters[r][which] < max(
            c[which] for c in counters.values())))  # fmt: skip

    return behind(0) or behind(1)


@right("ask_first")
def with_arrays(counters):
    ranks = np.array(sorted(counters))
    both = np.array([counters[r] for r in ranks])
    for column in both.T:
        if (column < column.max()).any():
            return ranks[column < column.max()]
    return ranks[:0]


@right("ask_first")
def by_sorting(counters):
    for which in (0, 1):
        order = sorted(counters, key=lambda r: counters[r][which])
        most = counters[order[-1]][which]
        found = sorted(r for r in order if counters[r][which] != most)
        if found:
            return found
    return []


@right("ask_first")
def with_unpacking(counters):
    launched = {r: a for r, (a, b) in counters.items()}
    finished = {r: b for r, (a, b) in counters.items()}
    numbers = launched if len(set(launched.values())) > 1 else finished
    return sorted(r for r, v in numbers.items() if v < max(numbers.values()))


@right("ask_first")
def consuming_its_argument(counters):
    found, both = [], sorted(counters.items())
    counters.clear()
    for which in (0, 1):
        most = max(c[which] for _, c in both)
        found = found or [r for r, c in both if c[which] < most]
    return found


def _rates(rows):
    return {(r["name"], r["gpus"]): r["throughput"] for r in rows}


@wrong("suspicious", "really over 8.5")
def over_eight(rows):
    rate = _rates(rows)
    return sorted(n for n, g in rate if g == 1 and rate.get((n, 8), 0) >= 8 * rate[n, 1])


@wrong("suspicious", "A name is missing")
def over_seventeen(rows):
    rate = _rates(rows)
    return sorted(n for n, g in rate if g == 1 and rate.get((n, 8), 0) > 17 * rate[n, 1])


@wrong("suspicious", "A name is missing")
def ones_before_eights(rows):
    one, found = {}, []
    for r in rows:
        if r["gpus"] == 1:
            one[r["name"]] = r["throughput"]
        elif r["throughput"] > 8.5 * one.get(r["name"], float("inf")):
            found.append(r["name"])
    return sorted(found)


@wrong("suspicious", "really over 8.5")
def alone_counts_as_zero(rows):
    rate = _rates(rows)
    return sorted({n for n, _ in rate if rate.get((n, 8), 0) > 8.5 * rate.get((n, 1), 0)})


@wrong("suspicious", "A name is missing")
def neighbours(rows):
    pairs = zip(rows, rows[1:])
    return sorted({b["name"] for a, b in pairs if b["throughput"] > 8.5 * a["throughput"]})


@wrong("suspicious", "sorted")
def twice(rows):
    rate = _rates(rows)
    return sorted(n for n, _ in rate if rate.get((n, 8), 0) > 8.5 * rate.get((n, 1), 1e12))


@wrong("suspicious", "sorted")
def not_sorted(rows):
    rate = _rates(rows)
    found = sorted(n for n, g in rate if g == 1 and rate.get((n, 8), 0) > 8.5 * rate[n, 1])
    return found[::-1]


@right("suspicious")
def a_tuple(rows):
    rate = _rates(rows)
    names = {n for n, _ in rate}
    fast = [n for n in names if (n, 1) in rate and (n, 8) in rate
            and rate[n, 8] / rate[n, 1] > 8.5]  # fmt: skip
    return tuple(sorted(fast))


@right("suspicious")
def two_dicts(rows):
    one = {r["name"]: r["throughput"] for r in rows if r["gpus"] == 1}
    eight = {r["name"]: r["throughput"] for r in rows if r["gpus"] == 8}
    return sorted(n for n in one.keys() & eight.keys() if eight[n] > 8.5 * one[n])


@right("suspicious")
def two_loops(rows):
    found = []
    for a in rows:
        for b in rows:
            pair = a["name"] == b["name"] and (a["gpus"], b["gpus"]) == (1, 8)
            if pair and b["throughput"] > 8.5 * a["throughput"]:
                found.append(a["name"])
    return sorted(found)


@right("suspicious")
def sorted_rows_first(rows):
    rows.sort(key=lambda r: (r["name"], r["gpus"]))
    return [b["name"] for a, b in zip(rows, rows[1:])
            if a["name"] == b["name"] and b["throughput"] > 8.5 * a["throughput"]]  # fmt: skip


@right("suspicious")
def with_numpy_numbers(rows):
    rate = {key: np.float64(value) for key, value in _rates(rows).items()}
    return np.array(sorted(n for n, g in rate if g == 1 and (n, 8) in rate
                           and rate[n, 8] / rate[n, 1] > np.float64(8.5)))  # fmt: skip
