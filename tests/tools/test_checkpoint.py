"""What is saved comes back to the bit; what is damaged is passed over, in plain words."""

import gc
import os
import random
import shutil
import subprocess
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from launching import elastic

from ddp_course.tools import checkpoint
from ddp_course.tools.collectives import leave_group
from ddp_course.tools.errors import CourseError

try:
    import numpy as np
except ImportError:
    np = None


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
        return torch.rand(3).tolist(), random.random(), np and np.random.rand(3).tolist()

    np and np.random.rand(1)  # in the middle of its block
    state = checkpoint.rng_state()
    first = draw()
    assert draw() != first
    checkpoint.set_rng_state(state)
    assert draw() == first


def test_without_numpy(monkeypatch):
    """Torch comes without it. A checkpoint from where it is can be used where it is not."""
    state = checkpoint.rng_state()
    monkeypatch.setattr(checkpoint, "np", None)
    assert checkpoint.rng_state()["numpy"] is None
    drawn = torch.rand(3)
    for found in (state, checkpoint.rng_state() | {"torch": state["torch"]}):
        checkpoint.set_rng_state(found)
        assert torch.equal(torch.rand(3), drawn)


# --- with several ranks


def again_and_again(folder, count):
    """Steps that were read back."""
    dist.init_process_group("gloo")
    read = []
    for step in range(count):
        save(folder, step, mine=dist.get_rank())
        found = checkpoint.load(folder)
        assert found.mine == dist.get_rank()
        read.append(found.step)
    leave_group()
    return read


def test_every_group_stays_usable(tmp_path):
    """On torch 2.4 a subgroup made and freed for each save blocked within a few of them."""
    assert elastic(again_and_again, tmp_path, 40) == [list(range(40))] * 2


def join_and_leave(store, count):
    rank = int(os.environ["RANK"])
    for i in range(count):
        own = dist.PrefixStore(str(i), dist.FileStore(str(store), 2))
        dist.init_process_group("gloo", store=own, rank=rank, world_size=2)
        checkpoint.all_or_none(lambda: None, patient=True)
        leave_group()
    return count


def test_a_group_can_be_left_right_after_a_collective(tmp_path):
    assert elastic(join_and_leave, tmp_path / "store", 20) == [20, 20]


def load_own(folders):
    """As rank 0 of a node of its own, from this rank's folder; then again, rank 1's damaged."""
    os.environ["LOCAL_RANK"] = "0"
    dist.init_process_group("gloo")
    mine, found = folders[dist.get_rank()], []
    found.append(checkpoint.load(mine).step)
    if dist.get_rank() == 1:
        damage(file_of(mine, 5))
    try:
        found.append(checkpoint.load(mine).step)
    except CourseError as error:
        found.append(str(error))
    leave_group()
    return found


def test_each_node_checks_what_it_sees(tmp_path):
    """The second node's copy is damaged: no rank trains on, with these weights or others."""
    folders = [tmp_path / "node 0", tmp_path / "node 1"]
    save(folders[0], 5)
    shutil.copytree(*folders)
    for whole, said in elastic(load_own, folders):
        assert whole == 5 and "step-000000005" in said and "is damaged" in said


# --- memory

BIG = 200  # MB of tensors


def pages():
    """MB of this process: its own, the most that was ever resident, its share of all resident."""
    found = {}
    for file in ("status", "smaps_rollup"):
        for line in Path("/proc/self", file).read_text().splitlines():
            name, _, value = line.partition(":")
            if name in ("RssAnon", "VmHWM", "Pss"):
                found[name] = int(value.split()[0]) / 1000
    return found


def read_all(folder, how):
    """Growth of `pages` by reading a checkpoint and looking at every number of it."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = pages()
    if how == "load":
        state = checkpoint.load(folder).state
    else:  # what `load` did before
        (path,) = folder.glob("step-*.pt")
        checkpoint._check(path)
        state = torch.load(path, map_location="cpu", weights_only=True)["state"]
    loaded = pages()
    assert sum(float(w.sum()) for w in state["weights"]) == BIG * 1e6 / 4
    dist.barrier()  # all ranks have every page
    seen = pages()
    state["weights"][0] += 1  # a page written to becomes this process's
    written = pages()
    dist.barrier()
    return {
        "peak of loading": loaded["VmHWM"] - before["VmHWM"],
        "own": seen["RssAnon"] - before["RssAnon"],
        "share": seen["Pss"] - before["Pss"],
        "own by writing": written["RssAnon"] - seen["RssAnon"],
    }


def read_both_ways(folder):
    dist.init_process_group("gloo")
    found = [read_all(folder, how) for how in ("load", "torch.load")]
    leave_group()
    return found


@pytest.mark.skipif(not Path("/proc/self/smaps_rollup").exists(), reason="needs Linux's /proc")
def test_the_ranks_of_a_node_share_the_memory(tmp_path):
    checkpoint.save(tmp_path, 1, {"weights": [torch.ones(2_500_000) for _ in range(BIG // 10)]})
    digest = checkpoint._digest(file_of(tmp_path, 1))
    shared, copied = zip(*elastic(read_both_ways, tmp_path))
    print("MB by rank", {"load": shared, "torch.load": copied})
    for rank in copied:
        assert rank["peak of loading"] > 0.9 * BIG and rank["own"] > 0.9 * BIG
        assert rank["share"] > 0.9 * BIG
    for rank in shared:
        assert rank["peak of loading"] < 0.2 * BIG and rank["own"] < 0.1 * BIG
        assert 0.4 * BIG < rank["share"] < 0.7 * BIG  # half the file: there are two ranks
        assert 9 < rank["own by writing"] < 0.1 * BIG  # one tensor of 20
    assert checkpoint._digest(file_of(tmp_path, 1)) == digest


def test_tensors_outlive_their_file(tmp_path):
    save(tmp_path, 1)
    found = checkpoint.load(tmp_path)
    save(tmp_path, 2, keep=1)
    assert steps(tmp_path) == [2]
    assert torch.equal(found.state["model"]["weight"], model().weight)
