"""Flight-recorder dumps. Torch 2.14.1 wrote those in fr_dumps (tests/tools/workers/fr_job.py);
those in NCCL's form are made here, after what torch's own reader expects.
"""

import json
import logging
import os
import pickle
import shutil
from pathlib import Path

import pytest

from ddp_course.tools.diagnose.flight_recorder import judged, report
from ddp_course.tools.diagnose.fr_files import dump_of
from ddp_course.tools.errors import CourseError

STORED = Path(__file__).parent / "fr_dumps"


@pytest.fixture
def dumps(tmp_path):
    """A function that copies stored dumps into a folder of the test's own."""

    def copy(case):
        return Path(shutil.copytree(STORED / case, tmp_path / case))

    return copy


def entry(seq, name="all_reduce", sizes=((4,),), group=("0", "default_pg"), **others):
    return {
        "collective_seq_id": seq, "p2p_seq_id": 0, "record_id": seq - 1, "pg_id": 0,
        "process_group": group, "profiling_name": f"nccl:{name}", "is_p2p": False,
        "input_sizes": [list(s) for s in sizes], "output_sizes": [list(s) for s in sizes],
        "input_dtypes": ["Float"], "output_dtypes": ["Float"],
        "state": "completed", "retired": True, "frames": frames(seq), **others,
    }  # fmt: skip


def frames(line):
    return [
        {"name": "all_reduce", "line": 9, "filename": "/x/site-packages/torch/distributed/d.py"},
        {"name": "train", "line": line, "filename": "/nowhere/train.py"},
    ]


OPEN = {"state": "started", "retired": False}


def dump(rank, entries, world=2, version="2.9", status=None):
    config = {"0": {"name": "0", "desc": "default_pg", "ranks": str(list(range(world)))}}
    found = {"version": version, "entries": entries, "pg_config": config}
    if status is not None:
        found["pg_status"] = {"0": {"last_enqueued_collective": status}}
    return pickle.dumps(found, protocol=2), rank


def judge(*made):
    return judged([dump_of(*d) for d in made])


def test_behind_in_backward():
    found = report(STORED / "backward")
    assert found.culprits == [1] and found.kind == "dumps" and found.exit_code == 0
    assert "called 7 collectives, rank 0 is in number 8 (all_reduce of [[20]])" in found.why
    zero, one = found.ranks
    assert zero.call == "backward" and one.call is None
    assert zero.lines[-1][2] == one.lines[-1][2] == "backward"
    assert zero.lines[-1][1] > one.lines[-1][1]  # a later line of the same script
    assert {f[0] for s in found.ranks for f in s.lines} == {"/tmp/job/train.py"}
    assert zero.open["sizes"] == [[20]]
    assert "a dump can't tell where it is now" in str(found)


def test_the_json_form_gives_the_same_without_stacks():
    found = report(STORED / "json")
    assert (found.culprits, found.why) == ([1], report(STORED / "backward").why)
    assert "these dumps hold no stacks" in found.notes


def test_who_waits_for_a_third_is_not_to_blame():
    found = report(STORED / "subgroup")
    assert found.culprits == [3] and found.why.startswith("called 1 collectives, rank ")
    assert found.ranks[2].open["group"] == "2 (right)" and found.ranks[2].open["sizes"] == [[7]]
    assert [s.call for s in found.ranks] == ["all_reduce"] * 3 + [None]
    assert (
        "group 0 (default_pg): ranks 2, 3 called 1, ranks 0, 1 called 2 collectives" in found.notes
    )
    assert "group 2 (right): rank 3 called 1, rank 2 called 2 collectives" in found.notes


def test_other_sizes():
    found = report(STORED / "sizes")
    assert found.culprits == [0, 1]
    assert "number 2: rank 0: all_reduce of [[4]]; rank 1: all_reduce of [[6]]" in found.why


def test_other_shapes_that_ended_are_a_note():
    found = report(STORED / "shapes")
    assert found.culprits == [1] and "rank 0 is in number 2" in found.why
    assert any("[[3, 2]]; rank 1: all_reduce of [[2, 3]]; it ended" in x for x in found.notes)


