"""Lesson 15's mock interview, in a headless Chromium, without a network."""

import lab
import pytest

from ddp_course import cards, interview_page

CARDS = cards.questions()


@pytest.fixture
def page(browser_is_there, tmp_path):
    """The page from a file: a browser keeps grades by address, and a new profile has none."""
    path = tmp_path / "page.html"
    text = "<!doctype html><meta charset=utf-8>" + interview_page.mock_interview_page()
    path.write_text(text, encoding="utf-8")
    with lab.chromium() as page:
        page.goto(path.as_uri())
        yield page


def question(page):
    return page.locator("[data-is=question]").inner_text()


def test_ask_reveal_grade(page):
    score = page.locator("[data-is=score]")
    assert score.inner_text() == f"{len(CARDS)} questions: 0 known, 0 partly, 0 not yet."
    assert page.get_by_role("button", name="Show the answer").is_disabled()
    page.get_by_role("button", name="Ask me").click()
    answer = page.locator("[data-is=answer]")
    assert question(page) in {card["question"] for card in CARDS} and answer.is_hidden()
    page.wait_for_function("document.querySelector('[data-is=clock]').textContent === '0:01'")
    page.get_by_role("button", name="Show the answer").click()
    assert answer.is_visible() and len(answer.inner_text()) > 40
    first = question(page)
    page.get_by_role("button", name="partly").click()
    assert question(page) != first and answer.is_hidden()
    assert "1 partly" in score.inner_text()
    page.reload()  # the grade is still there
    assert "1 partly" in score.inner_text()
    page.get_by_role("button", name="Forget my grades").click()
    assert "0 partly" in score.inner_text()


def test_what_is_known_comes_last(page):
    sections = page.locator("[data-is=section] option").all_inner_texts()
    assert sections[0] == "all" and "Basics" in sections
    section = min(sections[1:], key=lambda name: sum(c["section"] == name for c in CARDS))
    some = [card["question"] for card in CARDS if card["section"] == section]
    page.get_by_label("questions").select_option(section)
    seen = []
    for _ in some:
        seen.append(question(page))
        page.get_by_role("button", name="Show the answer").click()
        page.get_by_role("button", name="I knew it").click()
    assert sorted(seen) == sorted(some)  # each once, before any comes again
    assert f"{len(some)} known" in page.locator("[data-is=score]").inner_text()
