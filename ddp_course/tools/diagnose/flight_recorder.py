"""Read torch's flight-recorder dumps: which rank is behind, in which collective, called where?

    python -m ddp_course.tools.diagnose --fr FOLDER

NCCL's watchdog writes one file a rank as a collective times out, with TORCH_FR_BUFFER_SIZE=2000 and
TORCH_NCCL_DUMP_ON_TIMEOUT=1 set, to TORCH_FR_DUMP_TEMP_FILE<rank> (before torch 2.8:
TORCH_NCCL_TRACE_BUFFER_SIZE, TORCH_NCCL_DEBUG_INFO_TEMP_FILE).

What a dump can't tell: where a rank that is behind stands now (it has the stack of its last call);
whether it still lives; why it is behind; anything of a rank that left no dump; calls older than the
recorder's buffer; uneven sizes in gather, scatter and all_to_all, where they are allowed. Gloo's
recorder doesn't know sends and receives, nor which ranks a group has: a member that never called a
collective of its group isn't missed. A dump taken while the job ran on shows ranks a call apart.
"""

import linecache
from collections import defaultdict
from dataclasses import dataclass, replace
from math import prod

from ddp_course.tools.diagnose.fr_files import read_folder
from ddp_course.tools.diagnose.judge import named, ranks_named, who_is_missing
from ddp_course.tools.diagnose.report import RankState, hang
from ddp_course.tools.diagnose.stacks import own_lines, waits_in

DEFAULT_GROUP = "default_pg"  # the description of init_process_group's


@dataclass
class Dumped(RankState):
    """Where one rank stood, by its dump: in an open call, or behind its last one."""

    def place(self):
        if not self.lines:
            return "a line that its dump doesn't have"
        here = super().place()
        return here if self.call else f"{here}  (its last call; a dump can't tell where it is now)"

    def does(self):
        return super().does() if self.call else "has no open call; its last one was made"


def report(folder):
    """Who did not arrive, by the dumps of a job.

    Parameters
    ----------
    folder : path
        Of the dumps; or their common beginning, such as /tmp/nccl_trace_rank_.

    Returns
    -------
    Report

    Raises
    ------
    CourseError
        One line: what is wrong with the files, and what to pass instead.
    """
    return judged(*read_folder(folder))


def judged(dumps, unread=None):
    """The report on dumps that have been read.

    Parameters
    ----------
    dumps : list of Dump
    unread : dict of int to str, optional
        {rank: why its dump could not be read}

    Returns
    -------
    Report
    """
    groups = _groups(dumps)
    states = [_state(d, groups) for d in dumps]
    headline = f"DUMPS of {ranks_named(d.rank for d in dumps)}, flight recorder {dumps[0].version}"
    found = hang(states, headline, kind="dumps", exit_code=0)
    unread = unread or {}
    absent = sorted((_expected(dumps, groups) | set(unread)) - {d.rank for d in dumps})
    for rule in (_first_difference, _unequal_counts, _not_begun, _nobody_waits, _finished_there):
        said = rule(dumps, states, groups, found)
        if said:
            found.culprits, found.why = said
            break
    waiting = [s for s in states if s.open]
    if absent and waiting and not found.culprits:
        who, call = ranks_named(s.rank for s in waiting), waiting[0].open
        waits = f"{who} wait{'s' * (len(waiting) == 1)} in number {call['seq']} ({named(call)})"
        found.culprits, found.why = absent, f"left no dump, and {waits}"
    found.notes += [f"no dump of rank {rank}" for rank in absent]
    found.notes += [*_uneven(states, groups), *_limits(dumps, groups), *unread.values()]
    return found


def _groups(dumps):
    """{(name, description): ranks} of all groups in which somebody called something."""
    callers = defaultdict(set)
    for d in dumps:
        for e in d.entries:
            callers[tuple(e["process_group"])].add(d.rank)
    groups = {}
    for (name, about), ranks in callers.items():
        told = [d.members[name] for d in dumps if d.rank in ranks and name in d.members]
        if about == DEFAULT_GROUP:
            told.append([d.rank for d in dumps])
        groups[name, about] = sorted(ranks.union(*told))
    return groups


def _expected(dumps, groups):
    """Ranks of the job, as far as the dumps know."""
    last = max(rank for ranks in groups.values() for rank in ranks) if groups else dumps[-1].rank
    world = max(d.world_size for d in dumps)
    told = {rank for d in dumps for ranks in d.members.values() for rank in ranks}
    return set(range(max(world, last + 1))) | told


def _label(group):
    name, about = group
    return name if about in ("undefined", "") else f"{name} ({about})"


def _state(dump, groups):
    """One rank's state: in its oldest call that isn't finished, or behind its last one."""
    open_calls = [e for e in dump.entries if not _finished(e)]
    call = (open_calls or dump.entries[-1:] or [None])[0]
    stack = _stack(call) if call else []
    counts = {
        _label(group): dump.called.get(group[0], 0)
        for group, ranks in groups.items()
        if dump.rank in ranks and (group[0] in dump.called or not dump.overwritten())
    }
    state = Dumped(dump.rank, "running", None, own_lines(stack), counts)
    if open_calls:
        opened = _call(call)
        # Sends and receives have numbers of their own.
        state.open = None if call.get("is_p2p") else opened
        name = opened["op"].split(":")[-1]
        state.call = waits_in(stack, opened) or name.split(" ")[0]
        if call.get("is_p2p"):
            state.notes.append(f"{name} of {opened['sizes']} is not finished")
    return state


