"""Lesson 15: enough questions, each led back to a proof that still holds."""

import ast
import json
import re
from functools import cache
from html import unescape
from urllib.parse import unquote

import pytest
from IPython.core.inputtransformer2 import TransformerManager
from launch import ROOT
from lessons import NOTEBOOKS, markdown, read

from ddp_course.book import anchor

LESSON = ROOT / "notebooks/15_interview.ipynb"
TEXT = "\n".join(markdown(read(LESSON)))
FOLDED = r"<details><summary>(?:\d+\. )?(.*?)</summary>(.*?)</details>"
QUESTIONS = {
    unescape(question): answer
    for question, answer in re.findall(FOLDED, TEXT, flags=re.DOTALL)
    if "Proof: " in answer
}
# {question: the lesson and the id of the assert that hold its answer, and the words that rest on
# it}
HELD = json.loads((ROOT / "tests/answers.json").read_text())
WRONGLY = "Often answered wrongly"
# Answered wrongly, and held by something else than an assert of a lesson.
OTHERWISE = {
    "Is DDP's all-reduce a ring?",  # what NCCL's own log says, quoted there
}
MARK = re.compile(r"# holds: (\S+)")
OTHERS = [path for path in NOTEBOOKS if path.stem < "15"]  # lesson 16 is read after it


def links(text):
    return {unquote(link) for link in re.findall(r'href="([^"]+)"', text)}


@cache
def asserts(path):
    """{id: the anchor of the heading above} of the asserts marked ``# holds: id``.

    The mark stands behind the assert, or in a line of its own above it.
    """
    found, at = {}, ""
    for cell in read(path).cells:
        if cell.cell_type == "markdown":
            titles = re.findall(r"^#+ +(.+?) *$", cell.source, flags=re.MULTILINE)
            at = anchor(titles[-1]) if titles else at
        elif not cell.source.startswith("%%"):
            code = TransformerManager().transform_cell(cell.source)  # ! and % become calls
            lines = code.split("\n")
            nodes = [n for n in ast.walk(ast.parse(code)) if isinstance(n, ast.Assert)]
            marks = [MARK.findall(lines[n.end_lineno - 1]) for n in nodes]
            marks += [MARK.findall(lines[n.lineno - 2]) for n in nodes if is_mark(lines, n)]
            ids = [name for names in marks for name in names]
            assert len(ids) == len(MARK.findall(code)), f"a mark without an assert: {cell.source}"
            assert not found.keys() & set(ids), f"{path.name} has an id twice: {ids}"
            found |= dict.fromkeys(ids, at)
    return found


def is_mark(lines, node):
    """Whether the line above is a mark and nothing else."""
    return node.lineno > 1 and lines[node.lineno - 2].lstrip().startswith("# holds: ")


def test_enough_questions():
    assert len(QUESTIONS) >= 100
    numbers = re.findall(r"<summary>(\d+)\. ", TEXT)
    assert numbers == [str(i + 1) for i in range(len(numbers))] and len(numbers) >= 100
    assert TEXT.count(WRONGLY) > 20


@pytest.mark.parametrize("question", QUESTIONS)
def test_answer(question):
    text, _, proof = QUESTIONS[question].partition("Proof: ")
    text = text.split("<b>")[0]
    assert 1 <= len(re.findall(r"[.!?)](?=\s|$)", text)) <= 6, text
    assert any(".ipynb#" in link for link in links(proof)) or question not in HELD


def test_every_corner_is_represented():
    """Each question of each lesson's corner rests on a heading that some answer here links to."""
    linked = links(TEXT)
    for path in OTHERS:
        corner = "\n".join(markdown(read(path))).split("## Interview corner")[1].split("\n## ")[0]
        for question, answer in re.findall(FOLDED, corner, flags=re.DOTALL):
            proofs = {path.name + x if x.startswith("#") else x for x in links(answer)}
            assert proofs & linked, (path.name, question)


@pytest.mark.parametrize("question", HELD)
def test_answer_rests_on_an_assert(question):
    """The lesson's run proves the assert, so the answer can't contradict it unnoticed."""
    held, answer = HELD[question], QUESTIONS[question]
    assert held.get("says", "") in unescape(answer)
    path = next(p for p in OTHERS if p.name.startswith(held["lesson"]))
    under = {link.partition("#")[2] for link in links(answer) if link.startswith(path.name)}
    at = asserts(path).get(held["assert"])
    assert at in under, f"{held['assert']} is under {at!r}, not {sorted(under)}: still true?"


def test_no_mark_is_left_over():
    used = {held["assert"] for held in HELD.values()}
    assert {name for path in OTHERS for name in asserts(path)} == used


def test_the_number_of_held_answers_is_told():
    held = sum(question in HELD for question in QUESTIONS)
    assert f"For {held} of the answers a link leads to an assert" in TEXT


def test_what_is_answered_wrongly_is_held():
    wrongly = {q for q, answer in QUESTIONS.items() if WRONGLY in answer}
    assert wrongly - set(HELD) == OTHERWISE
    assert set(HELD) <= set(QUESTIONS)
