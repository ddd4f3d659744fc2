"""Every script under torchrun, as a reader would start it in a terminal."""

import pytest
from launch import python, torchrun
from lessons import SCRIPTS

# Where a lesson claims something about N, four ranks run too.
RANKS = {"01_gradients": [2, 4], "02_collectives": [2, 4], "03_own_ddp_check": [2, 4]}
RANKS["05_ring_allreduce"] = [4]
ARGS = {"05_ring_allreduce": ["--largest-mib", "1"]}  # its lesson runs the whole
# A file without a main is the library of another script, which runs it.
PROGRAMS = [p for p in SCRIPTS if p.suffix == ".py" and "__main__" in p.read_text()]
CASES = [(p, n) for p in PROGRAMS for n in RANKS.get(p.stem, [2])]
LAUNCHES_ITSELF = {"02_spawn": "02_spawn", "03_single": "03_single", "03_spawn": "03_spawn/03_ddp"}


@pytest.mark.parametrize("script, ranks", CASES, ids=lambda v: getattr(v, "stem", v))
def test_script(script, ranks, tmp_path):
    env = {"DDP_COURSE_RUNS": str(tmp_path), "DDP_COURSE_DEVICE": "cpu"}
    if script.stem in LAUNCHES_ITSELF:
        done = python(script, env=env)
    else:
        done = torchrun(script, *ARGS.get(script.stem, []), ranks=ranks, env=env)
    assert done.returncode == 0, done.stdout
    assert "Warning" not in done.stdout, done.stdout
    result = LAUNCHES_ITSELF.get(script.stem, script.stem)
    found = [str(p.relative_to(tmp_path)) for p in tmp_path.rglob("*.json")]
    assert found == [f"{result}.json"]


@pytest.mark.gpu
@pytest.mark.parametrize("script", PROGRAMS, ids=lambda p: p.stem)
def test_script_on_gpus(script, tmp_path):
    env = {"DDP_COURSE_RUNS": str(tmp_path), "DDP_COURSE_DEVICE": "cuda"}
    done = torchrun(script, env=env)
    assert done.returncode == 0, done.stdout
