"""Are the gradients averaged? Each one's projection at the step against the ranks' local ones."""

import math
from dataclasses import dataclass

from ddp_course.tools.audit.words import some

TOLERANCE = 0.01  # of a gradient's length: float16 hooks round, faults are larger


def nan_since(logs):
    """The first gradient that is NaN or inf.

    Parameters
    ----------
    logs : list of Log

    Returns
    -------
    (int, bool) or None
        The step, and whether at it all ranks were given one.
    """
    for at, steps in enumerate(zip(*(log.steps for log in logs))):
        lost = [not all(math.isfinite(g.given) for g in step.gradients.values()) for step in steps]
        if any(lost):
            return at, all(lost)
    return None


@dataclass
class _Case:
    """One parameter's gradient at one step: projections by rank, and the length."""

    name: str
    local: list
    reduced: list  # at the end of backward
    given: list  # to the step
    length: float

    @property
    def mean(self):
        return math.fsum(self.local) / len(self.local)

    @property
    def early(self):
        """Whether backward reduced it, as DDP's does; else the loop has to, by hand."""
        return self.alike(self.reduced)

    def alike(self, values, factor=1.0):
        return max(values) - min(values) <= 0.01 * TOLERANCE * self.length * abs(factor)

    def is_average(self, values, factor=1.0):
        near = TOLERANCE * self.length * abs(factor)
        return all(abs(x - factor * self.mean) <= near for x in values)

    def what(self, values, factor):
        """What it is if not the average, and the answer that follows."""
        if all(abs(x - y) <= TOLERANCE * self.length for x, y in zip(values, self.local)):
            return "each rank's own, never averaged", False
        if self.alike(values, factor):
            return "not the average, but alike on all ranks (compressed? clipped one by one?)", None
        return "neither the average nor alike on all ranks", False


def _cases(rows):
    """The gradients in which ranks differ enough to tell; (what, answer, name) of odd ones."""
    cases, odd = [], []
    for name in dict.fromkeys(name for row in rows for name in row.gradients):
        numbers = [row.gradients.get(name) for row in rows]
        if None in numbers:
            odd.append(("a gradient on some ranks only", False, name))
            continue
        local, lengths, reduced, given = map(list, zip(*numbers))
        if None in local:
            if not any(given):
                continue
            if all(math.isfinite(x) for x in given):
                odd.append((*_not_from_backward(given), name))
                continue
            local = [0.0 if x is None else x for x in local]
        case = _Case(name, local, reduced, given, max(lengths))
        bad = [r for r, x in enumerate(zip(local, lengths)) if not all(map(math.isfinite, x))]
        lost = [r for r, x in enumerate(given) if not math.isfinite(x)]
        if lost and len(lost) < len(rows):
            odd.append((f"NaN or inf at the step on rank {lost[0]}, not on all", False, name))
        elif lost and bad:
            odd.append((f"NaN or inf on rank {bad[0]}, so in the average too", None, name))
        elif lost or bad:
            where = "at the step, though on no rank before" if lost else "before the step only"
            odd.append((f"NaN or inf {where}", None, name))
        elif max(abs(x - case.mean) for x in local) > 5 * TOLERANCE * case.length:
            cases.append(case)
    return cases, odd


def _not_from_backward(given):
    """What can be said of gradients of which no backward through this model is known."""
    near = TOLERANCE * max(map(abs, given))
    if max(given) - min(given) > near:
        return "at the step gradients that no backward() of this step made, not alike", False
    return "at the step gradients that no backward() of this step made (set by hand?)", None


