"""Lesson 00: wrong answers, each with what the check must say, and other right ones."""

import numpy as np

from wrong_answers import right, wrong

SMALL, LARGE = 4, 2**26


@wrong("what_is_wrong", "Return one of the four words.")
def a_yes_or_no(link):
    return link[SMALL] > 50e-6


@wrong("what_is_wrong", "Return one of the four words.")
def nothing_said(link):
    pass


@wrong("what_is_wrong", "Don't count it as missing bandwidth")
def bandwidth_first(link):
    if LARGE / link[LARGE] < 10e9:
        return "bandwidth"
    return "latency" if link[SMALL] > 50e-6 else "healthy"


@wrong("what_is_wrong", "Judge the two faults apart")
def latency_first(link):
    if link[SMALL] > 50e-6:
        return "latency"
    return "bandwidth" if LARGE / link[LARGE] < 10e9 else "healthy"


@wrong("what_is_wrong", "Don't count it as missing bandwidth")
def start_left_in(link):
    words = [["healthy", "bandwidth"], ["latency", "both"]]
    return words[link[SMALL] > 50e-6][LARGE / link[LARGE] < 10e9]


@wrong("what_is_wrong", "with the least of α in it")
def from_the_middle_size(link):
    few = 2**20 / (link[2**20] - link[SMALL]) < 1e9
    return [["healthy", "bandwidth"], ["latency", "both"]][link[SMALL] > 50e-6][few]


@wrong("what_is_wrong", "with the least of α in it")
def in_gib(link):
    few = LARGE / 2**30 / (link[LARGE] - link[SMALL]) < 1
    return [["healthy", "bandwidth"], ["latency", "both"]][link[SMALL] > 50e-6][few]


@wrong("what_is_wrong", "Is the start as quick as it should be?")
def always_healthy_start(link):
    return "bandwidth" if LARGE / (link[LARGE] - link[SMALL]) < 10e9 else "healthy"


@right("what_is_wrong")
def by_a_list_of_faults(link):
    faults = []
    if link[SMALL] > 5e-5:
        faults.append("latency")
    if LARGE > 0 and (link[LARGE] - link[SMALL]) * 10e9 > LARGE:
        faults.append("bandwidth")
    return "both" if len(faults) == 2 else (faults or ["healthy"])[0]


@right("what_is_wrong")
def by_a_line_through_all_points(link):
    sizes = np.array(sorted(link), float)
    seconds = np.array([link[b] for b in sorted(link)])
    slope, start = np.polyfit(sizes, seconds, 1)
    return np.array([["healthy", "bandwidth"], ["latency", "both"]])[
        int(start > 50e-6), int(1 / slope < 10e9)
    ]


@right("what_is_wrong")
def in_microseconds_and_gigabytes(link):
    start_us = link[4] * 1e6
    gb_per_s = (LARGE - SMALL) / 1e9 / (link[LARGE] - link[SMALL])
    match start_us > 50, gb_per_s < 10:
        case True, True:
            return "both"
        case True, False:
            return "latency"
        case False, True:
            return "bandwidth"
    return "healthy"


@right("what_is_wrong")
def by_the_difference_of_two_sizes(link):
    carried = (LARGE - 2**20) / (link[LARGE] - link[2**20])
    slow, narrow = min(link.values()) > 50e-6, carried < 1e10
    return {(0, 0): "healthy", (1, 0): "latency", (0, 1): "bandwidth", (1, 1): "both"}[slow, narrow]


@right("what_is_wrong")
def unpacked(link):
    small, _, large = (link[b] for b in sorted(link))
    word = "healthy"
    if large - small > 2**26 / 10**10:
        word = "bandwidth"
    if small > 0.00005:
        word = "latency" if word == "healthy" else "both"
    return word
