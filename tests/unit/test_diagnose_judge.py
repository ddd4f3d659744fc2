"""diagnose's judgement, on what ranks might have written: nothing is launched."""

import sys

import pytest

from ddp_course.tools.diagnose import launch
from ddp_course.tools.diagnose.__main__ import main
from ddp_course.tools.diagnose.crash import crash, naming_lines
from ddp_course.tools.diagnose.identify import ranks_among
from ddp_course.tools.diagnose.judge import who_is_missing
from ddp_course.tools.diagnose.report import hang, rank_state
from ddp_course.tools.diagnose.stacks import own_lines

PACKAGES = "/x/lib/python3.11/site-packages"
C10D = f"{PACKAGES}/torch/distributed/distributed_c10d.py"
STACK = {
    "all_reduce": (C10D, "all_reduce"),
    "barrier": (C10D, "barrier"),
    "send": (C10D, "send"),
    "new_group": (C10D, "new_group"),
    "init": (C10D, "init_process_group"),
    "backward": (f"{PACKAGES}/torch/autograd/graph.py", "_engine_run_backward"),
    "sleep": ("/me/train.py", "sleeper"),
}
NO_RECORDER = {"unknown": "can't tell on torch 2.4: no flight recorder"}


def rank(number, where, called=0, op=None, sizes=((4,),), group="0", status="running", **more):
    """A state; `op` is a collective that is not finished."""
    file, function = STACK[where]
    last = {"op": f"gloo:{op}", "seq": called, "group": group, "sizes": sizes, "finished": False}
    return {
        "rank": number, "pid": 100 + number, "status": status, "error": None, "time": 0.0,
        "world_size": 3, "stack": [["/me/train.py", 7, "main", ""], [file, 9, function, ""]],
        "collectives": {"counts": {group: called}, "last": last if op else None}, **more,
    }  # fmt: skip


def raised(number, text, at, file="/me/train.py"):
    """A state of a rank that raised RuntimeError in a file."""
    error = {"type": "RuntimeError", "text": text, "at": at, "stack": [[file, 3, "load", ""]]}
    return rank(number, "sleep", status="raised", **{"error": error})


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
        # Rank 1 is behind, but it waits for rank 2 itself.
        ([rank(0, "all_reduce", 2, "all_reduce", collectives={"counts": {"a": 2, "b": 0}, "last":
            {"op": "x:barrier", "seq": 2, "group": "a", "sizes": (), "finished": False}}),
          rank(1, "all_reduce", collectives={"counts": {"a": 1, "b": 1}, "last":
            {"op": "x:barrier", "seq": 1, "group": "b", "sizes": (), "finished": False}}),
          rank(2, "sleep", collectives={"counts": {"b": 0}, "last": None})], [2],
         "called 0 collectives, rank 1 is in number 1"),
        # It ended, and nobody waits for it: not its fault.
        ([rank(0, "sleep"), rank(1, "sleep"), rank(2, "sleep", status="ended")], [0, 1, 2],
         "no rank waits for another"),
        ([rank(0, "all_reduce", 5, "all_reduce"), raised(1, "bad label", 1.0),
          rank(2, "all_reduce", 5, "all_reduce")], [1], "raised RuntimeError: bad label while"),
        # init_process_group
        ([rank(r, "init", endpoint="10.0.0.1:29500") for r in (0, 2)], [1],
         "and ranks 0, 2 wait in init_process_group at 10.0.0.1:29500"),
        ([rank(0, "init", world_size=1, endpoint="a:1"), rank(0, "init", pid=7, endpoint="a:1")],
         [0], "2 processes take themselves for rank 0 (pids 100, 7)"),
        ([rank(r, "init", endpoint=f"10.0.0.1:{r}") for r in range(3)], [0, 1, 2],
         "in different places: rank 0 asks 10.0.0.1:0; rank 1 asks 10.0.0.1:1"),
        ([rank(0, "init", endpoint="a:1"), rank(1, "init", endpoint="a:1", world_size=2)], [0, 1],
         "don't agree how many there are: rank 0: 3; rank 1: 2"),
        ([rank(r, "init", attempt=2, torchruns_store=True) for r in range(3)], [],
         "in attempt 2 after a restart: a known race for torchrun's own store; "
         "set TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1"),
        ([rank(r, "init", attempt=2) for r in range(3)], [],  # no such store on torch 2.4
         "in attempt 2 after a restart: is that address this machine, and free?"),
        ([rank(0, "init", endpoint="a:1"), rank(1, "sleep"), rank(2, "init", endpoint="a:1")], [1],
         "did not come to init_process_group at a:1 (it holds up ranks 0, 2)"),
        # Without a recorder the stacks alone decide.
        ([rank(0, "backward", collectives=NO_RECORDER), rank(1, "sleep", collectives=NO_RECORDER),
          rank(2, "backward", collectives=NO_RECORDER)], [1],
         "did not come to backward, where rank 0 waits"),
        ([rank(0, "barrier", collectives=NO_RECORDER), rank(1, "backward", collectives=NO_RECORDER),
          rank(2, "barrier", collectives=NO_RECORDER)], [0, 1, 2],
         "wait in different places: rank 0 in barrier; rank 1 in backward"),
        ([rank(r, "backward", collectives=NO_RECORDER) for r in range(3)], [],
         "all wait at the same line; can't tell on torch 2.4: no flight recorder"),
    ],
)  # fmt: skip
def test_who_is_missing(states, culprits, words):
    found, why = who_is_missing([rank_state(s) for s in states])
    assert found == culprits and words in why


