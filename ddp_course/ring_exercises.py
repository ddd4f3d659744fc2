"""Is a reader's all-reduce schedule right? If not: which step, rank and chunk is to blame."""

from ddp_course.tools.errors import CourseError


def check(steps, n, chunks=None):
    """Replay somebody's schedule on fresh buffers, and stop where the first damage shows.

    Parameters
    ----------
    steps : list of list of (src, dst, chunk, op)
        A list for each step, a tuple for each message; op is "add" or "copy".
    n : int
        Ranks, 64 at most.
    chunks : int, optional
        Parts of the buffer; by default n.

    Returns
    -------
    (int, int)
        Steps, and chunks sent by the rank that sends most.

    Raises
    ------
    AssertionError
        With the number of the step (from 0), the rank and the chunk, and what is wrong; where an
        earlier step is to blame, with that step, too.
    CourseError
        n is above 64.
    """
    if n > 64:
        raise CourseError(f"the checker keeps 64 contributions apart, not {n}: check fewer ranks")
    chunks = n if chunks is None else chunks
    try:
        steps = [list(step) for step in steps]
    except TypeError:
        raise AssertionError("not a schedule: return a list of steps, each a list") from None
    steps = [[_message(s, m, n, chunks) for m in step] for s, step in enumerate(steps)]
    parts = [[{r} for _ in range(chunks)] for r in range(n)]
    carried = {}  # (chunk, whose): (step, receiver) of the last message it was in
    sent = [0] * n
    for s, step in enumerate(steps):
        before = [[set(p) for p in row] for row in parts]
        written = {}
        for src, dst, chunk, op in step:
            if (dst, chunk) in written:
                raise AssertionError(
                    f"step {s}: rank {written[dst, chunk]} and rank {src} both write "
                    f"chunk {chunk} of rank {dst}: one of the two would be lost"
                )
            written[dst, chunk] = src
            sent[src] += 1
            cargo = before[src][chunk]
            if op == "copy" and len(cargo) < n:
                finished = [c for c in range(chunks) if len(before[src][c]) == n]
                raise AssertionError(
                    f"step {s}: rank {src} sends what it does not have: its chunk {chunk} is not "
                    f"the finished sum, it lacks {_ranks(set(range(n)) - cargo)}. "
                    f"Finished on rank {src}: chunks {finished}. "
                    + _where_it_stuck(steps, carried, chunk, set(range(n)) - cargo)
                )
            twice = cargo & before[dst][chunk]
            if op == "add" and twice:
                raise AssertionError(
                    f"step {s}: rank {src} adds its chunk {chunk} to rank {dst}'s, and both hold "
                    f"what {_ranks(twice)} put in: that would count twice"
                )
            parts[dst][chunk] = cargo | before[dst][chunk] if op == "add" else set(cargo)
            if op == "add":
                carried.update({(chunk, who): (s, dst) for who in cargo})
    for r in range(n):
        for chunk in range(chunks):
            missing = set(range(n)) - parts[r][chunk]
            if missing:
                holders = [q for q in range(n) if len(parts[q][chunk]) == n]
                raise AssertionError(
                    f"after {len(steps)} steps chunk {chunk} of rank {r} lacks "
                    f"{_ranks(missing)}. "
                    + (f"Rank {holders[0]} has the finished sum: nobody sends it to rank {r}"
                       if holders else _where_it_stuck(steps, carried, chunk, missing))
                )  # fmt: skip
    return len(steps), max(sent)


def _message(s, message, n, chunks):
    try:
        src, dst, chunk, op = message
        src, dst, chunk = int(src), int(dst), int(chunk)
    except (TypeError, ValueError):
        raise AssertionError(
            f"step {s}: {message!r} is not a message: write (src, dst, chunk, 'add' or 'copy')"
        ) from None
    if not (0 <= src < n and 0 <= dst < n):
        raise AssertionError(f"step {s}: no such rank in {message}: they go from 0 to {n - 1}")
    if not 0 <= chunk < chunks:
        raise AssertionError(f"step {s}: no such chunk in {message}: 0 to {chunks - 1}")
    if src == dst:
        raise AssertionError(f"step {s}: rank {src} sends chunk {chunk} to itself")
    if op not in ("add", "copy"):
        raise AssertionError(f"step {s}: {op!r} in {message}: write 'add' or 'copy'")
    return src, dst, chunk, op


def _where_it_stuck(steps, carried, chunk, missing):
    """The wrong step is often an earlier one: where a contribution came to and went no further."""
    stuck = [(*carried[chunk, w], w) for w in missing if (chunk, w) in carried]
    if not stuck:
        who = min(missing)
        return f"Nobody has sent chunk {chunk} on from rank {who}"
    s, holder, who = min(stuck)
    then = [c for src, _, c, _ in (steps[s + 1] if s + 1 < len(steps) else []) if src == holder]
    sends = f"sends chunk {then[0]}" if then else "sends nothing"
    return (
        f"Rank {who}'s part of it came to rank {holder} in step {s} and no further: "
        f"in step {s + 1} rank {holder} {sends}"
    )


def _ranks(some):
    return ("rank " if len(some) == 1 else "ranks ") + ", ".join(map(str, sorted(some)))
