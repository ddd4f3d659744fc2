"""Lesson 00: wrong answers, each with what the check must say, and other right ones."""

import numpy as np

from wrong_answers import right, wrong


@wrong("bus_bandwidth", "0 for n = 1")
def bytes_per_second(nbytes, seconds, n):
    return nbytes / seconds / 1e9


@wrong("bus_bandwidth", "GB, not bytes")
def algorithm_bandwidth(nbytes, seconds, n):
    return nbytes / seconds * 2 * (n - 1) / n


@wrong("bus_bandwidth", "got 0.5, expected 1.0")
def one_phase_only(nbytes, seconds, n):
    return nbytes / seconds * (n - 1) / n / 1e9


@wrong("bus_bandwidth", "Is it GB, not bytes?")
def gib(nbytes, seconds, n):
    return nbytes / seconds * 2 * (n - 1) / n / 2**30


@wrong("bus_bandwidth", "Is it GB, not bytes?")
def times_n(nbytes, seconds, n):
    return nbytes / seconds * 2 * (n - 1) / 1000000000.0


@right("bus_bandwidth")
def in_steps(nbytes, seconds, n):
    sent = sum(nbytes / n for _ in range(2 * (n - 1)))
    return sent / 1000000000.0 / seconds


@right("bus_bandwidth")
def by_numpy(nbytes, seconds, n):
    return np.float64(nbytes) * 2 * (n - 1) / n / seconds / 1000000000.0