def test_what_is_not_known_is_said():
    """Never "no collective called" where nothing counts them."""
    states = [rank(0, "backward", collectives=NO_RECORDER), rank(1, "sleep", collectives={})]
    text = str(hang([rank_state(s) for s in states], "HANG"))
    assert text.count("can't tell on torch 2.4: no flight recorder") == 1
    assert "rank 2 can't be seen from here" in text and text.count("not in a process group") == 1
    assert "no collective called" not in text


@pytest.mark.parametrize(
    "states, exits, headline",
    [
        # An error of the script's own may sound like one of a peer.
        ([raised(0, "Connection reset by peer", 3.0, C10D),
          raised(1, "s3://data: Connection refused", 4.0)], {}, "FAILED FIRST: rank 1"),
        ([raised(0, "bad label", 2.0), raised(1, "no such file", 1.0)], {}, "FAILED FIRST: rank 1"),
        ([rank(0, "sleep"), rank(1, "sleep")], {101: -40}, "rank 1: killed by signal 40"),
        ([rank(0, "sleep"), rank(1, "sleep")], {100: -15, 101: -15}, "no rank said why"),
        ([raised(0, "Connection reset by peer", 3.0, C10D), rank(1, "sleep", status="ended")],
         {101: 7}, "FAILED FIRST: rank 1: exit code 7"),
        ([raised(0, "Timed out waiting 5ms", 3.0, C10D), rank(1, "sleep")], {100: 1, 101: -15},
         "FAILED: rank 0 waited in vain"),
        # Nobody but the ranks' own files tells how they ended.
        ([raised(0, "Connection reset by peer", 3.0, C10D), rank(1, "sleep")], {},
         "FAILED FIRST: rank 1: gone without a word"),
    ],
)  # fmt: skip
def test_who_failed_first(states, exits, headline):
    assert headline in crash(states, exits, {}).headline


def test_one_that_left_may_have_said_why():
    """Its peer's connection is gone, so torchrun ends it before it has its exit code."""
    states = [raised(0, "Connection reset by peer", 3.0, C10D), rank(1, "sleep", status="ended")]
    report = crash(states, {100: 1, 101: -15}, {1: "no licence on this node\n"})
    assert report.culprits == [1] and report.why == "ended while others still needed it"
    assert "rank 1's stderr:\n    | no licence on this node" in str(report)


def test_a_fatal_error_in_a_collective_has_two_sides():
    fault = (
        "Fatal Python error: Aborted\n\nThread 0x1 (most recent call first):\n"
        f'  File "{C10D}", line 9 in all_reduce\n  File "/me/train.py", line 8 in <module>\n'
    )
    states = [rank(0, "sleep", 3), raised(1, "Connection closed by peer", 3.0, C10D)]
    report = crash(states, {}, {}, {100: fault})
    assert report.headline == "FAILED FIRST: rank 0: killed by SIGABRT (Aborted)"
    assert report.ranks[0].lines[-1][:2] == ["/me/train.py", 8]
    assert "then because of it: rank 1" in str(report) and "rank 1 raised" in str(report)


def test_lines_of_an_error_that_name_something_are_kept():
    advice = [f"advice number {n}" for n in range(20)]
    names = "Parameters which did not receive grad for rank 0: adapter.weight, adapter.bias"
    kept = naming_lines(["", *advice, names, "frame #1: c10::Error", "the last"])
    assert len(kept) == 8 and names in kept and kept[-1] == "the last"
    quoted = ["Original Traceback (most recent call last):",
              f'  File "{PACKAGES}/torch/utils/data/_utils/worker.py", line 3, in loop',
              "    data = fetch()", '  File "/me/data.py", line 5, in get', "    row['label']",
              "KeyError: 'label'"]  # fmt: skip
    assert naming_lines(quoted) == ['File "/me/data.py", line 5, in get', "row['label']",
                                    "KeyError: 'label'"]  # fmt: skip


