"""Run by test_exercises_launched.py under torchrun: answers to a lesson's exercises."""

import importlib.util
import sys
from functools import partial
from pathlib import Path

import torch.distributed as dist

from ddp_course import collective_exercises, own_ddp_check, results
from ddp_course.process_group import process_group

sys.path.insert(0, str(Path(__file__).parents[1]))
from wrong_answers import answers  # noqa: E402

STAGES = ("PerParameter", "Hooks", "Buckets")


def load(path):
    spec = importlib.util.spec_from_file_location("loaded", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def of_lesson_02(me, script, solutions):
    """{exercise and answer: its check}, with the solutions as a reader pastes them."""
    lesson = load(script)
    checks = {f.__name__: check for f, check in lesson.CHECKS.items()}
    assert set(checks.values()) == {
        collective_exercises.check_broadcast,
        collective_exercises.check_gather,
    }
    exec(Path(solutions).read_text(), vars(lesson))
    attempts = {f"{name}: solution": (name, getattr(lesson, name)) for name in checks}
    told = [a for a in answers("02") if a.exercise in checks]
    attempts |= {f"{a.exercise}: {a.__name__}": (a.exercise, a) for a in told}
    return {label: partial(checks[name], me, a, 5) for label, (name, a) in attempts.items()}


def of_lesson_03(me):
    """{exercise and wrapper: its check}"""
    wrappers = [a for a in answers("03") if a.exercise in STAGES]
    return {
        f"{a.exercise}: {a.__name__}": partial(own_ddp_check.check, me, a.exercise, a)
        for a in wrappers
    }


def main(number, *args):
    verdicts = {}
    with process_group() as me:
        for label, check in {"02": of_lesson_02, "03": of_lesson_03}[number](me, *args).items():
            try:
                check()
                verdicts[label] = "right"
            except AssertionError as error:
                verdicts[label] = str(error)
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, verdicts)
        results.save("exercises", {"ranks": everyone})


if __name__ == "__main__":
    main(*sys.argv[1:])