@pytest.mark.parametrize(
    "case, words",
    [
        ("backward", ["sequence number: 8", "missing ranks: {1}", "input sizes: [[20]]"]),
        ("subgroup", ["missing ranks: {3}", "input sizes: [[7]]"]),
        ("sizes", ["sequence number: 2 has errors", "'[[4]]' does not match", "'[[6]]'"]),
        ("shapes", ["number: 1 has errors", "'[[2, 3]]'", "missing ranks: {1}"]),
    ],
)
def test_torchs_own_tool_says_the_same(case, words, dumps):
    """It needs the groups' names and ranks, which gloo's recorder doesn't write (KeyError)."""
    fr_trace = pytest.importorskip("torch.distributed.flight_recorder.fr_trace")
    folder = dumps(case)
    files = sorted(folder.iterdir())
    for file in files:
        found = pickle.loads(file.read_bytes())  # ours, and read with care above
        named = {tuple(e["process_group"]) for e in found["entries"]}
        found["pg_config"] = {
            name: {"name": name, "desc": about, "ranks": "[2, 3]"} for name, about in named
        }
        found["pg_config"]["0"]["ranks"] = str(list(range(len(files))))
        file.write_bytes(pickle.dumps(found, protocol=2))
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logger = logging.getLogger("Flight Recorder")
    logger.addHandler(handler)
    try:
        fr_trace.main([str(folder), "-p", "dump_"])
    finally:
        logger.removeHandler(handler)
    text = "\n".join(said)
    assert all(word in text for word in words), text


class Bad:
    def __reduce__(self):
        return os.mkdir, ("made-by-a-pickle",)


