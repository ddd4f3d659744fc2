"""The exercises of the lessons: the solution passes, typical wrong answers are told why.

The answers are in tests/wrong_answers/NN.py. Lesson 02's exercises need ranks:
tests/test_exercises_launched.py.
"""

import ast
import gc
import itertools
import math
import os
import random
import re
import shutil
import threading
from functools import cache
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from IPython.core.inputtransformer2 import TransformerManager
from lessons import NOTEBOOKS, code_cells, read
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.testing._internal.distributed.fake_pg import FakeStore
from torch.utils.data import DistributedSampler
from wrong_answers import answers

from ddp_course import checks, evidence, models, results, ring, ring_exercises

# What the lessons' cells import.
IMPORTED = {
    "checks": checks, "evidence": evidence, "models": models, "results": results, "ring": ring,
    "ring_exercises": ring_exercises,
    "torch": torch, "nn": torch.nn, "F": torch.nn.functional, "dist": dist, "DDP": DDP,
    "allreduce_hook": allreduce_hook, "gc": gc, "itertools": itertools, "math": math, "os": os,
    "shutil": shutil, "DistributedSampler": DistributedSampler,
    "random": random, "threading": threading,
    "FakeStore": FakeStore, "SimpleNamespace": SimpleNamespace,
}  # fmt: skip
STUB = r"def (\w+)\([^)]*\):(?=\n    raise NotImplementedError)"
LESSONS = {path.stem[:2]: path for path in NOTEBOOKS}


@cache
def code(number):
    """Sources of a lesson's code cells."""
    return [cell.source for cell in code_cells(read(LESSONS[number]))]


def stubs():
    """[(lesson's number, function)], in the order of the lessons."""
    return [
        (number, name)
        for number in LESSONS
        for source in code(number)
        if not source.startswith("%%writefile")
        for name in re.findall(STUB, source)
    ]


EXERCISES = stubs()
ANSWERS = [
    (number, answer)
    for number in dict(EXERCISES)  # each lesson once
    for answer in answers(number)
    if (number, answer.exercise) in EXERCISES  # lesson 02 has others, in a script
]
WRONG = [(number, answer) for number, answer in ANSWERS if answer.hint]
RIGHT = [(number, answer) for number, answer in ANSWERS if not answer.hint]


def functions_of(source):
    """The functions that a cell defines, without what the cell does."""
    tree = ast.parse(TransformerManager().transform_cell(source))  # ! and % become calls
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return compile(tree, "cell", "exec")


def check(number, name, answer=None):
    """Run the stub's cell and the check in the next, with another answer unless that is None.

    Parameters
    ----------
    number, name : str
        The lesson's number, and the function that the reader writes.
    answer : callable or str, optional
        What takes the stub's place; a str is the source that defines it.
    """
    cells = code(number)
    at = next(i for i, source in enumerate(cells) if name in re.findall(STUB, source))
    names = dict(IMPORTED)
    for source in cells[:at]:
        exec(functions_of(source), names)
    exec(cells[at], names)
    if isinstance(answer, str):
        exec(answer, names)
    elif answer is not None:
        names[name] = answer
    exec(cells[at + 1], names)


def solution(number, name):
    """Source of the folded solution."""
    text = "\n".join(c.source for c in read(LESSONS[number]).cells if c.cell_type == "markdown")
    blocks = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    (found,) = [block for block in blocks if block.startswith(f"def {name}(")]
    return found


def name_of(value):
    return value if isinstance(value, str) else f"{value.exercise}-{value.__name__}"


def test_every_exercise_is_tested():
    for exercise in EXERCISES:
        wrong = [a for number, a in WRONG if (number, a.exercise) == exercise]
        assert len(wrong) >= 3, exercise
    assert {(number, a.exercise) for number, a in ANSWERS} == set(EXERCISES)


@pytest.mark.parametrize("number, name", EXERCISES)
def test_stub_is_green(number, name, capsys):
    check(number, name)
    assert capsys.readouterr().out == "not attempted yet\n"


@pytest.mark.parametrize("number, name", EXERCISES)
def test_solution_passes(number, name, capsys):
    check(number, name, solution(number, name))
    assert capsys.readouterr().out.startswith("right, in all")


@pytest.mark.parametrize("number, answer", RIGHT, ids=name_of)
def test_other_right_answer_passes(number, answer, capsys):
    check(number, answer.exercise, answer)
    assert capsys.readouterr().out.startswith("right, in all")


@pytest.mark.parametrize("number, answer", WRONG, ids=name_of)
def test_wrong_answer_is_told_why(number, answer):
    with pytest.raises(AssertionError, match=re.escape(answer.hint)):
        check(number, answer.exercise, answer)
