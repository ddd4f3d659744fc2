"""What is saved comes back to the bit; what is damaged is passed over, in plain words."""

import json
import os
import random
import runpy
import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch
from launch import ROOT, torchrun
from torch.utils.data import DistributedSampler

from ddp_course import process_group
from ddp_course.tools import checkpoint
from ddp_course.tools.errors import CourseError


def model(width=1000):
    torch.manual_seed(0)
    return torch.nn.Linear(width, 1)


def save(folder, step, **kwargs):
    checkpoint.save(folder, step, {"model": model().state_dict(), "lr": 0.1}, **kwargs)


def steps(folder):
    return [int(p.name.split("-")[1]) for p in sorted(folder.glob("step-*.pt"))]


def file_of(folder, step):
    (path,) = folder.glob(f"step-{step:09}-*.pt")
    return path


def damage(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_comes_back(tmp_path):
    save(tmp_path / "new/folder", 7, mine={"rank": "own"})
    found = checkpoint.load(tmp_path / "new/folder")
    assert (found.step, found.world_size, found.mine) == (7, 1, {"rank": "own"})
    assert torch.equal(found.state["model"]["weight"], model().weight)
    assert found.state["lr"] == 0.1


def test_no_checkpoint_is_no_error(tmp_path):
    assert checkpoint.load(tmp_path) is None
    assert checkpoint.load(tmp_path / "not there") is None


def test_keeps_the_last(tmp_path):
    for step in range(1, 8):
        save(tmp_path, step, keep=3)
    assert steps(tmp_path) == [5, 6, 7]
    save(tmp_path, 8, keep=1)
    assert steps(tmp_path) == [8]
    save(tmp_path, 1_234_567_890_123)
    assert checkpoint.load(tmp_path).step == 1_234_567_890_123


def test_later_files_that_were_passed_over_push_nothing_out(tmp_path):
    for step in (10, 20, 30):
        save(tmp_path, step)
    for step in (20, 30):
        damage(file_of(tmp_path, step))
    assert checkpoint.load(tmp_path).step == 10
    save(tmp_path, 11, keep=2)
    assert steps(tmp_path) == [10, 11, 20, 30]
    save(tmp_path, 31, keep=2)  # past them: still the last two that are whole
    assert steps(tmp_path) == [11, 20, 30, 31]


@pytest.mark.parametrize("how", [damage, lambda p: p.write_bytes(p.read_bytes()[:100]),
                                 lambda p: p.write_bytes(b"")])  # fmt: skip
def test_damaged_is_passed_over(tmp_path, capsys, how):
    save(tmp_path, 1)
    save(tmp_path, 2)
    how(file_of(tmp_path, 2))
    assert checkpoint.load(tmp_path).step == 1
    assert "passed over: step-000000002" in capsys.readouterr().err
    how(file_of(tmp_path, 1))
    with pytest.raises(CourseError, match="no usable checkpoint .* damaged"):
        checkpoint.load(tmp_path)


def test_another_model_is_named(tmp_path):
    save(tmp_path, 1)
    for other, word in ((model(9), r"weight is \(1, 1000\), not \(1, 9\)"),
                        (torch.nn.Bilinear(1, 1, 1), "weight is")):  # fmt: skip
        with pytest.raises(CourseError, match=f"another model \\({word}"):
            checkpoint.load(tmp_path, fits=checkpoint.fits_model(other))
    with pytest.raises(CourseError, match="another model"):
        checkpoint.load(tmp_path, fits=checkpoint.fits_model(model(), key="weights"))
    assert steps(tmp_path) == [1]


def test_only_data_is_written_and_read(tmp_path):
    save(tmp_path, 1)
    with pytest.raises(CourseError, match=r"tensors, numbers.* pathlib\.PosixPath"):
        checkpoint.save(tmp_path, 2, {"path": Path("x")})
    assert [p.name for p in tmp_path.iterdir()] == [file_of(tmp_path, 1).name]
    torch.save({"path": Path("x")}, tmp_path / "made elsewhere")
    name = f"step-000000003-{checkpoint._digest(tmp_path / 'made elsewhere')}.pt"
    (tmp_path / "made elsewhere").rename(tmp_path / name)
    assert checkpoint.load(tmp_path).step == 1
    with pytest.raises(CourseError, match="data only"):
        checkpoint.save(tmp_path, 2, {"f": lambda: None})
    assert not (tmp_path / "draft.tmp").exists()


def test_the_checksum_is_of_what_was_written(tmp_path, monkeypatch):
    """And not of what the disk made of it."""
    fsync = os.fsync

    def broken(handle):
        if os.path.isfile(f"/proc/self/fd/{handle}"):
            os.pwrite(handle, b"\1", 700)
        fsync(handle)

    with open(tmp_path / "probe", "wb") as file:
        if not os.path.isfile(f"/proc/self/fd/{file.fileno()}"):
            pytest.skip("needs Linux's /proc")
    save(tmp_path, 1)
    monkeypatch.setattr(os, "fsync", broken)
    save(tmp_path, 2)
    assert checkpoint.load(tmp_path).step == 1


def test_all_nodes_must_see_the_same(tmp_path):
    for seen in ([["a"], []], [[], ["a"]]):
        with pytest.raises(CourseError, match="name a folder that all nodes share"):
            checkpoint._same(tmp_path, seen)
    checkpoint._same(tmp_path, [["a", "b"], ["b", "a"]])


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs Linux's /dev/full")
def test_full_disk(tmp_path):
    save(tmp_path, 1)
    (tmp_path / "draft.tmp").symlink_to("/dev/full")
    with pytest.raises(CourseError, match="step 2 .*No space left.* newest .* step 1"):
        save(tmp_path, 2)
    assert [p.name for p in tmp_path.iterdir()] == [file_of(tmp_path, 1).name]
    save(tmp_path, 2)
    assert checkpoint.load(tmp_path).step == 2


def test_read_only_folder(tmp_path):
    save(tmp_path, 1)
    if os.geteuid() == 0:  # root may write into any folder, but not onto a read-only mount
        mount = ["mount", "--bind", "-o", "ro", tmp_path, tmp_path]
        if subprocess.run(mount, capture_output=True).returncode:
            pytest.skip("root here, and mounting is not allowed")
        try:
            with pytest.raises(CourseError, match="Read-only file system.* newest .* step 1"):
                save(tmp_path, 2)
            assert checkpoint.load(tmp_path).step == 1
        finally:
            subprocess.run(["umount", tmp_path], check=True)
    else:
        tmp_path.chmod(0o555)
        with pytest.raises(CourseError, match="Permission denied.* newest .* step 1"):
            save(tmp_path, 2)
        tmp_path.chmod(0o755)


def test_generators_come_back():
    def draw():
        return torch.rand(3).tolist(), random.random(), np.random.rand(3).tolist()

    np.random.rand(1)  # in the middle of its block
    state = checkpoint.rng_state()
    first = draw()
    assert draw() != first
    checkpoint.set_rng_state(state)
    assert draw() == first


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


# --- the training of lesson 09


@pytest.fixture(scope="module")
def training():
    return runpy.run_path(str(ROOT / "scripts/09_train.py"))


@pytest.mark.parametrize("size, ranks", [(12, 2), (13, 4), (5, 4), (1437, 8)])
def test_sampler(training, size, ranks):
    """Unbroken it is torch's; broken anywhere, two parts of any split make the epoch."""
    for epoch in (0, 3):
        mine = [training["ResumableSampler"](size, r, ranks, seed=5) for r in range(ranks)]
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
