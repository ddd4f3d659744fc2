"""What is no fault by itself, or can't be told from one: the notes of a report."""

import math

from ddp_course.tools.audit.words import some

FEW = 3  # steps, from which on "always" means something


def judge_notes(report, logs):
    """Add notes; the ranks made comparable logs.

    Parameters
    ----------
    report : Report
    logs : list of Log
    """
    if len({log.seed for log in logs}) == 1:
        report.notes.append("all ranks have one seed: the same dropout and augmentation on each")
    if len({log.torch for log in logs}) > 1:
        report.notes.append(f"torch by rank: {[log.torch for log in logs]}")
    report.notes += _untrained(logs)
    report.notes += _left_over(logs)
    report.notes += _learning_rate(logs[0])
    for site in dict.fromkeys(site for log in logs for site in log.graphs):
        report.notes.append(
            f"{site}: all_reduce of a tensor that requires grad, before backward(). It changes "
            "the number only: if the loss is divided by the ranks, too, DDP divides the gradient "
            "once more"
        )
    strides = {name: both for log in logs for name, both in log.strides.items()}
    if strides and any(log.wrapped for log in logs):
        name, (gradient, own) = next(iter(strides.items()))
        more = f", and {len(strides) - 1} more" if len(strides) > 1 else ""
        report.notes.append(
            f"the gradient of {name} has strides {gradient}, the parameter (and DDP's bucket view) "
            f"{own}{more}: DDP copies it at each step: right, but slower (channels_last "
            "in one and not in the other?)"
        )


def _untrained(logs):
    """Parameters that the optimizer should train and didn't."""
    if not any(log.steps for log in logs):
        return
    without, zeros = (
        [n for n in getattr(logs[0], kind) if all(n in getattr(log, kind) for log in logs)]
        for kind in ("without", "zeros")
    )
    if without:
        yield (
            f"never got a gradient, though in the optimizer and asking for one: {some(without)} "
            "(not used, or cut off by detach() or a re-entrant checkpoint?)"
        )
    if zeros and min(len(log.steps) for log in logs) >= FEW:
        yield f"the gradient was 0 at every step: {some(zeros)}"


def _left_over(logs):
    """Gradients that were there already when a backward began."""
    steps, carried, dangling, twice = len(logs[0].steps), [], [], []
    for at, rows in enumerate(zip(*(log.steps for log in logs))):
        backwards = list(zip(*(row.backwards for row in rows)))
        clean = [i for i, b in enumerate(backwards) if not any(one.left for one in b)]
        # What was there before gradients were last cleared can't matter to the step.
        for i in range(clean[-1] + 1 if clean else 0, len(backwards)):
            after = backwards[i][0].after
            if after == "step":
                carried.append(at)
            elif after == "another":
                dangling.append(at)
            elif i and _alike(backwards[i - 1]):
                twice.append(at)
    if dangling:
        yield (
            f"in {len(set(dangling))} of {steps} steps, first {dangling[0]}, backward() added to "
            "gradients of a backward before the step of another optimizer: left there by the "
            "other model's backward (zero_grad() right before this one's)?"
        )
    if carried:
        yield (
            f"in {len(set(carried))} of {steps} steps, first {carried[0]}, backward() added to the "
            "gradients of the step before: zero_grad() forgotten, or of another optimizer?"
        )
    if twice:
        yield (
            f"in {len(set(twice))} of {steps} steps, first {twice[0]}, backward() added to "
            "gradients that were averaged already: if it is meant (several losses, micro-batches), "
            "no_sync() around all but the last saves sending; if not, the first is left over "
            "(zero_grad() between them)"
        )


def _alike(backwards):
    """Whether a backward was averaged: its projections agree on all ranks."""
    totals = [b.total for b in backwards]
    largest = max(map(abs, totals))
    return math.isfinite(largest) and max(totals) - min(totals) <= 1e-4 * largest


def _learning_rate(log):
    """Its course, where a schedule ran too often, or came back up, or stood at 0."""
    now, courses = [], []
    for step in log.steps:
        now = now if step.settings is None else step.settings
        courses.append([group.get("lr") for group in now])
    courses.append([group.get("lr") for group in log.settings])
    if len(courses) < 3 or len(set(map(len, courses))) > 1:
        return
    lines = list(zip(*courses))  # one for each group of parameters
    lines = [line for line in lines if all(isinstance(x, (int, float)) for x in line)]
    steps, restarts = len(log.steps), ("CosineAnnealingWarmRestarts", "CyclicLR")
    often = [(kind, n) for kind, n in log.schedules if n > steps * _slack(log)]
    if often:
        kind, n = max(often, key=lambda one: one[1])
        course = f": learning rate {_course(lines[0], steps)}" if lines else ""
        yield (
            f"{kind} stepped {n:g} times in {steps} steps of the optimizer (once for each rank, "
            f"or micro-batch?){course}"
        )
        return
    odd = [line for line in lines if _comes_back(line) or line[1:-1].count(0) > 1]
    if odd and not any(kind in restarts for kind, _ in log.schedules):
        yield f"the course of the learning rate: {_course(odd[0], steps)}"


def _slack(log):
    """A scaler that skips a step doesn't keep the schedule from its own."""
    return 1.25 if any(step.scale is not None for step in log.steps) else 1


def _comes_back(line):
    """Whether it fell and then rose again, by more than a tenth of its range."""
    low, high = min(line), max(line)
    top = line[0]
    for before, value in zip(line, line[1:]):
        top = max(top, before)
        fallen = top - before > 0.1 * (high - low)
        if fallen and value > before:
            after = max(line[line.index(value) :])
            if after - before > 0.1 * (high - low):
                return True
    return False


def _course(line, steps):
    """ "0.1 at step 0, 0 at step 16 of 32, 0.1 at the end" """
    low, high = min(line), max(line)
    at = [i for i in {line.index(low), line.index(high)} if 0 < i < len(line) - 1]
    middle = [f"{line[i]:.3g} at step {i} of {steps}" for i in sorted(at)]
    return ", ".join([f"{line[0]:.3g} at step 0", *middle, f"{line[-1]:.3g} at the end"])
