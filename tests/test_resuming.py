"""The training of lesson 09 goes on where it was, to the bit."""

import json
import runpy

import pytest
import torch
from launch import ROOT, torchrun
from torch.utils.data import DistributedSampler

from ddp_course import process_group
from ddp_course.tools.errors import CourseError


def test_a_restart_on_several_nodes_asks_for_the_variable(monkeypatch):
    world = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 1,
             "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 1, "DDP_COURSE_DEVICE": "cpu",
             "TORCHELASTIC_RESTART_COUNT": 1, "TORCHELASTIC_USE_AGENT_STORE": "True",
             "GROUP_WORLD_SIZE": 2}  # fmt: skip
    for name, value in world.items():
        monkeypatch.setenv(name, str(value))
    with (
        pytest.raises(SystemExit),
        pytest.MonkeyPatch.context() as quiet,
        process_group.process_group(),
    ):
        quiet.setattr(process_group, "_say", lambda error: None)


@pytest.fixture(scope="module")
def training():
    return runpy.run_path(str(ROOT / "scripts/09_train.py"))


@pytest.mark.parametrize("size, ranks", [(12, 2), (13, 4), (5, 4), (1437, 8)])
def test_sampler(training, size, ranks):
    """Unbroken it is torch's; broken anywhere, two parts of any split make the epoch."""
    for epoch in (0, 3):
        mine = [training["cells"]["ResumableSampler"](size, r, ranks, seed=5) for r in range(ranks)]
        torchs = [DistributedSampler(range(size), ranks, r, seed=5) for r in range(ranks)]
        for m, t in zip(mine, torchs):
            m.epoch = epoch
            t.set_epoch(epoch)
            assert list(m) == list(t)
        whole = [i for group in zip(*mine) for i in group]
        for drawn in range(0, size, ranks):
            for m in mine:
                m.drawn = drawn
            assert [i for group in zip(*mine) for i in group] == whole[drawn:]


def test_other_settings_are_refused(training):
    args = training["settings"](["--epochs", "1"])
    job = training["Job"](args, 0, 1, torch.device("cpu"))
    state = job.state()
    args.batch = 32
    with pytest.raises(CourseError, match="'batch': 64"):
        training["Job"](args, 0, 1, torch.device("cpu")).restore(state)


def test_killed_while_it_writes(tmp_path):
    """Rank 0 dies before the renaming: the checkpoint before it is used, and the bits agree."""
    script, digests = ROOT / "scripts/09_train.py", []
    for name, args in (("whole", []), ("killed", ["--kill-in-save", "20"])):
        env = {"DDP_COURSE_RUNS": str(tmp_path), "DDP_COURSE_DEVICE": "cpu"}
        args = ["--epochs", "2", "--folder", tmp_path / name, *args]
        done = torchrun(
            script, *args, ranks=1, env=env, flags=["--standalone", "--max-restarts", "1"]
        )
        assert done.returncode == 0, done.stdout
        (rank,) = json.loads((tmp_path / "09_train.json").read_text())["ranks"]
        assert rank["last"] == 46 and rank["first"] == (10 if name == "killed" else 0)
        digests.append(rank["digest"])
    assert digests[0] == digests[1]
