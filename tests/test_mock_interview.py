"""Lesson 15's mock interview, in a headless Chromium, without a network."""

import http.server
import threading

import lab
import pytest

from ddp_course import cards, interview_page

CARDS = cards.questions()


@pytest.fixture
def page():
    """The page at an address of its own: a browser keeps grades by address."""
    if lab.browser() is None:
        pytest.skip("no Chromium here")
    text = ("<!doctype html><meta charset=utf-8>" + interview_page.mock_interview_page()).encode()

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, *_):
            pass

    server = http.server.HTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        with lab.chromium() as page:
            page.goto(f"http://127.0.0.1:{server.server_port}/")
            yield page
    finally:
        server.shutdown()
        server.server_close()


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