def _common_factor(cases, which):
    """The factor that makes most gradients averages; 1 if it does as well as any other."""
    found = [(case, getattr(case, which)) for case in cases]
    clear = min(0.3, 0.5 * max(abs(c.mean) / c.length for c in cases))
    ratios = sorted(x[0] / c.mean for c, x in found if abs(c.mean) > clear * c.length)
    few = [ratios[len(ratios) * i // 8] for i in range(8)] if ratios else []
    return max([1.0, *few], key=lambda f: sum(c.is_average(x, f) for c, x in found))


class _Gradients:
    """Each gradient against the ranks' local ones, step by step: mean, sum, own, or what else.

    Clipping and unscaling multiply all by one factor, so a common factor is allowed. What the
    loop reduces by hand can be seen only at the step, maybe clipped.
    """

    def __init__(self, n):
        self.n, self.seen, self.sums, self.changed = n, 0, 0, False
        self.odd = {}  # {(what, answer): {name: first step}}
        self.factors = {"reduced": [], "given": []}  # one for each step

    def look(self, step, rows):
        cases, odd = _cases(rows)
        self.seen += len(cases)
        early = [case for case in cases if case.early]
        late = [case for case in cases if not case.early]
        scale = rows[0].scale or 1.0
        factors = []
        if early:
            factor, at_step = _common_factor(early, "reduced"), _common_factor(early, "given")
            self.factors["reduced"].append(factor)
            factors = [factor, at_step * scale]
            odd += [(*c.what(c.reduced, factor), c.name) for c in early
                    if not c.is_average(c.reduced, factor)]  # fmt: skip
            odd += self.changes(early, at_step, scale)
        if late:
            factor = _common_factor(late, "given")
            self.factors["given"].append(factor * scale)
            factors.append(factor * scale)
            odd += [(*c.what(c.given, factor), c.name) for c in late
                    if not c.is_average(c.given, factor)]  # fmt: skip
            self.changed |= abs(factor * scale - 1) > TOLERANCE
        self.sums += any(abs(f - self.n) < TOLERANCE * self.n for f in factors)
        for what, answer, name in odd:
            self.odd.setdefault((what, answer), {}).setdefault(name, step)

    def changes(self, early, factor, scale):
        """What was done between backward and step."""
        for case in early:
            again = [scale * case.given[0], self.n * case.reduced[0]]
            if not case.alike(case.given, factor):
                yield "alike after backward, but not at the step", False, case.name
            elif not case.is_average(case.given, 1 / scale):
                self.changed = True
                if case.alike(again) and abs(factor * scale - 1) < TOLERANCE:
                    yield f"averaged, then times {self.n}", None, case.name


def judge_gradients(report, logs):
    """Answer for the gradients; report.in_sync is answered before.

    Parameters
    ----------
    report : Report
        Its `averaged` is filled, and notes added.
    logs : list of Log
    """
    verdict, n = report.averaged, len(logs)
    steps = [len(log.steps) for log in logs]
    if len(set(steps)) > 1:
        verdict.evidence.append("ranks made unequal numbers of steps, which can't be paired")
        return
    found, nan = _Gradients(n), nan_since(logs)
    for step, rows in enumerate(zip(*(log.steps for log in logs))):
        found.look(step, rows)
        if nan == (step, True):  # from here on all is NaN
            break
    for (what, answer), since in found.odd.items():
        first = min(since.values())
        line = f"{what}, since step {first}: {some(k for k, at in since.items() if at == first)}"
        (report.notes if answer else verdict.evidence).append(line)
    answers = {answer for _, answer in found.odd}
    in_backward, by_hand = found.factors["reduced"], found.factors["given"]
    strange = [f for f in in_backward if abs(f - 1) > TOLERANCE]
    strange += [f for f in by_hand if f > 1 + TOLERANCE]
    if False in answers and report.in_sync.answer is not False:
        verdict.evidence.append("and yet parameters come out equal: are those averaged instead?")
    elif False in answers:
        verdict.answer = False
    elif None in answers:
        return
    elif not found.seen:
        why = "no local gradients that differ among ranks: nothing to see"
        if not any(step.gradients for step in logs[0].steps):
            why = "the optimizer stepped without gradients of this model: is it another's?"
        verdict.evidence.append(why)
    elif found.sums:
        verdict.answer = False
        verdict.evidence.append(
            f"in {found.sums} of {steps[0]} steps they are the sum over ranks, {n} times the "
            "average (right only if the loss is divided by what all ranks have together)"
        )
    elif strange:
        verdict.evidence.append(f"the average times {strange[0]:.3g}: who multiplied?")
    elif by_hand and max(by_hand) < 1 - TOLERANCE:
        verdict.evidence.append(
            f"the average times {max(by_hand):.3g} or less, reduced by hand, then clipped? A sum "
            "would look the same"
        )
    else:
        verdict.answer = True
        verdict.evidence.append(
            f"equal to the average of the local ones, {found.seen} times looked at"
        )
        if found.changed:
            report.notes.append(
                "averages were changed before the step, alike on all ranks: clipped?"
            )
