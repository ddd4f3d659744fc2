"""The report on a launch that failed: whose error came first and is a rank's own."""

import re
import signal

from ddp_course.tools.diagnose.judge import disagreement, ranks_named, who_is_missing
from ddp_course.tools.diagnose.report import RankError, Report, rank_state
from ddp_course.tools.diagnose.stacks import BUILT_AT, is_library, main_stack, of_communication

# Errors that only say that some other rank left or did not come.
OF_A_PEER = re.compile(
    "Connection (closed|reset) by peer|Broken pipe|Timed out waiting|wait timeout|pair closure"
    "|got 0 bytes|recvValue failed|Failed to recv|remote process exited|ncclRemoteError"
    "|ollective operation timeout|operations have failed or timed out|monitoredBarrier"
    "|closed the connection|Connection refused|Socket Timeout|clients joined|Timed out after",
    re.IGNORECASE,
)
# Lines of an error that tell names come before those that give advice.
NAMES = re.compile(
    r"did not receive grad|marked as ready|with name|[Mm]issing|[Uu]nexpected|mismatch|not found"
    r"|\w+\.(weight|bias)\b|\w*(Error|Exception)\b: "
)
NOISE = re.compile(
    r"^\s*$|^frame #\d+|^Exception raised from|^\s*[~^]+\s*$|^Traceback|^Original Tr"
)
GONE = "gone"
DETAILS, WIDTH = 8, 400  # lines of one error, and characters of a line
SIGNALS = {sign.value: sign.name for sign in signal.Signals}
FATAL = {"Segmentation fault": "SIGSEGV", "Aborted": "SIGABRT", "Bus error": "SIGBUS",
         "Floating point exception": "SIGFPE", "Illegal instruction": "SIGILL"}  # fmt: skip


def crash(states, exits, said, faults=None, exit_code=1):
    """The report when the launch failed.

    Parameters
    ----------
    states : list of dict
        What the probe wrote in each rank.
    exits : dict of pid to exit code
        From the launcher's report; negative: the signal it died of.
    said : dict of rank to str
        What the rank printed on stderr.
    faults : dict of pid to str, optional
        What faulthandler wrote in the process: where a fatal error or a signal found it.
    exit_code : int

    Returns
    -------
    Report
    """
    faults = faults or {}
    if not states:
        headline = "FAILED before any rank had started: see above what the launcher says"
        return Report("crash", headline, exit_code=exit_code)
    known = [
        (s, _code(s, exits, said, faults), said.get(s["rank"], ""), faults.get(s["pid"], ""))
        for s in states
    ]
    ranks = [_stand(*x) for x in known]
    ends = [_end(*x) for x in known]
    failed = sorted((e for e in ends if e), key=lambda e: (e.of_a_peer, e.at))
    report = Report("crash", ranks=ranks, errors=failed, exit_code=exit_code)
    if not failed:
        report.headline = "FAILED, but no rank said why: see above what the launcher says"
        return report
    first = failed[0]
    if first.of_a_peer:
        report.headline = f"FAILED: {ranks_named(e.rank for e in failed)} waited in vain"
        report.culprits, report.why = who_is_missing(ranks)
        # One that left may have said why. Its exit code is lost if torchrun ended it meanwhile.
        left = {s["rank"] for s in states if s["status"] == "ended"} - {e.rank for e in failed}
        report.notes += [x for rank in sorted(left) for x in last_words(said.get(rank, ""), rank)]
        return report
    report.headline = f"FAILED FIRST: rank {first.rank}: {first.what}"
    report.culprits = [first.rank]
    stands = next(s for s in ranks if s.rank == first.rank)
    # An error of a collective has two sides: what did the others call?
    report.all_sides = bool(stands.call) or "collective" in first.what
    if report.all_sides and (found := disagreement(ranks)):
        report.notes.append(found[1])
    return report


