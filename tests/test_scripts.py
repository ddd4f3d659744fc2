"""Every script under torchrun, as a reader would start it in a terminal."""

import pytest
from launch import python, torchrun
from lessons import SCRIPTS

# Where a lesson claims something about N, four ranks run too.
RANKS = {"01_gradients": [2, 4], "02_collectives": [2, 4]}
CASES = [(p, n) for p in SCRIPTS if p.suffix == ".py" for n in RANKS.get(p.stem, [2])]
LAUNCHES_ITSELF = {"02_spawn"}


@pytest.mark.parametrize("script, ranks", CASES, ids=lambda v: getattr(v, "stem", v))
def test_script(script, ranks, tmp_path):
    env = {"DDP_COURSE_RUNS": str(tmp_path), "DDP_COURSE_DEVICE": "cpu"}
    if script.stem in LAUNCHES_ITSELF:
        done = python(script, env=env)
    else:
        done = torchrun(script, ranks=ranks, env=env)
    assert done.returncode == 0, done.stdout
    assert "Warning" not in done.stdout, done.stdout
    assert [p.name for p in tmp_path.iterdir()] == [f"{script.stem}.json"]


@pytest.mark.gpu
@pytest.mark.parametrize("script", [p for p in SCRIPTS if p.suffix == ".py"], ids=lambda p: p.stem)
def test_script_on_gpus(script, tmp_path):
    env = {"DDP_COURSE_RUNS": str(tmp_path), "DDP_COURSE_DEVICE": "cuda"}
    done = torchrun(script, env=env)
    assert done.returncode == 0, done.stdout
