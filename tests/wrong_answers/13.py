"""Lesson 13: wrong answers, each with what the check must say, and other right ones."""

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
