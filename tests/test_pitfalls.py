"""Lesson 12's cases alone, as in real life: diagnose names the rank and the line.

That each case shows its symptom and is clean when fixed, and that the audit names the silent ones,
the lesson asserts itself. Here is what needs a launch for each case.
"""

import re
import sys

import pytest
from launch import ROOT, python

BOTH = "DID NOT MEET: ranks 0, 1"
ONE = "DID NOT ARRIVE: rank 1"
# (script, case): the headline, and the function or the line that it names.
CASES = {
    ("hanging", "unequal_batches"): (BOTH, "dist.barrier(group)"),
    ("hanging", "only_on_rank_0"): (BOTH, "dist.all_reduce(loss, group=group)"),
    ("hanging", "hidden_in_a_save"): (BOTH, "optimizer.consolidate_state_dict(to=0)"),
    ("hanging", "skipped_batch"): (BOTH, "dist.barrier(group)"),
    ("hanging", "swallowed_exception"): (BOTH, "dist.barrier(group)"),
    ("hanging", "evaluated_on_rank_0"): (BOTH, "model.eval()(torch.randn(8, 6))"),
    ("hanging", "slow_on_rank_0"): ("DID NOT ARRIVE: rank 0", "time.sleep(3)"),
    ("hanging", "other_order"): (BOTH, "dist.broadcast(b, 0, group=group)"),
    ("hanging", "send_and_send"): (f"{BOTH}: each waits for the other", "dist.send(mine, peer"),
    ("hanging", "unused_on_one_rank"): ("FAILED FIRST: rank 1: RuntimeError: Expected to have", ""),
    ("hanging", "group_on_some_ranks"): (
        f"{ONE}: did not come to new_group",
        "dist.barrier(group)",
    ),
    ("machinery", "detail"): ("killed by SIGSEGV", "DDP(nn.Linear(6, 2), process_group=group)"),
    ("loud", "other_shape_on_one_rank"): ("FAILED FIRST: rank 1: RuntimeError: [1]: params[0]", ""),
}


@pytest.mark.parametrize("family, case", CASES)
def test_diagnosed(family, case):
    headline, line = CASES[family, case]
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2]
    script = [ROOT / f"scripts/12_{family}.py", "--case", case]
    watch = ["-m", "ddp_course.diagnose", "--after", 4, "--", sys.executable]
    done = python(*watch, *launch, *script)
    assert done.returncode not in (0, 2), done.stdout
    report = done.stdout.split("=" * 70)[1]
    named = report[report.index(headline) :].split("\n\n")[0]
    assert line in named and re.search(rf"in ({case}|steps)\b", named), report
