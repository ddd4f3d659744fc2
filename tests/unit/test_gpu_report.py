"""The GPU report without a GPU: judging, figures, the page, and that it runs to its end."""

import ast
import json
from pathlib import Path

import pytest
from launch import ROOT
from lessons import code_cells, read

from ddp_course import claims, gpu_report, launches, nodes
from ddp_course.claims import CLAIMS, HELD, NOT_HELD, NOT_RUN, Claim, judge

WHERE = {"world_size": 2, "backend": "nccl"}


@pytest.mark.parametrize(
    "run, verdict, why",
    [
        ({"ranks": [{"sum": 3}] * 2}, HELD, ""),
        ({"ranks": [{"sum": 3}, {"sum": 4}]}, NOT_HELD, ""),
        ({"ranks": [{"sum": 1}], "where": {"world_size": 1}}, NOT_RUN, "needs 2 ranks"),
        ({"ranks": [{}]}, NOT_HELD, "KeyError: 'sum'"),
        ({"ranks": [{"sum": "3"}]}, NOT_HELD, ""),
        ({"ranks": "3"}, NOT_HELD, "TypeError: string indices must be integers, not 'str'"),
        ("exit code 1: it says no error", NOT_RUN, "exit code 1: it says no error"),
    ],
)
def test_judge(run, verdict, why):
    claim = Claim("a", "the sum", 'all(r["sum"] == N * (N + 1) / 2 for r in ranks)', 2)
    run = {"where": WHERE, **run} if isinstance(run, dict) else run
    assert judge(claim, run) == (verdict, why)


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: f"{c.script}: {c.says}")
def test_claims_are_the_lessons(claim):
    """What a relation asks for by name, the lesson or its script knows by that name.

    test_on_pretended_gpus.py asks them of results as the scripts write them.
    """
    tree = ast.parse(claim.relation, mode="eval")
    assert claim.script in launches.on_gpus()
    (notebook,) = (ROOT / "notebooks").glob(f"{claim.script[:2]}_*.ipynb")
    lesson = "\n".join(cell.source for cell in code_cells(read(notebook)))
    names = [n.value for n in ast.walk(tree) if isinstance(n, ast.Constant)]
    for name in (n for n in names if isinstance(n, str)):
        assert any(form in lesson for form in (f'"{name}"', f"{name}=", f"def {name}(")), name


def test_ledger_of_claims():
    def held(ddp, zero1, fsdp2):
        total = {"DDP": ddp, "ZeRO-1": zero1, "FSDP2": fsdp2}
        return {name: {"parameters": 0, "gradients": 0, "optimizer": b, "gap to DDP": 0.0}
                for name, b in total.items()}  # fmt: skip

    claim = next(c for c in CLAIMS if c.script == "10_ledger")
    for bytes_each, verdict in (((16, 12, 8), HELD), ((16, 16, 8), NOT_HELD)):
        run = {"where": WHERE, "size": 1, "ranks": [held(*bytes_each)] * 2}
        assert judge(claim, run)[0] == verdict


AMP = {"runs": {"fp32": {"ms": 4.0, "peak MiB": 100}, "bf16": {"ms": 2.0, "peak MiB": 60}}}
SECONDS = {
    "independent 1": [9, 0.010, 0.010], "weak 1": [9, 0.010, 0.010], "strong 1": [9, 0.010, 0.010],
    "independent 2": [9, 0.010, 0.010], "weak 2": [9, 0.012, 0.012], "strong 2": [9, 0.006, 0.006],
    "all-reduce 4 2": [9, 0.001, 0.001], f"all-reduce {2**20} 2": [9, 0.003, 0.003],
    "weak, bfloat16 2": [9, 0.008, 0.008], "DataParallel 2": [9, 0.020, 0.020],
}  # fmt: skip
SCALING = {"seconds": SECONDS, "batch": 64, "gradient bytes": 2**21}


# Twelve sizes from 4 bytes to 16 MiB; quartiles.
COST = {"sizes": [4, 2**24], "seconds": {"2": [[1e-5, 2e-5, 3e-5], [1e-2, 1e-2, 1e-2]]}}


