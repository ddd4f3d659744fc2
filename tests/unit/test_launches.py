"""Which scripts GPUs can run, and how: from lessons made up here, and from the course's own."""

import json
import sys

import pytest
from launch import ROOT

from ddp_course import launches

PROGRAM = 'if __name__ == "__main__":\n    main()\n'


@pytest.fixture
def course(tmp_path):
    """A function that writes a lesson of some cells, and scripts by name; returns the launches."""

    def write(*cells, **scripts):
        for folder in ("notebooks", "scripts"):
            (tmp_path / folder).mkdir()
        cells = [{"cell_type": "code", "source": source.splitlines(True)} for source in cells]
        (tmp_path / "notebooks/00_a.ipynb").write_text(json.dumps({"cells": cells}))
        for name, source in scripts.items():
            (tmp_path / "scripts" / f"{name}.py").write_text(source)
        return launches.on_gpus(tmp_path)

    return write


def line(script, ranks="plan.ranks", flags="--standalone"):
    return f"!torchrun {flags} --nproc-per-node {{{ranks}}} ../scripts/{script}.py"


def test_as_the_lesson_starts_it(course):
    found = course(
        line("grows"), line("two", "two"), line("four", "plan_4.ranks"),
        line("again", "two", "--standalone --max-restarts 1"),
        "!python ../scripts/s.py --ranks {n}",
        'hardware.plan(1)\n' + line("amp", "ranks"), 'on_nodes(\n    "node", ranks=2)',
        line("refuses"), "%%writefile ../scripts/x.py\n" + line("two"),
        grows=PROGRAM, two=PROGRAM, four=PROGRAM, again=PROGRAM, s=PROGRAM, amp=PROGRAM,
        node=PROGRAM, alone=PROGRAM, library="", refuses="if me.world_size < 2:\n" + PROGRAM,
    )  # fmt: skip
    assert {name: (launch.how, launch.least, launch.grows) for name, launch in found.items()} == {
        "grows": ("torchrun", 1, True), "two": ("torchrun", 2, False),
        "four": ("torchrun", 2, True), "again": ("torchrun", 2, False), "s": ("spawn", 2, False),
        "amp": ("torchrun", 1, True), "node": ("torchrun", 2, False), "alone": ("alone", 1, False),
        "refuses": ("torchrun", 2, True),
    }  # fmt: skip
    again, script = found["again"], str(found["again"].script)
    flags = ["--standalone", "--max-restarts", "1", "--nproc-per-node", "2"]
    assert again.command(2, "--x", 1) == ["torchrun", *flags, script, "--x", "1"]
    assert found["s"].command(2)[0] == sys.executable
    assert found["s"].command(2)[2:] == ["--ranks", "2"] and len(found["alone"].command(1)) == 2


def test_what_the_lesson_keeps_on_the_cpu(course):
    found = course(
        line("before"), "%env DDP_COURSE_DEVICE=cpu\n" + line("kept"), line("kept_too"),
        "%env DDP_COURSE_DEVICE={plan_4.device}\n" + line("after", "plan_4.ranks"),
        "!DDP_COURSE_DEVICE=cpu" + line("once")[1:].rjust(99), line("then"),
        'os.environ["DDP_COURSE_DEVICE"] = "cpu"\n' + line("before"), line("last"),
        line("14_killed", "two"),
        **{name: PROGRAM for name in ("before", "kept", "kept_too", "after", "once", "then", "last",
                                      "14_killed")},
    )  # fmt: skip
    assert set(found) == {"before", "after", "then", "14_killed"}


def test_what_a_script_keeps_on_the_cpu(course):
    forced = 'os.environ["DDP_COURSE_DEVICE"] = "cpu"\n' + PROGRAM
    asks = 'GPUS = 0 if os.environ.get("DDP_COURSE_DEVICE") == "cpu" else 1\n' + PROGRAM
    found = course(line("a"), line("b"), line("c"), a=forced, b='"cuda"\n' + forced, c=asks)
    assert {name: launch.gpus for name, launch in found.items()} == {"b": 4, "c": 1}


@pytest.mark.parametrize(
    "launch, ranks",
    [
        ({"how": "torchrun", "least": 1, "grows": True}, {1: 1, 2: 2, 3: 2, 4: 4, 8: 8, 16: 8}),
        ({"how": "torchrun", "least": 2, "grows": True}, {1: 2, 2: 2, 8: 8}),
        ({"how": "torchrun", "least": 2}, {1: 2, 2: 2, 8: 2}),
        ({"how": "alone", "least": 1}, {1: 1, 8: 1}),
    ],
)
def test_ranks(launch, ranks):
    launch = launches.Launch(ROOT / "a.py", **launch)
    assert {gpus: launch.ranks(gpus) for gpus in ranks} == ranks


def test_visible():
    assert launches.visible(2, {}) == "0,1"
    assert launches.visible(1, {"CUDA_VISIBLE_DEVICES": "3,5"}) == "3"


def test_the_course_s_own():
    found = launches.on_gpus()
    assert found["01_data_parallel"].how == "alone" and found["01_data_parallel"].gpus == 2
    assert found["03_own_ddp_check"].command(2)[-1] == "03_own_ddp_solution"
    assert found["14_killed"].flags == ("--standalone", "--max-restarts", "1")
    assert found["10_two_devices"].gpus == 4 and found["14_train"].least == 1
    assert found["07_amp"].least == 1 and found["07_overflow"].least == 2
    assert not {"05_ring_allreduce", "06_overlap", "12_hanging", "14_accelerate"} & set(found)
