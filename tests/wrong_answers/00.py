"""Lesson 00: wrong answers, each with what the check must say, and other right ones."""

import numpy as np

from wrong_answers import right, wrong

SMALL, MIDDLE, LARGE = 2**16, 2**20, 2**26
WORDS = [["healthy", "bandwidth"], ["latency", "both"]]


def slope(link):
    return (LARGE - MIDDLE) / (link[LARGE] - link[MIDDLE])


@wrong("what_is_wrong", "Return one of the four words.")
def a_yes_or_no(link):
    return link[SMALL] > 50e-6


@wrong("what_is_wrong", "Return one of the four words.")
def nothing_said(link):
    pass


@wrong("what_is_wrong", "how much is left for the start?")
def smallest_time_is_the_start(link):
    return WORDS[link[SMALL] > 50e-6][slope(link) < 10e9]


@wrong("what_is_wrong", "Don't count it as missing bandwidth")
def start_left_in(link):
    start = link[SMALL] - SMALL / slope(link)
    return WORDS[start > 50e-6][LARGE / link[LARGE] < 10e9]


@wrong("what_is_wrong", "Is the start as quick as it should be?")
def bandwidth_only(link):
    return WORDS[0][slope(link) < 10e9]


@wrong("what_is_wrong", "Judge the two faults apart")
def one_fault_at_most(link):
    if slope(link) < 10e9:
        return "bandwidth"
    return "latency" if link[SMALL] - SMALL / slope(link) > 50e-6 else "healthy"


@wrong("what_is_wrong", "How many per second? Two sizes tell.")
def in_gib(link):
    start = link[SMALL] - SMALL / slope(link)
    return WORDS[start > 50e-6][slope(link) / 2**30 < 1]


@wrong("what_is_wrong", "Don't count it as missing bandwidth")
def from_the_middle_size(link):
    busbw = MIDDLE / link[MIDDLE]
    return WORDS[link[SMALL] - SMALL / slope(link) > 50e-6][busbw < 4e9]


@right("what_is_wrong")
def by_a_list_of_faults(link):
    faults = []
    if link[SMALL] - SMALL / slope(link) > 5e-5:
        faults.append("latency")
    if (link[LARGE] - link[MIDDLE]) * 10e9 > LARGE - MIDDLE:
        faults.append("bandwidth")
    return "both" if len(faults) == 2 else (faults or ["healthy"])[0]


@right("what_is_wrong")
def by_a_line_through_all_points(link):
    sizes = np.array(sorted(link), float)
    seconds = np.array([link[b] for b in sorted(link)])
    per_byte, start = np.polyfit(sizes, seconds, 1)
    return np.array(WORDS)[int(start > 50e-6), int(1 / per_byte < 10e9)]


@right("what_is_wrong")
def in_microseconds_and_gigabytes(link):
    gb_per_s = (LARGE - SMALL) / 1e9 / (link[LARGE] - link[SMALL])
    start_us = link[SMALL] * 1e6 - SMALL / gb_per_s / 1e3
    match start_us > 50, gb_per_s < 10:
        case True, True:
            return "both"
        case True, False:
            return "latency"
        case False, True:
            return "bandwidth"
    return "healthy"


@right("what_is_wrong")
def start_from_the_largest(link):
    busbw = slope(link)
    start = link[LARGE] - LARGE / busbw
    table = {(0, 0): "healthy", (1, 0): "latency", (0, 1): "bandwidth", (1, 1): "both"}
    return table[start > 50e-6, busbw < 1e10]


@right("what_is_wrong")
def unpacked(link):
    small, middle, large = (link[b] for b in sorted(link))
    per_byte = (large - middle) / (2**26 - 2**20)
    word = "healthy"
    if per_byte > 1e-10:
        word = "bandwidth"
    if small - 2**16 * per_byte > 0.00005:
        word = "latency" if word == "healthy" else "both"
    return word
