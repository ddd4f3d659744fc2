"""Launches that hang or die: diagnose names the rank and the line, and leaves nothing running."""

import re
import sys

import psutil
import pytest
from launch import ROOT, python, two_at_a_time

from ddp_course.tools import diagnose

STUCK = ROOT / "tests/workers/stuck.py"
# case: exit code, its headline, and the line of rank 1 (or what is said of it).
CASES = {
    "wait_for_data": (124, "DID NOT ARRIVE: rank 1", "queue.Queue().get()"),
    "deep_in_c": (124, "DID NOT ARRIVE: rank 1", "ctypes.PyDLL(None).pause()"),
    "one_less": (124, "DID NOT ARRIVE: rank 1: called 0 collectives", "dist.barrier()"),
    "leaves": (1, "DID NOT ARRIVE: rank 1: ended", "rank 1 has ended its script"),
    "bad_sample": (1, "FAILED FIRST: rank 1: KeyError: 'label'", '{}["label"]'),
    "killed": (1, "FAILED FIRST: rank 1: killed by SIGKILL", "last seen at"),
    # A race: its peer fails while it is at its exit, and torchrun may end it before it has a code.
    "says_and_exits": (
        1,
        "FAILED FIRST: rank 1: exit code 7 or DID NOT ARRIVE: rank 1: ended while others",
        "| no licence on this node",
    ),
    "late": (1, "DID NOT ARRIVE: rank 1", "queue.Queue().get()"),
}


def watched(case):
    """What diagnose said, and what still ran when it had ended."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, STUCK, case]
    words = ["-m", "ddp_course.diagnose", "--after", 4, "--", sys.executable, *launch]
    done = python(*words, env={"DDP_COURSE_DEVICE": "cpu"})
    lines = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    return done, [line for line in lines if f"{STUCK} {case}" in line]


@pytest.fixture(scope="module")
def ended():
    return two_at_a_time(watched, [*CASES, "fine"])


@pytest.mark.parametrize("case", CASES)
def test_case(ended, case):
    code, headline, line = CASES[case]
    done, left = ended[case]
    report = done.stdout.split("=" * 70)[1]
    assert done.returncode == code, done.stdout
    headlines = [words for words in headline.split(" or ") if words in report]
    assert headlines and line in report, report
    first = re.search(r"stuck\.py:\d+ in (\w+)", report[report.index(headlines[0]) :])
    assert case in ("leaves", "killed", "says_and_exits") or first[1] == case, report
    assert not left


def test_a_launch_that_is_fine(ended):
    done, left = ended["fine"]
    assert done.returncode == 0 and "=" * 70 not in done.stdout, done.stdout
    assert not left


def test_a_launch_that_is_ending_is_given_time():
    """All have ended, or one raised and torchrun ends the others: that is no hang."""
    waits, gone = rank(0, "all_reduce"), rank(1, "sleep", status="ended")
    assert diagnose.leaving({0: waits, 1: raised(1, "bad label", at=2.0)})
    assert diagnose.leaving({0: gone, 1: gone})
    assert not diagnose.leaving({0: waits, 1: gone}) and not diagnose.leaving({0: waits, 1: waits})


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "what shall I run?"),
        (["--", "no-such-command"], "there is no command no-such-command"),
        (["--after", "0", "--", "true"], "--after takes seconds, more than 0"),
    ],
)
def test_bad_command_line(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        diagnose.main(words)
    assert stop.value.code == 2 and message in capsys.readouterr().err


def test_a_launcher_that_fails_before_any_rank(capfd):
    assert diagnose.main(["--", sys.executable, "-c", "raise SystemExit(5)"]) == 5
    assert "FAILED before any rank had started" in capfd.readouterr().out


# --- the judgement, on what ranks might have written

STACK = {
    "all_reduce": ("/x/site-packages/torch/distributed/distributed_c10d.py", "all_reduce"),
    "send": ("/x/site-packages/torch/distributed/distributed_c10d.py", "send"),
    "new_group": ("/x/site-packages/torch/distributed/distributed_c10d.py", "new_group"),
    "sleep": ("/me/train.py", "sleeper"),
}


def rank(number, where, called=0, op=None, sizes=((4,),), group="0", status="running"):
    """A state; `op` is a collective that is not finished."""
    file, function = STACK[where]
    last = {"op": f"gloo:{op}", "seq": called, "group": group, "sizes": sizes, "finished": False}
    return {
        "rank": number, "pid": 100 + number, "status": status, "error": None, "time": 0.0,
        "world_size": 3, "stack": [["/me/train.py", 7, "main", ""], [file, 9, function, ""]],
        "collectives": {"counts": {group: called}, "last": last if op else None},
    }  # fmt: skip


def raised(number, text, at, file="/me/train.py"):
    """A state of a rank that raised RuntimeError in a file."""
    error = {"type": "RuntimeError", "text": text, "at": at, "stack": [[file, 3, "load", ""]]}
    return rank(number, "sleep") | {"status": "raised", "error": error}


@pytest.mark.parametrize(
    "states, exits, headline",
    [
        # An error of the script's own may sound like one of a peer.
        ([raised(0, "Connection reset by peer", 3.0, STACK["all_reduce"][0]),
          raised(1, "s3://data: Connection refused", 4.0)], {}, "FAILED FIRST: rank 1"),
        ([raised(0, "bad label", 2.0), raised(1, "no such file", 1.0)], {}, "FAILED FIRST: rank 1"),
        ([rank(0, "sleep"), rank(1, "sleep")], {101: -40}, "rank 1: killed by signal 40"),
        ([rank(0, "sleep"), rank(1, "sleep")], {100: -15, 101: -15}, "no rank said why"),
        ([raised(0, "Connection reset by peer", 3.0, STACK["all_reduce"][0]),
          rank(1, "sleep", status="ended")], {101: 7}, "FAILED FIRST: rank 1: exit code 7"),
        ([raised(0, "Timed out waiting 5ms", 3.0, STACK["all_reduce"][0]), rank(1, "sleep")], {},
         "FAILED: rank 0 waited in vain"),
    ],
)  # fmt: skip
def test_who_failed_first(states, exits, headline):
    report = diagnose.explain_crash({s["rank"]: s for s in states}, exits, {})
    assert headline in report[0], report


def test_one_that_left_may_have_said_why():
    """Its peer's connection is gone, so torchrun ends it before it has its exit code."""
    states = {0: raised(0, "Connection reset by peer", 3.0, STACK["all_reduce"][0]),
              1: rank(1, "sleep", status="ended")}  # fmt: skip
    report = diagnose.explain_crash(states, {100: 1, 101: -15}, {1: "no licence on this node\n"})
    assert report[1] == "DID NOT ARRIVE: rank 1: ended while others still needed it"
    told = report.index("    the last lines of rank 1's stderr:")
    assert report[told + 1] == "    | no licence on this node"