def test_figures():
    runs = {"07_amp": AMP, "13_scaling": SCALING, "00_message_cost": COST}
    runs["01_dp_vs_ddp"] = "no end after 300 s"
    runs = {k: v if isinstance(v, str) else v | {"where": WHERE} for k, v in runs.items()}
    rows = gpu_report.figures(runs)
    found = {(script, what): (value, unit) for script, _, what, value, unit in rows}
    assert {here for _, here, *_ in rows} == {"2 × nccl"}
    assert found["07_amp", "bf16: faster than fp32"] == (2.0, "times")
    assert found["07_amp", "bf16: peak"] == (60, "MiB")
    assert found["00_message_cost", "all-reduce of 4 bytes"] == (pytest.approx(20), "µs")
    busbw = found["00_message_cost", "all-reduce of 16 MiB, bus bandwidth"]
    assert busbw == (pytest.approx(2**24 / 1e-2 / 1e9), "GB/s")
    scaling = {what: value for (script, what), (value, _) in found.items() if script > "13"}
    assert scaling["weak, 2"] == pytest.approx(2 * 64 / 0.012)
    assert scaling["weak, bfloat16, 2"] == pytest.approx(2 * 64 / 0.008)
    assert scaling["DataParallel, 2"] == pytest.approx(2 * 64 / 0.020)
    assert scaling["all-reduce of the gradients by itself"] == pytest.approx(5)
    assert scaling["of it not hidden behind backward"] == pytest.approx(2)


def test_a_result_of_another_form_is_told():
    rows = gpu_report.figures({"07_amp": {"where": WHERE, "runs": {"fp32": {}}}})
    assert rows == [["07_amp", "2 × nccl", "KeyError: 'ms'", None, "MiB"]]


def test_without_a_gpu(monkeypatch, capsys):
    monkeypatch.setattr("ddp_course.hardware.count_gpus", lambda: 0)
    assert gpu_report.main([]) == 2
    said = capsys.readouterr()
    assert said.out == "" and said.err.count("\n") == 1 and "tools.rehearse --gpus 2" in said.err


OUTSIDE = {"where": {"world_size": 1, "backend": "none"}}  # saved after the group was left


@pytest.mark.parametrize(
    "saved, code, output, gpus, found",
    [
        ("x.json", 0, "", 2, {"where": WHERE}),
        ("x.json", 0, "", 1, {"where": WHERE | {"backend": "gloo"}}),
        ("of_another.json", 0, "", 2, {"where": WHERE}),
        (None, 0, "", 2, {"where": WHERE}),
        (None, None, "", 2, "no end after 300 s"),
        (None, 1, "Trace\n  ValueError: small\nmore", 2, "exit code 1: ValueError: small"),
        (None, -9, "killed", 2, "exit code -9: it says no error"),
    ],
)
def test_one_script(saved, code, output, gpus, found, monkeypatch):
    def launch(commands, timeout, env):
        if saved:
            Path(env["DDP_COURSE_RUNS"], saved).write_text(json.dumps(OUTSIDE))
        return [nodes.Ended(code, output)]

    monkeypatch.setattr(nodes, "launch", launch)
    script = launches.Launch(Path("x.py"), "torchrun")
    assert gpu_report.run_script("x", script, gpus, True, 300) == found


@pytest.fixture
def two_gpus(monkeypatch):
    """A report on two GPUs whose scripts are not started: the results are given here."""
    runs = {
        "07_amp": AMP | {"where": WHERE, "parameters": 1},
        "09_train": {"where": WHERE, "ranks": [{"digest": "a"}, {"digest": "b"}]},
        "14_killed": "exit code 1: ValueError: no | such file",
    }
    monkeypatch.setattr("ddp_course.hardware.count_gpus", lambda: 2)
    monkeypatch.setattr(gpu_report, "machine", lambda gpus: {"gpus": ["X, 80 GiB"] * gpus})
    monkeypatch.setattr(gpu_report, "run_script", lambda name, *_: runs.get(name, {"where": WHERE}))


@pytest.mark.parametrize("pretended", [False, True])
def test_the_report(two_gpus, pretended, monkeypatch, tmp_path):
    monkeypatch.delenv("PRETENDED_GPUS", raising=False)
    if pretended:
        monkeypatch.setenv("PRETENDED_GPUS", "2")
    assert gpu_report.main(["--out", str(tmp_path / "a/b")]) == 1
    report = json.loads((tmp_path / "a/b/gpu_report.json").read_text())
    text = (tmp_path / "a/b/gpu_report.md").read_text(encoding="utf-8")
    verdicts = {c["script"]: c["verdict"] for c in report["claims"]}
    assert len(report["claims"]) == len(CLAIMS) == text.count(" | `")
    assert verdicts["09_train"] == NOT_HELD and "**not held**" in text
    assert verdicts["14_killed"] == verdicts["10_two_devices"] == NOT_RUN
    assert report["scripts"]["10_two_devices"]["ended"] == "needs 4 GPUs"
    assert (verdicts["03_compile"] == NOT_RUN) == pretended
    units = {row[-1] for row in report["figures"]}
    assert units == ({"MiB"} if pretended else {"MiB", "ms", "times"})
    assert (report["results"] == {}) == pretended == ("Pretended" in text) == (" ms |" not in text)
    for line in text.splitlines():  # a bar in an error is none of the table's
        if line.startswith("| 14 |"):
            assert line.replace("\\|", "").count("|") == 6


def test_claims_have_no_bars():
    assert not any("|" in c.says + c.relation for c in claims.CLAIMS)
