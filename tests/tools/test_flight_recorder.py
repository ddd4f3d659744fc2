"""Dumps that this torch's flight recorder writes of a job that hangs; stored ones on any torch."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch._C._distributed_c10d as c10d

from ddp_course.tools.diagnose.__main__ import main
from ddp_course.tools.diagnose.flight_recorder import report

WORKER = Path(__file__).parent / "workers" / "fr_job.py"
STORED = Path(__file__).parents[1] / "unit" / "fr_dumps"
records = pytest.mark.skipif(
    not hasattr(c10d, "_dump_fr_trace"), reason="gloo has no flight recorder in this torch"
)


def dumped(case, folder, ranks):
    """Run the worker's case until each rank has dumped."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "2000"}
    job = [
        subprocess.Popen(
            [sys.executable, str(WORKER), case, str(folder)],
            env={**env, "RANK": str(rank), "WORLD_SIZE": str(ranks)},
        )
        for rank in range(ranks)
    ]
    try:
        for process in job:
            process.wait(120)
    finally:
        for process in job:
            process.kill()
    return folder / "dump_"


def line_of(text):
    return 1 + next(n for n, x in enumerate(WORKER.read_text().splitlines()) if text in x)


@records
def test_behind_in_a_group(tmp_path):
    found = report(dumped("subgroup", tmp_path, 4))
    assert found.culprits == [3]
    assert [s.call for s in found.ranks] == ["all_reduce"] * 3 + [None]
    assert found.ranks[2].open["sizes"] == [[7]]
    assert found.ranks[2].lines[-1][1] == line_of("torch.ones(7)")
    assert found.ranks[0].lines[-1][2] == "subgroup" and found.ranks[0].open["sizes"] == [[5]]
    # The same from the JSON form, but for the stacks.
    assert report(tmp_path / "json_").culprits == [3]


@records
@pytest.mark.parametrize(
    "case, why",
    [
        ("kinds", "number 2: rank 0: broadcast of [[4]]; rank 1: all_reduce of [[4]]"),
        ("sizes", "number 2: rank 0: all_reduce of [[4]]; rank 1: all_reduce of [[6]]"),
    ],
)
def test_ranks_that_disagree(case, why, tmp_path):
    found = report(dumped(case, tmp_path, 2))
    assert found.culprits == [0, 1] and why in found.why
    assert [s.lines[-1][2] for s in found.ranks] == [case, case]


def test_stored_dumps_need_no_recorder(capsys):
    """Torch 2.14.1 wrote them; the command line reads them on every torch."""
    assert main(["--fr", str(STORED / "backward")]) == 0
    said = capsys.readouterr().out
    assert "DID NOT ARRIVE: rank 1: called 7 collectives, rank 0 is in number 8" in said
    assert "in backward" in said


def test_one_line_for_a_folder_without_dumps(tmp_path, capsys):
    with pytest.raises(SystemExit) as left:
        main(["--fr", str(tmp_path)])
    assert left.value.code == 2
    assert "pass the folder of TORCH_FR_DUMP_TEMP_FILE" in capsys.readouterr().err
