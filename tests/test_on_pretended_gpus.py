"""Every script on pretended GPUs: on two, and on one that two ranks share. Each CUDA line has run.

Scripts are found, not listed: a new one is run as it is. It must end well and say that it was on a
GPU; if it forces the CPU, as its lesson does, there is nothing to run here.
"""

import json
import os
import re
import sys

import cuda_lines
import pytest
import test_scripts
from launch import ROOT, python
from lessons import NOTEBOOKS, code_cells, read

from ddp_course.tools import rehearse

# One fixture runs them all, for minutes; that of the first test pays.
pytestmark = pytest.mark.timeout(900)

WORKERS = ROOT / "tests/workers"
SOURCES = {p.stem: p.read_text() for p in test_scripts.PROGRAMS}
# What else scripts run on a GPU; hardware.py decides by numbers, tested without any GPU.
MODULES = ["process_group", "results", "tools/checkpoint", "tools/collectives",
           "tools/cluster_check"]  # fmt: skip
FILES = [*test_scripts.PROGRAMS, *(ROOT / f"ddp_course/{name}.py" for name in MODULES)]

GPUS = {"01_dp_vs_ddp": 4, "10_two_devices": 4}  # the others: 2
ARGS = {"03_ddp": ["--epochs", "3"], "07_amp": ["--epochs", "2"], "09_train": ["--epochs", "2"]}
ARGS |= {"14_train": ["--fresh", "--epochs", "2"], "14_killed": ["--fresh", "--epochs", "4"]}
KEPT_OUT = {}
NOT_SHARED = {}
NEVER_RUN = {}
ALL_THE_SAME = set()


def launches():
    """[(script, line, is DDP_COURSE_DEVICE cpu there?)] of all lessons."""
    found = []
    for path in NOTEBOOKS:
        forced = False
        for cell in code_cells(read(path)):
            if cell.source.startswith("%%writefile"):
                continue
            for line in cell.source.splitlines():
                if re.match(r"%env DDP_COURSE_DEVICE=|os\.environ\[\"DDP_COURSE_DEVICE\"\]", line):
                    forced = line.partition("#")[0].strip().endswith(("=cpu", '= "cpu"'))
                found += [(name, line, forced) for name in re.findall(r"scripts/(\w+)\.py", line)]
    return found


LAUNCHES = launches()
RESTARTED = {name for name, line, _ in LAUNCHES if "--max-restarts" in line}
LESSONS_ON_THE_CPU = {name for name, _, forced in LAUNCHES if forced}
LESSONS_ON_THE_CPU -= {name for name, _, forced in LAUNCHES if not forced}
FORCED = {name for name, text in SOURCES.items() if 'environ["DDP_COURSE_DEVICE"] = "cpu"' in text}
RUN = {*SOURCES} - FORCED - LESSONS_ON_THE_CPU - {*KEPT_OUT} | ALL_THE_SAME
SHARED = {name for name in RUN if name not in NOT_SHARED}


def case(name, folder, device="cuda", gpus=2, more=()):
    """How to launch a script, as its lesson does: by torchrun, or alone, or by itself."""
    script, args = str(ROOT / f"scripts/{name}.py"), [*ARGS.get(name, []), *more]
    env = {"DDP_COURSE_DEVICE": device, "DDP_COURSE_RUNS": str(folder)}
    env |= {"CUDA_VISIBLE_DEVICES": ",".join(map(str, range(gpus))), "DDP_COURSE_RANKS": "2"}
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    if "--kill" in more or name in RESTARTED - {"09_train"}:
        ranks = ["--max-restarts", "1", "--nproc-per-node", "2"]
        return {"command": [*torchrun, *ranks, script, *args], "env": env}
    if "mp.spawn" in SOURCES[name]:
        return {"command": [sys.executable, script, *args], "env": env}
    alone = "process_group" not in SOURCES[name]
    return {"script": script, "args": args, "ranks": 1 if alone else 2, "env": env}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """{case: what the driver says of it, and "results": {file: content}}, and "seen": the lines."""
    missing = rehearse.missing()
    if missing:
        pytest.skip(missing)
    folder = tmp_path_factory.mktemp("pretended")
    cases = {name: case(name, folder / name, gpus=GPUS.get(name, 2)) for name in sorted(RUN)}
    cases |= {f"{n} shared": case(n, folder / f"{n} shared", gpus=1) for n in sorted(SHARED)}
    (folder / "cases.json").write_text(json.dumps(cases))
    (folder / "seen").mkdir()
    files = {str(p): cuda_lines.find(p.read_text()) for p in FILES}
    wanted = {file: [n for lines in at.values() for n in lines] for file, at in files.items()}
    (folder / "lines.json").write_text(json.dumps(wanted))
    traced = {"TRACED_LINES": str(folder / "lines.json"), "TRACED_SEEN": str(folder / "seen")}
    path = os.pathsep.join([str(WORKERS / "traced"), str(ROOT)])
    done = python(
        "-m", "ddp_course.tools.rehearse", "--gpus", 4, "--", sys.executable,
        WORKERS / "pretended.py", folder, env={"PYTHONPATH": path, **traced}, timeout=850,
    )  # fmt: skip
    print(done.stdout)
    found = {}
    for name in cases:
        found[name] = json.loads((folder / f"{name}.json").read_text())
        results = sorted((folder / name).rglob("*.json"))
        found[name]["results"] = {p.stem: json.loads(p.read_text()) for p in results}
    seen = {tuple(line.split(" ", 1)) for p in (folder / "seen").iterdir() for line in p.open()}
    found["seen"] = {(file.strip(), int(line)) for line, file in seen}
    return found


@pytest.mark.parametrize("name", sorted(RUN))
def test_script_on_two_gpus(ran, name):
    assert ran[name]["well"], ran[name]["said"]
    assert any(r["where"]["device"] == "pretended GPU" for r in ran[name]["results"].values())


@pytest.mark.parametrize("name", sorted(SHARED))
def test_script_on_one_gpu_that_two_ranks_share(ran, name):
    found = ran[f"{name} shared"]
    assert found["well"], found["said"]


def test_every_cuda_line_has_run(ran):
    never = {}
    for path in FILES:
        source = path.read_text().splitlines()
        for line, lines in cuda_lines.find(path.read_text()).items():
            if not any((str(path), n) in ran["seen"] for n in lines):
                never[f"{path.name}:{line}"] = source[line - 1].strip()
    assert not never