def _code(state, exits, said, faults):
    """Its exit code, negative for a signal; GONE if it left no trace at all; None if unknown."""
    if state["pid"] in exits or state["error"]:
        return exits.get(state["pid"])
    if died := _fatal(faults.get(state["pid"], "") + "\n" + said.get(state["rank"], "")):
        return -signal.Signals[FATAL[died]].value if died in FATAL else None
    left_no_word = state["status"] == "running" and not faults.get(state["pid"])
    return GONE if left_no_word and not exits else None


def _fatal(text):
    found = re.search(r"^Fatal Python error: (.*)", text, re.MULTILINE)
    return found[1] if found else None


def _stand(state, code, said, fault):
    """Its state, with the stack at a fatal error or at the launcher's SIGTERM, where there is one.

    A rank that torchrun ended because of another was running.
    """
    stack = None if state["error"] else main_stack(fault) or main_stack(said)
    gone = code in (GONE, -signal.SIGKILL)
    stand = rank_state({**state, "stack": stack or state["stack"]}, alive=not gone)
    stand.exact = bool(stack or state["error"])
    return stand


def _end(state, code, said, fault):
    """How a rank ended: a RankError, or None if well."""
    error, details, words = state["error"], [], []
    if error:
        first, *rest = error["text"].strip().split("\n")
        what = f"{error['type']}: {re.sub(BUILT_AT, '', first)}"
        text, details = error["text"], naming_lines(rest) + error.get("causes", [])
    elif code == GONE:
        what = "gone without a word: SIGKILL (by hand, or memory ran out: see dmesg), or os._exit"
        text, words = what, last_words(said)
    elif code is not None and code < 0:
        name = SIGNALS.get(-code, f"signal {-code}")
        if name == "SIGTERM":  # the launcher ends the others so
            return None
        what = f"killed by {name}"
        if name == "SIGKILL":
            what += ": by hand, or by the kernel when memory ran out (see dmesg)"
        abort = re.findall(r"^ *what\(\): +(.*)", said, re.MULTILINE)
        abort += [x] if (x := _fatal(fault + "\n" + said)) else []
        if abort:
            what += f" ({'; '.join(re.sub(BUILT_AT, '', x) for x in abort)})"
        text, words = what, last_words(said)
    elif code:
        text = (said.strip().splitlines() or ["without a word"])[-1]
        what, words = f"exit code {code}: {text}", last_words(said)
    else:
        return None
    of_a_peer = bool(OF_A_PEER.search(text)) and (not error or of_communication(error["stack"]))
    at = error["at"] if error else state["time"]
    return RankError(state["rank"], what, at, of_a_peer, details, words)


def naming_lines(lines):
    """Of the further lines of an error those that tell most, in their order, cut to size."""
    told = [
        x.strip() for n, x in enumerate(lines) if not NOISE.search(x) and not _of_torch(lines, n)
    ]
    told = [re.sub(BUILT_AT, "", x) for x in told]
    if len(told) > DETAILS:
        last = len(told) - 1
        order = sorted(range(len(told)), key=lambda n: (n != last and not NAMES.search(told[n]), n))
        told = [told[n] for n in sorted(order[:DETAILS])]
    return [x if len(x) <= WIDTH else x[:WIDTH] + " …" for x in told]


def _of_torch(lines, n):
    """In a traceback that the error quotes: is it a frame of torch's or Python's, or its source?"""
    for line in (lines[n], lines[n - 1] if n else ""):
        frame = re.match(r'\s+File "(.*)", line \d+', line)
        if frame:
            return is_library(frame[1])
    return False


def last_words(text, rank=None):
    """The end of what a rank printed on stderr, before the stacks of a fatal error."""
    tail = re.sub(BUILT_AT, "", text.split("Fatal Python error")[0]).strip().splitlines()[-8:]
    if rank is None or not tail:
        return tail
    return [f"    the last lines of rank {rank}'s stderr:", *(f"    | {x}" for x in tail)]
