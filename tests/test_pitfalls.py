"""Lesson 12's hangs and deaths: diagnose names the rank and the line.

That each case shows its symptom and is clean when fixed, and that the audit names the silent ones,
the lesson asserts itself.
"""

import re
import sys
import time

import pytest
from launch import ROOT, two_at_a_time

from ddp_course.tools import diagnose
from ddp_course.tools.diagnose.launch import Launch, signature
from ddp_course.tools.diagnose.report import hang, rank_state

BOTH = "DID NOT MEET: ranks 0, 1"
ONE = "DID NOT ARRIVE: rank 1"
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
STILL = 1.5  # seconds without a move, in a hang of 5
# Case: the headline, and the line that it names.
HANGS = {
    "unequal_batches": (BOTH, "dist.barrier(group)"),
    "only_on_rank_0": (BOTH, "dist.all_reduce(loss, group=group)"),
    "hidden_in_a_save": (BOTH, "optimizer.consolidate_state_dict(to=0)"),
    "early_stop": (BOTH, "dist.barrier(group)"),
    "skipped_batch": (BOTH, "dist.barrier(group)"),
    "swallowed_exception": (BOTH, "dist.barrier(group)"),
    "evaluated_on_rank_0": (BOTH, "model.eval()(torch.randn(8, 6))"),
    "other_order": (BOTH, "dist.broadcast(b, 0, group=group)"),
    "send_and_send": (f"{BOTH}: each waits for the other", "dist.send(mine, peer"),
}
# (script, case), which end their launch. Not slow_on_rank_0, whose second is over before a slow
# machine has looked: test_diagnose.py has the same with more time, "late".
DEATHS = {
    ("hanging", "unused_on_one_rank"): ("FAILED FIRST: rank 1: RuntimeError: Expected to have", ""),
    ("hanging", "group_on_some_ranks"): (
        f"{ONE}: did not come to new_group",
        "dist.barrier(group)",
    ),
    ("machinery", "detail"): ("killed by SIGSEGV", "DDP(nn.Linear(6, 2), process_group=group)"),
    ("loud", "other_shape_on_one_rank"): ("FAILED FIRST: rank 1: RuntimeError: [1]: params[0]", ""),
}
# DDP takes for a pointer what lies behind the wrapper: leftovers, which were a valid one, and DDP
# lived, in one launch of some hundred and fifty. So here memory is handed out full of nonsense.
NONSENSE = ["env", "GLIBC_TUNABLES=glibc.malloc.tcache_count=0:glibc.malloc.perturb=90"]


def names(report, headline, line, case):
    """Does the report say so, and place it in this case?"""
    named = report[report.index(headline) :].split("\n\n")[0]
    return line in named and re.search(rf"in ({case}|steps)\b", named)


def watch(folder, part):
    """{case: report} of half of the hangs: one launch, in which each lasts until its timeout."""
    found, seen, since = {}, None, 0.0
    script = [ROOT / "tests/workers/hanging.py", ROOT / "scripts/12_hanging.py", part, 2]
    watched = Launch([*LAUNCH, *map(str, script)], folder)
    try:
        while watched.process.poll() is None:
            time.sleep(0.2)
            alive = watched.alive()
            states = watched.states(alive)
            now = [signature(state) for state in states]
            if now != seen:
                seen, since = now, time.monotonic()
            elif len(states) == 2 and time.monotonic() - since > STILL:
                where = {frame[2] for state in states for frame in state["stack"]}
                for case in where & set(HANGS):
                    ranks = [rank_state(s, s["pid"] in alive) for s in states]
                    found.setdefault(case, str(hang(ranks, f"HANG: no move for {STILL} s")))
    finally:
        watched.end()
    assert watched.process.returncode == 0, watched.printed
    return found


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """{case: report} of all hangs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DDP_COURSE_RUNS", str(tmp_path_factory.mktemp("runs")))
        halves = two_at_a_time(lambda part: watch(tmp_path_factory.mktemp("watched"), part), (0, 1))
    return halves[0] | halves[1]


@pytest.mark.parametrize("case", HANGS)
def test_hang(reports, case):
    assert names(reports[case], *HANGS[case], case), reports[case]


def die(name):
    """Each alone, in a launch as a user types it."""
    family, case = name
    script = [ROOT / f"scripts/12_{family}.py", "--case", case]
    prefix = NONSENSE if case == "detail" else []
    return diagnose.run([*prefix, *LAUNCH, *map(str, script)], after=4)


@pytest.fixture(scope="module")
def deaths():
    return two_at_a_time(die, DEATHS)


@pytest.mark.parametrize("family, case", DEATHS)
def test_death(deaths, family, case):
    report = deaths[family, case]
    assert report.kind in ("crash", "hang") and report.exit_code not in (0, 2), report
    assert names(str(report), *DEATHS[family, case], case), str(report)
