"""What is known about each rank of a launch, and what follows from it: who did not arrive, and why.

Pure: nothing here looks at a process. `judge` says who is missing, from the states of the ranks.
"""

import re
from dataclasses import dataclass, field

from ddp_course.tools.diagnose.judge import named, ranks_named, unseen_ranks, who_is_missing
from ddp_course.tools.diagnose.stacks import BUILT_AT, own_lines, short, waits_in


@dataclass
class RankState:
    """Where one rank stands.

    Attributes
    ----------
    rank : int
    status : str
        running, raised, ended, or "killed" (its process is gone without a word).
    call : str or None
        What it waits for other ranks in: "all_reduce", "backward", ...; None if it doesn't.
    lines : list of [file, line, function, source]
        Frames of the user's own code, outermost first.
    counts : dict
        {group: collectives called}; empty where nothing counts them.
    open : dict or None
        The oldest collective that has not finished: {"op", "seq", "group", "sizes"}.
    unknown : str
        Why counts and open collectives can't be told; "" if they can.
    error : str
        The error that ended its script, "" without one.
    pid, world_size : int or None
    attempt : int
        How often the launcher has restarted the ranks before.
    endpoint : str or None
        Where it asks for the others while it waits in init_process_group.
    torchruns_store : bool
        Whether the ranks meet in torchrun's own store, which outlives an attempt.
    notes : list of str
        What else is to be said of it, printed below its lines.
    exact : bool
        Whether `lines` are of its last moment; else up to half a second older.
    """

    rank: int
    status: str
    call: str | None
    lines: list
    counts: dict = field(default_factory=dict)
    open: dict | None = None
    unknown: str = ""
    error: str = ""
    pid: int | None = None
    world_size: int | None = None
    attempt: int = 0
    endpoint: str | None = None
    torchruns_store: bool = False
    notes: list = field(default_factory=list)
    exact: bool = True

    def place(self):
        """Its innermost line, as file:line in function: source."""
        if not self.lines:
            return "somewhere outside of the script"
        file, line, function, source = self.lines[-1]
        return f"{short(file)}:{line} in {function}" + (f":  {source}" if source else "")

    def callers(self):
        frames = self.lines[-2::-1]
        return [f"        called from {short(f[0])}:{f[1]} in {f[2]}" for f in frames]

    def does(self):
        if self.status == "ended":
            return "has ended its script"
        if self.status == "killed":
            return "is gone; it last stood"
        if self.status == "raised":
            return f"raised {self.error}"
        if self.call:
            return f"waits in {self.call}"
        return "stands" if self.unknown else "does not wait for anybody; it stands"

    def counted(self):
        if self.unknown:
            return self.unknown
        if not self.counts and not self.open:
            return "not in a process group"
        many = sum(map(bool, self.counts.values())) > 1
        said = [
            f"{called} collectives called" + f" in group {group}" * many
            for group, called in self.counts.items()
            if called
        ]
        if self.open:
            said.append(f"number {self.open['seq']}, {named(self.open)}, is not finished")
        return "; ".join(said) or "no collective called"

    def describe(self):
        """A few lines: what it does, where, how many collectives."""
        if self.status == "ended":
            return [f"rank {self.rank} {self.does()}", *(f"    {x}" for x in self.notes)]
        lines = [f"rank {self.rank} {self.does()} at", f"    {self.place()}", *self.callers()]
        return lines + [f"    {x}" for x in (self.counted(), *self.notes)]


@dataclass
class RankError:
    """How a rank ended.

    Attributes
    ----------
    rank : int
    what : str
        The error's kind and first line, or the signal.
    at : float
        When, in seconds since the epoch; infinite if it isn't known.
    of_a_peer : bool
        It only says that another rank left or did not come.
    details : list of str
        Further lines of the same error that name something.
    last_words : list of str
        The end of what the rank printed on stderr, where no Python error says more.
    """

    rank: int
    what: str
    at: float = float("inf")
    of_a_peer: bool = False
    details: list = field(default_factory=list)
    last_words: list = field(default_factory=list)


