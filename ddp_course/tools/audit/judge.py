"""What the logs of `audit.watch` mean: the three answers, from what all ranks saw."""

import json
import math
from collections import Counter
from dataclasses import dataclass

TOLERANCE = 0.01  # of a gradient's length: float16 hooks round, faults are larger


def judge(report, logs):
    """Fill the report from the logs of all ranks."""
    reasons = [log["failed"] for log in logs if "failed" in log]
    if not reasons and len({json.dumps(log["names"]) for log in logs}) > 1:
        reasons = ["the ranks watched different models"]
    if not reasons and len(logs) < 2:
        reasons = ["there is one rank only"]
    if reasons:
        for verdict in (report.split, report.in_sync, report.averaged):
            verdict.evidence += dict.fromkeys(reasons)
        return
    _judge_sync(report, logs)
    _judge_gradients(report, logs)
    _judge_data(report, logs)
    if len({log["seed"] for log in logs}) == 1:
        report.notes.append("all ranks have one seed: the same dropout and augmentation on each")
    if buffers := _differing([log["buffers"] for log in logs]):
        why = "DDP's next forward mends it" if logs[0]["broadcast"] else "BatchNorm's may"
        report.notes.append(f"buffers differ at the end ({why}): {_some(buffers)}")


def _differing(dicts):
    """The names in which the ranks' dicts differ."""
    names = dict.fromkeys(name for d in dicts for name in d)
    return [name for name in names if len({d.get(name) for d in dicts}) > 1]


def _some(names):
    names = list(names)
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _judge_sync(report, logs):
    verdict = report.in_sync
    steps = [len(log["steps"]) for log in logs]
    if not all(steps):
        verdict.evidence.append("the optimizer made no step: is it the one that the loop uses?")
    differ_at_end = _differing([log["states"][-1] for log in logs])
    if len(set(steps)) > 1:
        verdict.answer = False if differ_at_end else None
        verdict.evidence.append(f"optimizer steps by rank: {steps}")
        if not differ_at_end:
            verdict.evidence.append("and yet the parameters are equal at the end (Join?)")
    elif any(steps):
        _judge_states(verdict, list(zip(*(log["states"] for log in logs))))
    for what, name in (("lr", "learning rates"), ("scale", "scaler scales")):
        for at, rows in enumerate(zip(*(log["steps"] for log in logs))):
            values = [row[what] for row in rows]
            if any(value != values[0] for value in values):
                verdict.answer = False
                verdict.evidence.append(f"{name} differ at step {at}: {values}")
                break
    # ZeRO's ranks have a part of the state each: only what all have is compared.
    common = set.intersection(*(set(log["optimizer"]) for log in logs))
    states = [{name: log["optimizer"][name] for name in sorted(common)} for log in logs]
    if names := _differing(states):
        verdict.answer = None if verdict.answer else verdict.answer
        verdict.evidence.append(f"optimizer state differs at the end: {_some(names)}")


def _judge_states(verdict, states):
    """The ranks' parameters before each step and at the end."""
    different = [_differing(state) for state in states]
    at = [i for i, names in enumerate(different) if names]
    if not at and states[0] == states[-1]:
        verdict.evidence.append("the steps left the parameters as they were")
        return
    if not at:
        verdict.answer = True
        verdict.evidence.append(f"every bit equal before each of {len(states) - 1} steps and after")
        return
    when = f"since step {at[0] - 1}" if at[0] else "before the first step"
    verdict.evidence.append(f"parameters differ {when}: {_some(different[at[0]])}")
    first = next((i for i in at if i), 0)  # a start that differs is no averaging
    again = [i for i in range(first, len(states)) if not different[i]]
    verdict.answer = None if again else False
    if again:
        verdict.evidence.append(
            f"but are equal again before step {again[0]}: averaged among ranks now and then?"
        )


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
    for name in dict.fromkeys(name for row in rows for name in row["gradients"]):
        numbers = [row["gradients"].get(name) for row in rows]
        if None in numbers:
            odd.append(("a gradient on some ranks only", False, name))
            continue
        local, lengths, reduced, given = map(list, zip(*numbers))
        case = _Case(name, local, reduced, given, max(lengths))
        bad = [r for r, x in enumerate(zip(local, lengths)) if not all(map(math.isfinite, x))]
        lost = [r for r, x in enumerate(given) if not math.isfinite(x)]
        if lost and len(lost) < len(rows):
            odd.append((f"NaN or inf at the step on rank {lost[0]}, not on all", False, name))
        elif lost and bad:
            odd.append((f"NaN or inf on rank {bad[0]}, so in the average too", True, name))
        elif lost or bad:
            where = "at the step, though on no rank before" if lost else "before the step only"
            odd.append((f"NaN or inf {where}", None, name))
        elif max(abs(x - case.mean) for x in local) > 5 * TOLERANCE * case.length:
            cases.append(case)
    return cases, odd


