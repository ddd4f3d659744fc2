"""Run the faults of lesson 12, all of a family in one launch or one by itself."""

import argparse
import gc
import traceback
from datetime import timedelta

import torch
import torch._dynamo  # DDP's constructor imports it: better now, see gc.freeze
import torch.distributed as dist

from ddp_course import results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

# How long a collective waits: when it will hang; when it works, or diagnose wants to look.
SHORT, LONG = timedelta(seconds=1), timedelta(seconds=25)


def main(name, cases, deadly=None):
    """Run a family's cases; call it under torchrun.

    Without ``--case`` every case runs twice, broken and fixed, each caught and noted, and the
    notes of all ranks go to runs/<name>.json. With ``--case NAME`` that case runs alone, broken
    unless ``--fixed``, and its error ends the launch as in real life.

    Parameters
    ----------
    name : str
        Of the result file.
    cases : dict of str to callable
        ``case(me, fixed, group)`` returns a dict of what it found, ready for JSON. Its group has
        all ranks and a short timeout, so that a case that hangs ends, and leaves the others alone.
    deadly : dict of str to callable, optional
        Cases that take the process or the numbering of groups with them: broken with ``--case``
        only, and last.
    """
    deadly = deadly or {}
    parser = argparse.ArgumentParser()
    parser.add_argument("--case", choices=[*cases, *deadly])
    parser.add_argument("--fixed", action="store_true")
    args = parser.parse_args()
    with process_group() as me:
        if args.case:
            found = _run((cases | deadly)[args.case], me, args.fixed, LONG)
            print(f"rank {me.rank}: {found}", flush=True)
            return
        gc.collect()
        gc.freeze()  # a collection after each case need not look at all of torch again
        found = {}
        for case, function in cases.items():
            broken, fixed = (_caught(function, me, fixed) for fixed in (False, True))
            found[case] = {"broken": broken, "fixed": fixed}
        mended = {case: _caught(function, me, True) for case, function in deadly.items()}
        ranks = gather(found)
        cases = {case: _by_rank(ranks, case) for case in cases}
        if me.rank == 0:
            print(f"{len(cases)} cases, each broken and fixed, on {me.world_size} ranks")
        results.save(name, {"cases": cases, "deadly, fixed": gather(mended)}, me.device)


def _run(case, me, fixed, timeout):
    group = dist.new_group(timeout=timeout)
    torch.manual_seed(0)
    try:
        return case(me, fixed, group)
    finally:
        gc.collect()  # DDP must let go of the group
        dist.destroy_process_group(group)


def _caught(case, me, fixed):
    """What the case returned; if it raised, its error as the last line of a traceback."""
    try:
        found = _run(case, me, fixed, LONG if fixed else SHORT)
    except (Exception, SystemExit) as error:
        traceback.clear_frames(error.__traceback__)
        found = {"error": f"{type(error).__name__}: {error}"}
    gc.collect()
    dist.barrier()
    return found


def _by_rank(ranks, case):
    return {kind: [found[case][kind] for found in ranks] for kind in ("broken", "fixed")}


def answers(report):
    """A report of `audit.watch` as JSON: {question: [answer, evidence]}, and its notes."""
    questions = {name: getattr(report, name) for name in ("split", "in_sync", "averaged")}
    found = {name: [verdict.answer, verdict.evidence] for name, verdict in questions.items()}
    return found | {"notes": report.notes}