def test_a_pickle_that_names_something_is_refused(dumps, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    folder = dumps("backward")
    (folder / "dump_1").write_bytes(pickle.dumps({"version": "2.10", "entries": [Bad()]}))
    with pytest.raises(CourseError, match=r"dump_1: it names (posix|nt)\.mkdir, which no") as error:
        report(folder)
    assert not Path("made-by-a-pickle").exists() and "\n" not in str(error.value)


@pytest.mark.parametrize(
    "spoil, words",
    [
        (lambda b: b[:-200], "dump_1 is no whole dump: truncated"),
        (lambda b: b"", "dump_1 is no whole dump: it is empty"),
        (lambda b: b"\x00hello", "dump_1 is no whole dump: neither a pickle nor JSON"),
        (lambda b: b'{"entries": [', "dump_1 is no whole dump: truncated"),
        (lambda b: pickle.dumps([1]), "dump_1 is no whole dump: it holds no entries"),
        (
            lambda b: pickle.dumps({"version": "2.10", "entries": [], "pg_config": [1]}),
            "no entries",
        ),
    ],
)
def test_a_file_that_is_spoilt_is_a_note_and_its_rank_missing(dumps, spoil, words):
    folder = dumps("backward")
    file = folder / "dump_1"
    file.write_bytes(spoil(file.read_bytes()))
    found = report(folder)
    assert any(words in note for note in found.notes), found.notes
    assert "no dump of rank 1" in found.notes and [s.rank for s in found.ranks] == [0]
    assert found.culprits == [1] and found.why == (
        "left no dump, and rank 0 waits in number 8 (all_reduce of [[20]])"
    )
    (folder / "dump_0").write_bytes(b"")
    with pytest.raises(CourseError, match="pass the folder of TORCH_FR_DUMP_TEMP_FILE") as error:
        report(folder)
    assert "\n" not in str(error.value)


def test_folders_that_hold_no_dumps(tmp_path):
    with pytest.raises(CourseError, match="there is no folder .*/none/at: pass the folder"):
        report(tmp_path / "none" / "at" / "all")
    (tmp_path / "readme.txt").touch()
    with pytest.raises(CourseError, match="no dump in "):
        report(tmp_path)
    with pytest.raises(CourseError, match="no dump in .* begins with trace_: pass"):
        report(tmp_path / "trace_")


def test_which_files_are_meant(dumps):
    folder = dumps("backward")
    (folder / "core.1234").write_bytes(b"no dump")
    with pytest.raises(CourseError, match=r"several kinds in .* \(core.\*, dump_\*\)"):
        report(folder)
    assert report(folder / "dump_").culprits == [1]
    for rank in (0, 1):  # torch's own name for them needs no choice
        (folder / f"dump_{rank}").rename(folder / f"nccl_trace_rank_{rank}")
    assert report(folder).culprits == [1]
    shutil.copy(folder / "nccl_trace_rank_1", folder / "nccl_trace_rank_1.pkl")
    with pytest.raises(
        CourseError, match="one rank twice: nccl_trace_rank_1, nccl_trace_rank_1.pkl"
    ):
        report(folder)


@pytest.mark.parametrize(
    "version, words",
    [("2.4", "different versions of torch (rank 0: 2.10, rank 1: 2.4)"), ("3.0", "3.0 is unknown")],
)
def test_versions(dumps, version, words):
    folder = dumps("backward")
    found = pickle.loads((folder / "dump_1").read_bytes())
    (folder / "dump_1").write_bytes(pickle.dumps({**found, "version": version}))
    with pytest.raises(CourseError) as error:
        report(folder)
    assert words in str(error.value) and "\n" not in str(error.value)


def test_a_format_too_old():
    old = entry(1)
    del old["collective_seq_id"]
    with pytest.raises(CourseError, match="without collective_seq_id: .* older torch"):
        dump_of(*dump(0, [old]))


def test_a_rank_without_a_dump_that_others_wait_for():
    found = judge(*(dump(r, [entry(1), entry(2, **OPEN)], world=4) for r in (0, 1, 3)))
    assert found.culprits == [2] and "no dump of rank 2" in found.notes
    assert found.why == "left no dump, and ranks 0, 1, 3 wait in number 2 (all_reduce of [[4]])"


def test_the_last_rank_is_missed_too():
    found = judge(*(dump(r, [entry(1, **OPEN)], world=3) for r in (0, 1)))
    assert found.culprits == [2]


def test_a_gpu_that_has_not_begun():
    late = {"state": "scheduled", "retired": False}
    found = judge(dump(0, [entry(1, **OPEN)]), dump(1, [entry(1, **late)]))
    assert found.culprits == [1] and "the GPU has not begun it" in found.why


def test_the_first_difference_counts_even_if_it_ended():
    a = [entry(1), entry(2, "broadcast"), entry(3, **OPEN)]
    b = [entry(1), entry(2, "all_reduce"), entry(3, "broadcast", **OPEN)]
    found = judge(dump(0, a), dump(1, b))
    assert "disagree about collective number 2: rank 0: broadcast" in found.why
    assert "rank 1 called number 2 at /nowhere/train.py:2 in train" in found.notes


def test_the_odd_one_of_three():
    same = [entry(1, **OPEN)]
    found = judge(*(dump(r, same, 3) for r in (0, 1)), dump(2, [entry(1, sizes=[(5,)], **OPEN)], 3))
    assert found.culprits == [2]


def test_other_dtypes():
    double = entry(1, input_dtypes=["Double"], **OPEN)
    found = judge(dump(0, [entry(1, **OPEN)]), dump(1, [double]))
    assert "all_reduce of [[4]] Float; rank 1: all_reduce of [[4]] Double" in found.why


def test_uneven_gathers_are_allowed():
    sides = [dump(r, [entry(1, "all_gather", [(3 + r,)]), entry(2, **OPEN)]) for r in (0, 1)]
    assert judge(*sides).culprits == []


def test_counts_know_more_than_the_entries_that_are_left():
    a, b = entry(2001, **OPEN), entry(1990)
    found = judge(dump(0, [a], status=2001), dump(1, [b], status=1990))
    assert found.culprits == [1] and "called 1990 collectives" in found.why
    assert "ranks 0, 1: older calls are overwritten (TORCH_FR_BUFFER_SIZE)" in found.notes


def test_send_and_receive():
    calls = {0: "recv 0<-1", 1: "recv 1<-0"}
    p2p = {"is_p2p": True, "p2p_seq_id": 1, **OPEN, "frames": []}
    found = judge(*(dump(r, [entry(1), entry(1, calls[r], **p2p)]) for r in (0, 1)))
    assert found.culprits == [0, 1]
    assert "each waits for the other: rank 0 in recv; rank 1 in recv" in found.why
    assert found.ranks[0].notes == ["recv 0<-1 of [[4]] is not finished"]


def test_no_call_is_open():
    found = judge(dump(0, [entry(1)]), dump(1, [entry(1)]))
    assert found.culprits == [] and "no call is open" in found.why


def test_a_call_that_failed_counts_as_finished():
    found = judge(dump(0, [entry(1), entry(2)]), dump(1, [entry(1)]))
    assert found.culprits == [1] and "rank 0 is in number 2" in found.why


def test_who_has_finished_it_has_come():
    found = judge(
        dump(0, [entry(1), entry(2, "broadcast")]),
        dump(1, [entry(1), entry(2, "broadcast", **OPEN)]),
    )
    assert found.culprits == [] and "rank 0 finished number 2" in found.why


def test_json_of_nccl():
    found = {
        "version": "2.9",
        "entries": [entry(1, **OPEN)],
        "pg_config": {},
        "pg_status": {"0": {"last_enqueued_collective": "1"}},
    }
    assert dump_of(json.dumps(found).encode(), 0).called == {"0": 1}