def _common_factor(cases, which):
    """The factor that makes most gradients averages; 1 if it does as well as any other."""
    found = [(case, getattr(case, which)) for case in cases]
    clear = min(0.3, 0.5 * max(abs(c.mean) / c.length for c in cases))
    ratios = sorted(x[0] / c.mean for c, x in found if abs(c.mean) > clear * c.length)
    some = [ratios[len(ratios) * i // 8] for i in range(8)] if ratios else []
    return max([1.0, *some], key=lambda f: sum(c.is_average(x, f) for c, x in found))


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
        scale = rows[0]["scale"] or 1.0
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


def _judge_gradients(report, logs):
    verdict, n = report.averaged, len(logs)
    steps = [len(log["steps"]) for log in logs]
    if len(set(steps)) > 1:
        verdict.evidence.append("ranks made unequal numbers of steps, which can't be paired")
        return
    found = _Gradients(n)
    for step, rows in enumerate(zip(*(log["steps"] for log in logs))):
        found.look(step, rows)
    for (what, answer), since in found.odd.items():
        first = min(since.values())
        line = f"{what}, since step {first}: {_some(k for k, at in since.items() if at == first)}"
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
        if not any(step["gradients"] for step in logs[0]["steps"]):
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


def _judge_data(report, logs):
    verdict, epochs = report.split, list(zip(*map(_training_epochs, logs)))
    if not epochs:
        _judge_inputs(verdict, logs)
        if verdict.answer is None:
            verdict.evidence.append("pass loader= to see more")
        return
    verdict.answer, base = True, logs[0]["base"]["train"]
    one_seed = len({log["seed"] for log in logs}) == 1
    for at, ranks in enumerate(epochs):
        if verdict.answer:
            _judge_epoch(verdict, at, ranks, base, one_seed)
    for at, (ranks, following) in enumerate(zip(epochs, epochs[1:])):
        both = list(zip(ranks[0]["draws"], following[0]["draws"]))
        if base["shuffles"] and len(both) > 2 and all(a == b for a, b in both):
            verdict.answer = False
            verdict.evidence.append(f"epoch {at + 1} has the order of the one before: set_epoch?")
            break
    if any(log["draws"]["validation"] for log in logs):
        _judge_leakage(verdict, logs)
    sizes = [log["base"]["train"]["size"] for log in logs]
    if len(set(sizes)) > 1:
        verdict.evidence.append(f"sizes of the data by rank: {sizes}")


def _training_epochs(log):
    """Epochs in which steps were made (not a peek at one batch), with what entered the model."""
    epochs, found = log["draws"]["train"], []
    ends = [*epochs[1:], {"steps": len(log["steps"]), "inputs": len(log["inputs"])}]
    for epoch, end in zip(epochs, ends):
        if end["steps"] > epoch["steps"]:
            batches = log["inputs"][epoch["inputs"] : end["inputs"]]
            found.append(epoch | {"inputs": [bits for batch in batches for bits in batch]})
    return found


def _judge_epoch(verdict, at, ranks, base, one_seed):
    n, size, distributed = len(ranks), base["size"], base["distributed"]
    draws, inputs = ([epoch[what] for epoch in ranks] for what in ("draws", "inputs"))
    every = [i for own in draws for i in own]
    extra, left = len(every) - len(set(every)), size - len(set(every))
    across, within, samples = _overlap(inputs)

    def say(answer, words):
        verdict.answer = answer
        verdict.evidence.append(f"epoch {at}: {words}")

    if len(set(map(len, draws))) > 1:
        say(True, f"draws by rank {list(map(len, draws))}")
    if not distributed and any(len(set(own)) < len(own) for own in draws):
        say(None, "drawn with replacement, so overlap tells nothing")
    elif extra > (-size % n if distributed else min(n * base["batch"], size // 4)):
        say(False, f"{extra} draws more than samples drawn (overlap)")
        if not distributed and across <= samples / 2:
            say(None, "but no common samples seen in the model: data cut up beforehand?")
    elif all(epoch["whole"] for epoch in ranks) and left > (
        n - 1 + n * base["drops"] if distributed else size / 4
    ):
        asks = f" (num_replicas is {base['replicas']})" if distributed else ""
        say(False if distributed else None, f"{left} of {size} samples drawn by no rank{asks}")
    elif across > 5 * (n - 1) * within + samples / 10 + 2 * n:
        # Noise from one seed, or unshuffled data that holds its samples twice, looks so, too.
        noise = one_seed and all(len(set(bits)) < n for bits in zip(*inputs))
        say(
            False if base["shuffles"] and not noise else None,
            f"{across} of {samples} samples entered the model on several ranks, though indices "
            "differ: is the data in another order on each rank?",
        )
    elif extra:
        say(True, f"{extra} drawn twice, as padding")
    elif at == 0:
        say(True, f"each of {size - left} samples on one rank" + f", {left} not drawn" * (left > 0))


def _overlap(inputs):
    """How many samples are on other ranks too, how many twice on their own, and of how many."""
    own, every = [Counter(bits) for bits in inputs], Counter(b for bits in inputs for b in bits)
    across = sum(k for counts in own for bits, k in counts.items() if every[bits] > k)
    within = sum(k for counts in own for k in counts.values() if k > 1)
    return across, within, every.total()


def _judge_inputs(verdict, logs):
    """Without indices: are the batches that enter the model at the same step the same ones?"""
    steps = list(zip(*(log["inputs"] for log in logs)))
    if not steps:
        verdict.evidence.append("no samples were seen on some rank")
        return
    alike = sum(len(set.intersection(*map(set, step))) > len(step[0]) / 2 for step in steps)
    own = logs[0]["inputs"]
    if len(own) > 1 and all(batch == own[0] for batch in own):
        verdict.evidence.append("the first input is the same at every step, so it tells nothing")
    elif alike > len(steps) / 2:
        verdict.answer = False
        verdict.evidence.append(f"the same samples on all ranks in {alike} of {len(steps)} steps")
    else:
        verdict.evidence.append("ranks have other samples at the same step")


def _judge_leakage(verdict, logs):
    for log in logs:
        if log["base"]["train"]["id"] != log["base"]["validation"]["id"]:
            verdict.evidence.append("validation is another data set: leakage can't be seen")
            return
    seen = {
        kind: {
            i % log["base"][kind]["length"]
            for log in logs
            for epoch in log["draws"][kind]
            for i in epoch["draws"]
        }
        for kind in ("train", "validation")
    }
    if both := seen["train"] & seen["validation"]:
        verdict.answer = False
        verdict.evidence.append(f"{len(both)} samples are in training and in validation")
