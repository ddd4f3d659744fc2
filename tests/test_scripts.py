"""Every script under torchrun, on two ranks and where it matters on four.

The lessons launch their scripts as a reader does, and nbval runs the lessons: here are the launches
that no lesson makes, and the proof that every script has one.
"""

import re

import pytest
from launch import python, torchrun
from lessons import NOTEBOOKS, SCRIPTS, code_cells, read

from ddp_course import launches, nodes

# How many ranks the names in a lesson's launch line stand for, on a machine without GPUs.
MEANS = {"plan.ranks": 2, "two": 2, "ranks": 2, "plan_4.ranks": 4, "four": 4}
# A file without a main is the library of another script, which runs it.
PROGRAMS = [p for p in SCRIPTS if p.suffix == ".py" and "__main__" in p.read_text()]
# Where a lesson claims something about N, four ranks run as well as two.
FOUR = {"01_gradients", "03_own_ddp_check", "05_ring_allreduce", "07_clipping"}
NEEDS_FOUR = {"10_pipeline"}  # a mesh of two by two
# Theirs are pretended where there are none: test_on_pretended_gpus.py.
ON_GPUS = re.compile(r"\{on_gpus?\} [^\n!]*(?:\\\n *)?\.\./scripts/(\w+)\.py")
ALONE = {"03_single"}


TEXT = "\n".join(c.source for path in NOTEBOOKS for c in code_cells(read(path)))
PLAIN = ON_GPUS.sub("", TEXT)  # what a machine without GPUs launches on its CPU


def launched():
    """{(script, ranks)} of the lessons."""
    found = {(m["torchrun"], MEANS[m["ranks"]]) for m in launches.LAUNCH.finditer(PLAIN)}
    found |= {(m["spawn"], 2) for m in launches.SPAWN.finditer(PLAIN)}
    return found | {(m["torchrun"], 2) for m in launches.ON_NODES.finditer(PLAIN)}


GPU_ONLY = {*ON_GPUS.findall(TEXT)} - {name for name, _ in launched()}
WANTED = {(p.stem, n) for p in PROGRAMS for n in ([2, 4] if p.stem in FOUR else [2])}
WANTED = {(name, n) for name, n in WANTED if name not in GPU_ONLY}
WANTED = {(name, 4 if name in NEEDS_FOUR else n) for name, n in WANTED}
CASES = sorted(WANTED - launched())


def test_every_script_is_launched():
    assert {name for name, _ in launched()} | ALONE | GPU_ONLY == {p.stem for p in PROGRAMS}


@pytest.mark.parametrize("name, ranks", CASES)
def test_script(name, ranks, tmp_path):
    script = next(p for p in PROGRAMS if p.stem == name)
    env = {"DDP_COURSE_RUNS": str(tmp_path), "DDP_COURSE_DEVICE": "cpu"}
    done = python(script, env=env) if name in ALONE else torchrun(script, ranks=ranks, env=env)
    assert done.returncode == 0, done.stdout
    assert "Warning" not in done.stdout, done.stdout
    assert [p.name for p in tmp_path.rglob("*.json")] == [f"{name}.json"]


# One GPU: a world of one over nccl where the lesson allows it, else two ranks share it over gloo.
GPU_CASES = [
    pytest.param(launch, gpus, id=f"{name}-{gpus}", marks=pytest.mark.gpu(max(gpus, launch.gpus)))
    for name, launch in launches.on_gpus().items()
    for gpus in ([1, 2] if launch.gpus == 1 else [launch.gpus])
]


@pytest.mark.parametrize("launch, gpus", GPU_CASES)
def test_script_on_gpus(launch, gpus, tmp_path):
    env = {"DDP_COURSE_RUNS": str(tmp_path), "DDP_COURSE_DEVICE": "cuda"}
    env |= {"CUDA_VISIBLE_DEVICES": launches.visible(gpus), "OMP_NUM_THREADS": "1"}
    (done,) = nodes.launch([launch.command(launch.ranks(gpus))], timeout=240, env=env)
    assert done.code == 0, done.output