@dataclass
class Report:
    """What a launch came to.

    Attributes
    ----------
    kind : str
        "ok", "hang", "crash", "stopped" (by Ctrl-C), "dumps" or "attached" (nothing ended here), or
        "moving" (attached to ranks that are no hang).
    headline : str
    culprits : list of int
        Ranks that did not arrive, or that failed first; empty if it can't be told.
    why : str
    ranks : list of RankState
        One a rank, in order.
    errors : list of RankError
        The first cause first.
    notes : list of str
        What holds for the launch as a whole.
    exit_code : int
        That of the launch; 124 if it hung and was ended.
    all_sides : bool
        Whether the text shows the other ranks of a crash, too.
    """

    kind: str
    headline: str = ""
    culprits: list = field(default_factory=list)
    why: str = ""
    ranks: list = field(default_factory=list)
    errors: list = field(default_factory=list)
    notes: list = field(default_factory=list)
    exit_code: int = 0
    all_sides: bool = False

    def __str__(self):
        lines = [self.headline, *self.verdict(), *self._first()]
        lines += [*([] if self.why else self._others()), *self.notes, ""]
        for state in self._described():
            lines += state.describe()
        return "\n".join([*lines, *(self._others() if self.why else [])]).strip()

    def _described(self):
        """All where nobody failed by himself; of a crash in a collective the other sides."""
        if self.why or not self.errors:
            return self.ranks if self.why else []
        own = {e.rank for e in self.errors if not e.of_a_peer}
        return [s for s in self.ranks if self.all_sides and s.rank not in own]

    def verdict(self):
        """Who did not arrive, with the line each of them stands at."""
        if not self.why or self.kind == "moving":
            return []
        if not self.culprits:
            return [f"DID NOT ARRIVE: can't tell; {self.why}"]
        all_of_them = {s.rank for s in self.ranks} <= set(self.culprits)
        verb = "MEET" if all_of_them else "ARRIVE"
        lines = [f"DID NOT {verb}: {ranks_named(self.culprits)}: {self.why}"]
        for s in self.ranks:
            if s.rank in self.culprits and s.status != "ended":
                lines.append(f"    rank {s.rank} at {s.place()}")
        return lines

    def _first(self):
        """Where the first error came, if it is the headline."""
        if self.why or not self.errors:
            return []
        error = self.errors[0]
        state = next(s for s in self.ranks if s.rank == error.rank)
        lines = [f"    {'at' if state.exact else 'last seen at'} {state.place()}"]
        return lines + state.callers() + _details(error)

    def _others(self):
        lines = []
        for error in self.errors if self.why else self.errors[1:]:
            after = "" if self.why else f"then {'because of it' if error.of_a_peer else 'too'}: "
            known = not self.why and error.what == self.errors[0].what
            lines.append(f"{after}rank {error.rank}: {'the same' if known else error.what}")
            lines += [] if error.of_a_peer else _details(error, self.errors[0].details * known)
        return lines


def _details(error, but=()):
    lines = [f"    | {x}" for x in error.details if x not in but]
    if error.last_words:
        lines.append("    the last lines of its stderr:")
        lines += [f"    | {x}" for x in error.last_words]
    return lines


def rank_state(state, alive=True):
    """The `RankState` of a rank, from what the probe wrote in it."""
    error, known = state.get("error"), state.get("collectives") or {}
    stack = error["stack"] if error else state["stack"]
    last, unknown = known.get("last"), known.get("unknown", "")
    # A collective that raised counts as finished.
    unfinished = last if last and (not last["finished"] or error) else None
    status = state["status"]
    if status == "running" and not alive:
        status = "killed"
    waits = None if status == "ended" else waits_in(stack, unfinished, recorded=not unknown)
    return RankState(
        state["rank"], status, waits, own_lines(stack), known.get("counts", {}), unfinished,
        unknown=unknown, error=_first_line(error) if error else "",
        pid=state.get("pid"), world_size=state.get("world_size"),
        attempt=state.get("attempt", 0), endpoint=state.get("endpoint"),
        torchruns_store=state.get("torchruns_store", False),
        notes=list(state.get("notes", [])),
    )  # fmt: skip


def _first_line(error):
    text = re.sub(BUILT_AT, "", error["text"]).strip().split("\n")[0]
    return f"{error['type']}: {text if len(text) < 200 else text[:200] + ' …'}"


def hang(ranks, headline, kind="hang", exit_code=124):
    """The report on ranks of which none moves.

    Parameters
    ----------
    ranks : list of RankState
    headline : str

    Returns
    -------
    Report
    """
    ranks = sorted(ranks, key=lambda s: s.rank)
    culprits, why = who_is_missing(ranks)
    unseen = unseen_ranks(ranks)
    notes = []
    if unseen and unseen != culprits:
        notes.append(
            f"{ranks_named(unseen)} can't be seen from here: on another node, or not started"
        )
    return Report(kind, headline, culprits, why, ranks, notes=notes, exit_code=exit_code)
