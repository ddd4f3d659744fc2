"""The recordings under notebooks/evidence/ are whole, documented, and say what lessons say."""

import re

import pytest

from ddp_course import evidence
from ddp_course.tools.errors import CourseError

FILES = sorted(evidence.FOLDER.glob("*.csv"))
SOURCES = (evidence.FOLDER / "SOURCES.md").read_text(encoding="utf-8")
RESNET50 = 25_557_032  # parameters of torchvision's


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_documented(path):
    found = evidence.load(path.stem)
    listed = re.search(rf"^- `{path.name}`: .+\n  Columns: (.+)\.$", SOURCES, flags=re.MULTILINE)
    assert listed, f"SOURCES.md does not name {path.name}"
    assert re.findall(r"`([^`]+)`", listed[1]) == list(found.rows[0])
    assert all(list(row) == list(found.rows[0]) and None not in row for row in found.rows)
    links = found.column("source") if found.source == "column source" else [found.source]
    assert all(link.startswith("https://github.com/") for link in links)
    assert evidence.cite(path.stem) == f"recorded: {found.what}" and len(found.what) < 80
    for column, unit in found.units.items():
        assert all(isinstance(v, int | float | None) for v in found.column(column)), (column, unit)


def test_all_of_it():
    assert len(FILES) >= 20
    named = set(re.findall(r"^- `(\w+)\.csv`", SOURCES, flags=re.MULTILINE))
    assert named == {p.stem for p in FILES}
    assert sum(p.stat().st_size for p in evidence.FOLDER.iterdir()) < 400_000


def test_unknown_recording():
    with pytest.raises(CourseError, match="no recording nothing; there are: .*hangs"):
        evidence.load("nothing")


def test_numbers_units_and_text():
    found = evidence.load("naive_2xV100_sequence")
    first = found.rows[0]
    assert first["bytes"] == 48128 and first["how_known"] == "rounded512"
    assert found.units["dur_us_step2"] == "µs" and "sms" not in found.units
    assert evidence.load("timm_rtx3090_amp_channels_last").units["images_per_s_nchw"] == "1/s"
    assert evidence.load("hangs").rows[1]["timeout_ms"] is None


@pytest.mark.parametrize("step", [4, 5, 6])
def test_buckets_are_the_model(step):
    buckets = evidence.load("rn50_ddp_2xA100_buckets")
    assert sum(buckets.column("elements", step=step)) == RESNET50
    assert sum(buckets.column("parameters", step=step)) == 161
    kernels = evidence.load("rn50_ddp_2xA100_kernels")
    reduced = kernels.column("elements", step=step, kind="nccl_allreduce")
    assert reduced == buckets.column("elements", step=step)
    durations = kernels.column("dur_us", step=step, kind="nccl_allreduce")
    assert durations == pytest.approx(buckets.column("dur_us", step=step), abs=1)


def test_a_late_peer_waits_on_the_other_side():
    for pair in evidence.load("late_peer_pairs_128xA100").rows:
        ends = [pair[f"rank{r}_start_ms"] + pair[f"rank{r}_dur_ms"] for r in (0, 1)]
        apart = (ends[1] - ends[0]) * 1e3
        assert apart == pytest.approx(pair["end_difference_us"], abs=5)
        later = pair["rank1_start_ms"] - pair["rank0_start_ms"]
        assert later == pytest.approx(pair["rank1_later_ms"], abs=2e-3)


def test_steps_are_sums_of_their_parts():
    for row in evidence.load("rn50_ddp_2xA100_steps").rows:
        beside = row["nccl_over_compute_ms"]
        assert beside + row["nccl_alone_ms"] == pytest.approx(row["nccl_ms"], abs=0.01)
        assert row["gpu_compute_ms"] + row["nccl_alone_ms"] == pytest.approx(
            row["gpu_busy_ms"], rel=0.02
        )
    calls = evidence.load("naive_2xV100_sequence")
    for row in evidence.load("naive_2xV100_steps").rows:
        spent = sum(calls.column(f"dur_us_step{row['step']}")) / 1e3
        assert len(calls.rows) == row["allreduces"] and spent == pytest.approx(
            row["nccl_ms"], rel=0.01
        )


def test_memory_is_the_sum_of_its_kinds():
    for row in evidence.load("rn50_memory_timeline").rows:
        parts = sum(v for k, v in row.items() if k.endswith("_MB") and k != "total_MB")
        assert parts == pytest.approx(row["total_MB"], abs=0.1)


def test_bus_bandwidth_is_nccl_tests_formula():
    for row in evidence.load("nccl_allreduce_sweeps").rows:
        if row["algbw_GBps"] and row["algbw_GBps"] > 1:
            factor = 2 * (row["gpus"] - 1) / row["gpus"]
            assert row["busbw_GBps"] == pytest.approx(factor * row["algbw_GBps"], rel=0.02)