def _finished(entry):
    return entry["retired"] or entry.get("state") == "completed"


def _call(entry):
    return {
        "op": entry["profiling_name"], "seq": entry["collective_seq_id"],
        "group": _label(entry["process_group"]), "sizes": entry["input_sizes"],
        "dtypes": entry.get("input_dtypes", []), "state": entry.get("state", ""),
    }  # fmt: skip


def _own(entry):
    return own_lines(_stack(entry))


def _stack(entry):
    """[[file, line, function, source], ...], outermost first; a source line if the file is here."""
    return [
        [f["filename"], f["line"], f["name"], linecache.getline(f["filename"], f["line"]).strip()]
        for f in reversed(entry.get("frames") or [])
    ]


# Rules of dumps alone. Each returns (culprits, why), or None to leave what the judge said.


def _first_difference(dumps, states, groups, found):
    """The first number at which members of a group called different things, finished or not."""
    for group in groups:
        calls = defaultdict(dict)
        for d in dumps:
            for e in d.entries:
                if tuple(e["process_group"]) == group and not e.get("is_p2p"):
                    calls[e["collective_seq_id"]][d.rank] = e
        for seq, by_rank in sorted(calls.items()):
            culprits, why = _differing({r: _call(e) for r, e in by_rank.items()}, states)
            if not culprits:
                continue
            found.notes += [
                f"rank {r} called number {seq} at {replace(s, call='it', lines=_own(e)).place()}"
                for s in states
                for r, e in by_rank.items()
                if r == s.rank and r in culprits and _own(e) != s.lines  # printed there
            ]
            if all(map(_finished, by_rank.values())) and _as_many(by_rank.values()):
                found.notes.append(
                    f"{why}; it ended all the same: elements met by position, whatever the shape"
                )
                continue
            return culprits, why + f", in group {_label(group)}" * (len(groups) > 1)
    return None


def _as_many(entries):
    """Whether these are the same call on the same number of elements."""
    called = {
        (e["profiling_name"], str(e.get("input_dtypes")), sum(map(prod, e["input_sizes"])))
        for e in entries
    }
    return len(called) == 1


def _differing(called, states):
    """The judge's word on calls that have the same number, by rank."""
    if len({str(c["dtypes"]) for c in called.values()}) > 1:
        for c in called.values():
            c["sizes"] = f"{c['sizes']} {', '.join(c['dtypes'])}"
    if len({(c["op"], str(c["sizes"])) for c in called.values()}) == 1:
        return [], ""
    there = [s for s in states if s.rank in called]
    return who_is_missing([replace(s, open=called[s.rank], call="it", counts={}) for s in there])


def _unequal_counts(dumps, states, groups, found):
    """Nothing is open, yet one has called more: its call failed, which counts as finished."""
    if any(s.call for s in states):
        return None
    ahead = []
    for d, s in zip(dumps, states):
        last = next((e for e in reversed(d.entries) if not e.get("is_p2p")), None)
        ahead.append(replace(s, open=_call(last), call="it") if last else s)
    culprits, why = who_is_missing(ahead)
    return (culprits, why) if "called" in why else None


def _not_begun(dumps, states, groups, found):
    """All have called it, but on some GPUs it waits for what is before it on the stream."""
    if found.culprits or not all(s.open for s in states):
        return None
    late = [s.rank for s in states if s.open["state"] == "scheduled"]
    if not late or len(late) == len(states):
        return None
    return late, (
        f"called number {states[0].open['seq']} as the others did, but the GPU has not begun it:"
        " something before it on the stream doesn't end"
    )


def _nobody_waits(dumps, states, groups, found):
    if any(s.call for s in states):
        return None
    return [], "no call is open: these ranks don't wait for each other in a collective"


def _finished_there(dumps, states, groups, found):
    """Who has finished what others are in has come to it, whatever it does now."""
    waiting = [s for s in states if s.open]
    idle = [s for s in states if s.rank in found.culprits and not s.call]
    if not waiting or not idle or len(idle) != len(found.culprits):
        return None
    group, seq = waiting[0].open["group"], waiting[0].open["seq"]
    if any(s.counts.get(group, 0) < seq for s in idle):
        return None
    who = ranks_named(s.rank for s in idle)
    return [], (
        f"{who} finished number {seq} in group {group} and rank {waiting[0].rank} did not:"
        " the dumps are of different moments, or the network"
    )


def _uneven(states, groups):
    """The counts of each group in which some ranks have called more than others."""
    notes = []
    for label in map(_label, groups):
        ranks = defaultdict(list)
        for s in states:
            if label in s.counts:
                ranks[s.counts[label]].append(s.rank)
        said = [f"{ranks_named(r)} called {n}" for n, r in sorted(ranks.items())]
        if len(said) > 1:
            notes.append(f"group {label}: {', '.join(said)} collectives")
    return notes


def _limits(dumps, groups):
    """What these dumps can't tell."""
    notes = []
    full = [d.rank for d in dumps if d.overwritten()]
    if full:
        notes.append(f"{ranks_named(full)}: older calls are overwritten (TORCH_FR_BUFFER_SIZE)")
    if not any(e.get("frames") for d in dumps for e in d.entries):
        notes.append("these dumps hold no stacks")
    for group, ranks in groups.items():
        told = group[1] == DEFAULT_GROUP or any(group[0] in d.members for d in dumps)
        if not told and len(ranks) < len(dumps):
            notes.append(
                f"group {_label(group)}: only {ranks_named(ranks)} called a collective in it;"
                " who else belongs to it gloo's recorder doesn't say"
            )
    return notes
