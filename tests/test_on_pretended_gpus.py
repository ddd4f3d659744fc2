"""Every script on pretended GPUs: on two, and on one that two ranks share. Each CUDA line has run.

Scripts are found, not listed: a new one is run as its lesson starts it. It must end well and say
that it was on a GPU.
"""

import json
import os
import re
import sys

import cuda_lines
import pytest
import torch
from launch import ROOT, python

from ddp_course import checks, gpu_report, launches
from ddp_course.claims import CLAIMS, HELD, judge
from ddp_course.tools import rehearse

# One fixture runs them all, for minutes; the first test pays for that.
pytestmark = pytest.mark.timeout(900)

WORKERS = ROOT / "tests/workers"
PROBE = WORKERS / "pretended_probe.py"
LAUNCHES = launches.on_gpus()
# What else scripts run on a GPU; hardware.py decides by numbers, tested without any GPU.
MODULES = ["process_group", "results", "tools/checkpoint", "tools/collectives",
           "tools/cluster_check"]  # fmt: skip
FILES = [launch.script for launch in LAUNCHES.values()]
FILES += [ROOT / f"ddp_course/{name}.py" for name in MODULES]

# Shorter than in the lesson, where that shows no less; 14_killed dies at step 130 of 23 an epoch.
ARGS = {"03_ddp": ["--epochs", "3"], "07_amp": ["--epochs", "2"], "09_train": ["--epochs", "2"],
        "14_killed": ["--epochs", "6"], "14_train": ["--epochs", "2"]}  # fmt: skip
NOT_HERE = {
    "01_gil": "measures time, for long; no line of it is for GPUs",
    "13_overhead": "measures time, for long; no line of it is for GPUs",
    "02_spawn": "gloo by name: how ranks meet, not what they compute on",
    "11_who": "gloo by name: who is told which number",
}
NOT_SHARED = {  # these are on the CPU then
    "02_setup": "its own lines take one GPU for each rank, or the CPU",
    "03_ddp": "its own lines take one GPU for each rank, or the CPU",
}
ON_THE_CPU = {"02_some_ranks"}  # if shared: gloo sends no CUDA tensors from point to point
# These run lines of the modules that no script with lines of its own runs.
TRACED = {"02_some_ranks shared", "09_train killed", "cluster_check", "probe"}
NEVER_RUN = {  # "file.py: the line": reason
    '13_overhead.py: here = me.device.index or 0, me.device.type == "cuda"': "in NOT_HERE",
}
NOT_HERE |= gpu_report.NOT_PRETENDED
RUN = sorted({*LAUNCHES} - {*NOT_HERE})
ALONE = {name for name in RUN if LAUNCHES[name].how == "alone"}
SHARED = [n for n in RUN if LAUNCHES[n].gpus == 1 and n not in ALONE and n not in NOT_SHARED]


def case(name, folder, gpus, *more, device="cuda"):
    """How to launch a script, for tests/workers/pretended.py."""
    launch = LAUNCHES[name]
    ranks, args = 1 if name in ALONE else 2, [*launch.args, *ARGS.get(name, []), *more]
    env = {"DDP_COURSE_DEVICE": device, "DDP_COURSE_RUNS": str(folder)}
    env["CUDA_VISIBLE_DEVICES"] = launches.visible(gpus, {})
    if launch.how == "spawn":
        return {"command": launch.command(ranks, *args), "env": env}
    restarts = int("--max-restarts" in launch.flags or "--kill" in more)
    how = {"ranks": ranks, "restarts": restarts, "env": env}
    traced = bool(cuda_lines.find(launch.script.read_text()))
    return {"script": str(launch.script), "args": args, "traced": traced, **how}


def cases(folder):
    """All of them, by name."""
    gpus = {name: 4 if name in ALONE else max(2, LAUNCHES[name].gpus) for name in RUN}
    found = {name: case(name, folder / name, gpus[name]) for name in RUN}
    found |= {f"{name} shared": case(name, folder / f"{name} shared", 1) for name in SHARED}
    tool = ROOT / "ddp_course/tools/cluster_check.py"  # without a lesson it joins by itself
    found["cluster_check"] = found["11_cluster_check"] | {"script": str(tool)}
    found["probe"] = found["00_hello"] | {"script": str(PROBE)}
    found["03_ddp cpu"] = case("03_ddp", folder / "03_ddp cpu", 2, device="cpu")
    found["09_train killed"] = case("09_train", folder / "09_train killed", 2, "--kill", "1:25")
    for name in TRACED:
        found[name] |= {"traced": True}
    return found


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """Runs them all: {case: what the driver says of it, and "results": {file: content}}.

    And "folder", where results are, and "seen": the (file, line) pairs that ran.
    """
    missing = rehearse.missing()
    if missing:
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("pretended")
    names = cases(folder)
    (folder / "cases.json").write_text(json.dumps(names))
    (folder / "seen").mkdir()
    files = {str(p): cuda_lines.find(p.read_text()) for p in FILES}
    wanted = {file: [n for lines in at.values() for n in lines] for file, at in files.items()}
    wanted[str(PROBE)] = [*range(1, 100)]
    (folder / "lines.json").write_text(json.dumps(wanted))
    traced = {"TRACED_LINES": str(folder / "lines.json"), "TRACED_SEEN": str(folder / "seen")}
    path = os.pathsep.join([str(WORKERS / "traced"), str(ROOT)])
    done = python(
        "-m", "ddp_course.tools.rehearse", "--gpus", 4, "--", sys.executable,
        WORKERS / "pretended.py", folder, env={"PYTHONPATH": path, **traced}, timeout=850,
    )  # fmt: skip
    print(done.stdout)
    found = {"folder": folder}
    for name in names:
        found[name] = json.loads((folder / f"{name}.json").read_text())
        results = sorted((folder / name).rglob("*.json"))
        found[name]["results"] = {p.stem: json.loads(p.read_text()) for p in results}
    seen = {tuple(line.split(" ", 1)) for p in (folder / "seen").iterdir() for line in p.open()}
    found["seen"] = {(file.strip(), int(line)) for line, file in seen}
    return found


