"""Lesson 13: wrong answers, each with what the check must say, and other right ones."""

import numpy as np
import torch

from wrong_answers import right, wrong


@wrong("efficiencies", "Against N")
def not_divided_by_n(n, one, independent, ddp):
    return ddp / one, ddp / independent


@wrong("efficiencies", "Against the machine")
def both_divided_by_n(n, one, independent, ddp):
    return ddp / (n * one), ddp / (n * independent)


@wrong("efficiencies", "Return two numbers")
def one_number(n, one, independent, ddp):
    return ddp / (n * one)


@wrong("thief", "Not the one that")
def the_one_that_waits(loader, wait):
    return "loader" if max(loader) > 0.3 else wait.index(max(wait))


@wrong("thief", "Everybody waits")
def loader_last(loader, wait):
    if max(wait) - min(wait) > 0.2:
        return wait.index(min(wait))
    return "loader" if max(loader) > 0.3 else "none"


@wrong("thief", "A slow loader comes first")
def loader_after_communication(loader, wait):
    if max(wait) - min(wait) > 0.2:
        return wait.index(min(wait))
    if min(wait) > 0.3:
        return "communication"
    return "loader" if max(loader) > 0.3 else "none"


@wrong("gain", "not the computing")
def everything_faster(compute, nbytes, n, bandwidth, times):
    return times


@wrong("gain", "A ring sends")
def buffer_once(compute, nbytes, n, bandwidth, times):
    wire = nbytes / bandwidth
    return (compute + wire) / (compute + wire / times)


@wrong("gain", "at the old and at the new speed")
def new_step_computes_only(compute, nbytes, n, bandwidth, times):
    wire = 2 * (n - 1) / n * nbytes / bandwidth
    return 1 + wire / compute


@wrong("efficiencies", "what would N times one process give?")
def swapped(n, one, independent, ddp):
    return (ddp / independent, ddp / (n * one))


@wrong("efficiencies", "what would N times one process give?")
def inverse(n, one, independent, ddp):
    return (n * one / ddp, independent / ddp)


@wrong("efficiencies", "what did the N independent ones give, all together?")
def machine(n, one, independent, ddp):
    return (ddp / (n * one), independent / (n * one))


@right("efficiencies")
def as_a_list(n, one, independent, ddp):
    return list(np.float64(ddp) / [n * one, independent])


@wrong("thief", "Nothing is above its limit here.")
def max_wait(loader, wait):
    if max(loader) > 0.3:
        return "loader"
    if max(wait) - min(wait) > 0.2:
        return wait.index(min(wait))
    return "communication" if max(wait) > 0.3 else "none"


@wrong("thief", "ranks that wait for their data make others wait.")
def min_loader(loader, wait):
    if min(loader) > 0.3:
        return "loader"
    if max(wait) - min(wait) > 0.2:
        return wait.index(min(wait))
    return "communication" if min(wait) > 0.3 else "none"


@wrong("gain", "A ring sends 2(n - 1)/n of the gradients, at the old and at the new speed.")
def bandwidth_over(compute, nbytes, n, bandwidth, times):
    wire = 2 * (n - 1) / n * nbytes / bandwidth
    return (compute + wire / times) / (compute + wire)


@wrong("gain", "A ring sends 2(n - 1)/n of the gradients, at the old and at the new speed.")
def overlapped(compute, nbytes, n, bandwidth, times):
    wire = 2 * (n - 1) / n * nbytes / bandwidth
    return max(compute, wire) / max(compute, wire / times)


@wrong("gain", "A ring sends 2(n - 1)/n of the gradients, at the old and at the new speed.")
def forgets_n(compute, nbytes, n, bandwidth, times):
    wire = 2 * (n - 1) * nbytes / bandwidth
    return (compute + wire) / (compute + wire / times)


@wrong("gain", "A ring sends 2(n - 1)/n of the gradients, at the old and at the new speed.")
def amdahl_swapped(compute, nbytes, n, bandwidth, times):
    wire = 2 * (n - 1) / n * nbytes / bandwidth
    f = compute / (compute + wire)
    return 1 / (1 - f + f / times)


@right("gain")
def amdahl(compute, nbytes, n, bandwidth, times):
    wire = 2 * (n - 1) / n * nbytes / bandwidth
    f = wire / (compute + wire)
    return torch.tensor(1 / (1 - f + f / times), dtype=torch.float64)