def test_an_installed_package_is_the_users_code():
    own = [f"{PACKAGES}/mine/train.py", 3, "main", ""]
    torch = [C10D, 9, "all_reduce", ""]
    stdlib = ["/x/lib/python3.11/queue.py", 9, "get", ""]
    assert own_lines([["<frozen runpy>", 1, "_run", ""], own, torch]) == [own]
    assert own_lines([own, stdlib]) == [own]
    assert own_lines([["<string>", 1, "<module>", ""], stdlib, torch]) == [torch]


# --- which of the watched processes are ranks


def process(pid, ppid=1, **more):
    defaults = {
        "rank": None, "env_rank": None, "joined": False, "in_init": False, "index": None,
        "child": False, "launcher": False, "status": "running", "stack": [], "notes": [],
        "world_size": None, "start": pid, "time": 100 + pid,
    }  # fmt: skip
    return {"pid": pid, "ppid": ppid, **defaults, **more}


def found(states, gone=(), parents=None):
    alive = {s["pid"] for s in states} - set(gone)
    return [(s["rank"], s["pid"]) for s in ranks_among(states, alive, parents)]


def test_torchrun_and_the_ranks_helpers():
    agent = process(1, launcher=True, env_rank=0)  # some clusters give RANK to torchrun itself
    ranks = [process(n, 1, env_rank=n - 2, world_size=2) for n in (2, 3)]
    worker = process(4, 2, env_rank=0, world_size=2, child=True)
    behind_a_shell = process(5, 99, env_rank=1, world_size=2)
    states = [agent, *ranks, worker, behind_a_shell]
    assert found(states, parents={5: 99, 99: 3}) == [(0, 2), (1, 3)]


def test_a_launcher_that_has_rank_itself_spawns_the_ranks():
    """RANK is the number of the node in many an example."""
    node = process(1, env_rank=0, world_size=1)
    ranks = [process(n, 1, env_rank=0, rank=n - 2, joined=True, world_size=2) for n in (2, 3)]
    assert found([node, *ranks]) == [(0, 2), (1, 3)]


def test_children_that_did_not_come_are_ranks_by_guess():
    parent = process(1, launcher=True)
    came = process(2, 1, child=True, rank=1, in_init=True, world_size=3, index=1)
    silent = [process(n, 1, child=True, index=i, native_threads=1) for n, i in ((4, 2), (3, 0))]
    manager = process(
        5, 1, child=True, index=0, stack=[["/x/multiprocessing/managers.py", 1, "s", ""]]
    )
    states = ranks_among([parent, came, *silent, manager], {1, 2, 3, 4, 5})
    assert [(s["rank"], s["pid"]) for s in states] == [(0, 3), (1, 2), (2, 4)]
    assert "fork after threaded work" in states[0]["notes"][0] and "guess" in states[0]["notes"][1]
    silent[1]["stack"] = [
        ["/me/train.py", 3, "main", ""],
        ["/x/lib/python3.11/queue.py", 9, "", ""],
    ]
    states = ranks_among([parent, came, *silent], {1, 2, 3, 4})
    assert not any("fork after" in note for note in states[0]["notes"])


def test_only_the_newest_attempt_counts_and_two_at_once_are_seen():
    old = process(2, env_rank=0, world_size=2, status="raised")
    new = process(3, env_rank=0, world_size=2)
    assert found([old, new], gone=[2]) == [(0, 3)]
    both = [process(n, env_rank=0, rank=0, in_init=True, world_size=2) for n in (4, 5)]
    assert found(both) == [(0, 4), (0, 5)]


# --- the launch and the command line


def test_a_launch_that_is_ending_is_given_time():
    """All have ended, or one raised and torchrun ends the others: that is no hang."""
    waits, gone = rank(0, "all_reduce"), rank(1, "sleep", status="ended")
    assert launch.leaving([waits, raised(1, "bad label", at=2.0)], {100, 101})
    assert launch.leaving([gone, gone], {100, 101}) and launch.leaving([waits, gone], set())
    assert not launch.leaving([waits, gone], {100, 101})


@pytest.mark.parametrize(
    "words, message",
    [
        ([], "what shall I run?"),
        (["--", "no-such-command"], "there is no command no-such-command"),
        (["--after", "0", "--", "true"], "--after takes seconds, more than 0"),
        (["--fr", "dumps", "--", "true"], "they run no command"),
    ],
)
def test_bad_command_line(words, message, capsys):
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert stop.value.code == 2 and message in capsys.readouterr().err


def test_a_launcher_that_fails_before_any_rank(capfd):
    assert main(["--", sys.executable, "-c", "raise SystemExit(5)"]) == 5
    assert "FAILED before any rank had started" in capfd.readouterr().out