def devices(found):
    wheres = [r["where"] for r in found["results"].values() if "where" in r]  # not in a trace
    return {where["device"] for where in wheres}


@pytest.mark.parametrize("name", RUN)
def test_script_on_two_gpus(ran, name):
    assert ran[name]["well"], ran[name]["said"]
    assert devices(ran[name]) == {"pretended GPU"}


@pytest.mark.parametrize("name", SHARED)
def test_script_on_one_gpu_that_two_ranks_share(ran, name):
    found = ran[f"{name} shared"]
    assert found["well"], found["said"]
    assert devices(found) == {"cpu" if name in ON_THE_CPU else "pretended GPU"}


def test_cluster_check_without_the_course(ran):
    assert ran["cluster_check"]["well"], ran["cluster_check"]["said"]


def cuda_statements():
    """[("file.py: first line of the statement", its path, all its lines)]"""
    found = []
    for path in FILES:
        source = path.read_text()
        for first, lines in cuda_lines.find(source).items():
            text = source.splitlines()[first - 1].strip()
            found.append((f"{path.name}: {text}", str(path), lines))
    return found


def test_every_cuda_line_has_run(ran):
    found = cuda_statements()
    never = {words for words, path, lines in found if not {(path, n) for n in lines} & ran["seen"]}
    assert never - {*NEVER_RUN} == set(), "no rank has run these"
    assert {*NEVER_RUN} <= never, "these have run: NEVER_RUN need not excuse them"


def test_lines_that_did_not_run_are_not_seen(ran):
    """The trace sees what ran, and nothing else: the probe has lines of both kinds."""
    assert ran["probe"]["well"], ran["probe"]["said"]
    seen = {n for path, n in ran["seen"] if path == str(PROBE)}
    ends = {n: t.rpartition("# ")[2] for n, t in enumerate(PROBE.read_text().splitlines(), 1)}
    assert {n for n in ends if ends[n] == "runs"} <= seen
    assert not {n for n in ends if ends[n] == "never"} & seen


# ---- The report of a GPU box reads these results ----
def result(ran, name):
    """As `gpu_report` takes it: the file of the script's name, or the only one."""
    return ran[name]["results"].get(name) or next(iter(ran[name]["results"].values()))


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda c: f"{c.script}: {c.says}")
def test_claims_hold(ran, claim):
    if claim.script in gpu_report.NOT_PRETENDED:
        pytest.skip(gpu_report.NOT_PRETENDED[claim.script])
    verdict, why = judge(claim, result(ran, claim.script))
    if "accuracy" in claim.relation and claim.script in ARGS:  # not trained to the end here
        assert not why
    else:
        assert verdict == HELD, why


def test_figures_are_found(ran):
    rows = gpu_report.figures({name: result(ran, name) for name in gpu_report.MEASURES})
    assert {row[0] for row in rows} == {*gpu_report.MEASURES}
    assert [row for row in rows if row[3] is None] == []


# ---- Parity: the same numbers as elsewhere ----
def losses(ran, case):
    text = (ran["folder"] / f"{case}.txt").read_text()
    return [float(x) for x in re.findall(r"mean loss (\d+\.\d+)", text)]


def test_a_training_is_that_of_the_cpu(ran):
    """03_ddp: losses as printed, weights, and accuracy after three epochs."""
    both = ("03_ddp", "03_ddp cpu")
    assert ran["03_ddp cpu"]["well"] and devices(ran["03_ddp cpu"]) == {"cpu"}
    here, there = (losses(ran, case) for case in both)
    assert len(here) == 3 and here[0] > here[-1] and here == pytest.approx(there, abs=2e-4)
    files = [ran["folder"] / case / "03_ddp.pt" for case in both]
    here, there = (torch.load(file, map_location="cpu", weights_only=True) for file in files)
    assert checks.parity(there, [here]).value < 1e-5
    here, there = (ran[case]["results"]["03_ddp"]["accuracy"] for case in both)
    assert here == there > 0.8


def ranks_of(ran, case):
    (result,) = ran[case]["results"].values()
    return result["ranks"]


@pytest.mark.parametrize("case", ["08_batchnorm", "08_batchnorm shared"])
def test_syncbatchnorm_sees_the_whole_batch(ran, case):
    for rank in ranks_of(ran, case):
        assert rank["gap"]["BatchNorm2d"]["weights"] > 1e-4
        assert 0 <= rank["SyncBatchNorm"]["weights"] < 1e-6


def test_data_parallel_needs_most_memory_on_gpu_0(ran):
    found = ran["01_data_parallel"]["results"]["01_data_parallel"]
    first, *others = found["gpu"]["peaks"]
    assert len(others) == 3 and len({*others}) == 1 and first > 1.2 * others[0]


def test_a_killed_training_ends_with_the_same_bits(ran):
    assert ran["09_train killed"]["well"], ran["09_train killed"]["said"]
    whole, killed = ranks_of(ran, "09_train"), ranks_of(ran, "09_train killed")
    assert [r["first"] for r in whole + killed] == [0, 0, 20, 20]
    assert len({r["digest"] for r in whole + killed}) == 1
    assert ran["14_killed"]["results"]["14_train"]["first"] == 100