@pytest.mark.parametrize(
    "states, culprits, words",
    [
        ([rank(0, "all_reduce", 5, "all_reduce"), rank(1, "sleep", 4),
          rank(2, "all_reduce", 5, "all_reduce")], [1],
         "called 4 collectives, rank 0 is in number 5"),
        ([rank(0, "all_reduce", 5, "all_reduce"), rank(1, "all_reduce", 5, "all_reduce"),
          rank(2, "all_reduce", 5, "barrier", ())], [2], "disagree about collective number 5"),
        ([rank(0, "all_reduce", 5, "all_reduce"), rank(1, "all_reduce", 5, "all_reduce", ((9,),)),
          rank(2, "all_reduce", 5, "all_reduce")], [1], "all_reduce of ((9,),)"),
        ([rank(r, "send") for r in range(3)], [0, 1, 2], "each waits for the other"),
        ([rank(0, "new_group", 3), rank(1, "all_reduce", 4, "all_reduce"), rank(2, "new_group", 3)],
         [1], "did not come to new_group (it holds up ranks 0, 2)"),
        ([rank(0, "all_reduce", 5, "all_reduce"), rank(1, "sleep", 5, status="ended"),
          rank(2, "all_reduce", 5, "all_reduce")], [1], "ended while others still needed it"),
        ([rank(r, "sleep") for r in range(3)], [0, 1, 2], "no rank waits for another"),
        ([rank(r, "all_reduce", 5, "all_reduce") for r in range(3)], [], "same collective"),
        ([rank(0, "all_reduce", 5, "scatter"), rank(1, "all_reduce", 5, "scatter", ((4,), (4,))),
          rank(2, "all_reduce", 5, "scatter")], [], "same collective"),  # the root gives more
        ([rank(0, "all_reduce", 2, "all_reduce", group="a"), rank(1, "sleep"),
          rank(2, "all_reduce", 3, "barrier", (), group="b")], [1], "did not come to all_reduce"),
        ([rank(0, "all_reduce"), rank(1, "sleep"), rank(2, "all_reduce")], [1],
         "did not come to all_reduce, where rank 0 waits"),
    ],
)  # fmt: skip
def test_who_is_missing(states, culprits, words):
    found, why = diagnose.who_is_missing([diagnose.stand_of(s) for s in states])
    assert found == culprits and words in why
