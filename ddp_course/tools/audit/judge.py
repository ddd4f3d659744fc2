"""What the ranks' logs mean. Pure: the same logs, the same report."""

import json

from ddp_course.tools.audit.judge_calls import judge_calls
from ddp_course.tools.audit.judge_data import judge_data
from ddp_course.tools.audit.judge_gradients import judge_gradients, nan_since
from ddp_course.tools.audit.judge_notes import judge_notes
from ddp_course.tools.audit.report import Report
from ddp_course.tools.audit.words import differing, some

LABELS = {"lr": "learning rates", "scale": "scaler scales"}


def judge(logs):
    """The report that follows from the logs of all ranks.

    Parameters
    ----------
    logs : list of Log
        One for each rank of the group, at least one.

    Returns
    -------
    Report
    """
    report = Report()
    judge_calls(report.paired, logs)
    reasons = [log.failed for log in logs if log.failed]
    if not reasons and len({json.dumps(log.names) for log in logs}) > 1:
        reasons = ["the ranks watched different models"]
    if not reasons and len(logs) < 2:
        reasons = ["there is one rank only"]
    alone = [log.alone for log in logs if log.alone][:1]
    if reasons:
        for verdict in (report.split, report.in_sync, report.averaged):
            verdict.evidence += dict.fromkeys([*reasons, *alone])
        if report.paired.answer is None:
            missing = [r for r in reasons if r not in report.paired.evidence]
            report.paired.evidence += dict.fromkeys([*missing, *alone])
        return report
    report.notes += alone
    _judge_sync(report, logs)
    judge_gradients(report, logs)
    judge_data(report, logs)
    judge_notes(report, logs)
    return report


def _judge_sync(report, logs):
    verdict = report.in_sync
    steps = [len(log.steps) for log in logs]
    if not all(steps):
        verdict.evidence.append("the optimizer made no step: is it the one that the loop uses?")
    differ_at_end = differing([log.states[-1] for log in logs])
    if len(set(steps)) > 1:
        verdict.answer = False if differ_at_end else None
        verdict.evidence.append(f"optimizer steps by rank: {steps}")
        if not differ_at_end:
            verdict.evidence.append("and yet the parameters are equal at the end (Join?)")
    elif any(steps):
        _judge_states(verdict, list(zip(*(log.states for log in logs))), nan_since(logs))
    _judge_settings(verdict, logs)
    # ZeRO's ranks have a part of the state each: only what all have is compared.
    common = set.intersection(*(set(log.state) for log in logs))
    states = [{name: log.state[name] for name in sorted(common)} for log in logs]
    if names := differing(states):
        verdict.answer = None if verdict.answer else verdict.answer
        verdict.evidence.append(f"optimizer state differs at the end: {some(names)}")
    _judge_buffers(report, logs)


def _judge_states(verdict, states, nan):
    """The ranks' parameters before each step and at the end.

    ``nan`` is (step, whether all ranks have it) of the first gradient that is NaN or inf: two
    NaN may have equal bits or not.
    """
    different = [differing(state) for state in states]
    at = [i for i, names in enumerate(different) if names]
    if nan and nan[1] and not any(i <= nan[0] for i in at):
        verdict.evidence.append(
            f"NaN or inf in gradients since step {nan[0]}: parameters were equal until then, "
            "and NaN equals nothing"
        )
        return
    if not at and states[0] == states[-1]:
        verdict.evidence.append("the steps left the parameters as they were")
        return
    if not at:
        verdict.answer = True
        verdict.evidence.append(f"every bit equal before each of {len(states) - 1} steps and after")
        return
    when = f"since step {at[0] - 1}" if at[0] else "before the first step"
    verdict.evidence.append(f"parameters differ {when}: {some(different[at[0]])}")
    first = next((i for i in at if i), 0)  # a start that differs is no averaging
    again = [i for i in range(first, len(states)) if not different[i]]
    verdict.answer = None if again else False
    if again:
        verdict.evidence.append(
            f"but are equal again before step {again[0]}: averaged among ranks now and then?"
        )


def _judge_settings(verdict, logs):
    """All that the optimizer's groups say, at each step, and the scaler's scale."""
    if len({log.optimizer for log in logs}) > 1:
        verdict.answer = False
        verdict.evidence.append(f"optimizers by rank: {[log.optimizer for log in logs]}")
        return
    rows, now = [], [None] * len(logs)
    for steps in zip(*(log.steps for log in logs)):
        now = [old if step.settings is None else step.settings for old, step in zip(now, steps)]
        rows.append([_by_name(groups, step.scale) for groups, step in zip(now, steps)])
    rows.append([_by_name(log.settings, None) for log in logs])
    said = set()
    for at, values in enumerate(rows):
        for name in dict.fromkeys(key for value in values for key in value):
            found = [value.get(name) for value in values]
            if name not in said and any(x != found[0] for x in found):
                said.add(name)
                when = f"at step {at}" if at < len(rows) - 1 else "at the end"
                verdict.answer = False
                verdict.evidence.append(f"{LABELS.get(name, name)} differ {when}: {found}")


def _by_name(groups, scale):
    """{setting: its value in each group}"""
    names = dict.fromkeys(name for group in groups for name in group)
    found = {name: [group.get(name) for group in groups] for name in names}
    return found | ({"scale": scale} if scale is not None else {})


def _judge_buffers(report, logs):
    """BatchNorm's own statistics are usual; what else differs isn't."""
    at_end = differing([log.buffers[-1] for log in logs])
    ever = dict.fromkeys(
        name for row in zip(*(log.buffers for log in logs)) for name in differing(row)
    )
    owners, broadcast = logs[0].owners, logs[0].broadcast
    norms = [name for name in at_end if owners.get(name, ["", False])[1]]
    others = [name for name in ever if not owners.get(name, ["", False])[1]]
    if norms:
        why = "DDP's next forward mends it" if broadcast else "BatchNorm's may"
        report.notes.append(f"buffers differ at the end ({why}): {some(norms)}")
    if not others:
        return
    named = some(f"{name} ({owners[name][0]})" if name in owners else name for name in others)
    line = f"each rank updates {named} from its own batch"
    drift = [name for name in others if name in at_end and all(owners.get(name, [0])[2:])]
    if broadcast:
        report.notes.append(
            f"{line}: DDP's next forward takes rank 0's, and the updates of other ranks are "
            "thrown away"
        )
    elif drift:
        report.in_sync.answer = False
        report.in_sync.evidence.insert(
            0, f"buffers differ at the end: {line}, and nothing mends it"
        )
    else:
        report.notes.append(f"buffers differ at times: {line}")
