"""Lesson 15's mock interview, a small page within the page. Its questions are those of `cards`."""

import re

from IPython.display import HTML, display

from ddp_course import cards, pages


def mock_interview_page():
    """HTML: a random question, a clock, the answer, and a grade that the reader gives.

    Grades stay in the reader's browser (its localStorage), and nowhere else.

    Returns
    -------
    str
    """
    some = [{name: card[name] for name in ("section", "question", "answer")}
            for card in cards.questions()]  # fmt: skip
    for card in some:  # no addresses: the page asks the network for nothing
        card["answer"] = re.sub(r'<a href="https:[^"]*">(.*?)</a>', r"\1", card["answer"])
    grades = {"knew": "I knew it", "partly": "partly", "not": "not yet"}
    buttons = "".join(
        f'<button type="button" data-is="{name}">{text}</button>' for name, text in grades.items()
    )
    return pages.page(
        "mock_interview",
        f"""<div class="controls"><label>questions <select data-is="section"></select></label>
<button type="button" data-is="next">Ask me</button>
<button type="button" data-is="reveal">Show the answer</button>
<span data-is="clock">0:00</span></div>
<p class="question" data-is="question" aria-live="polite">Run this cell to begin.</p>
<div class="answer" data-is="answer" hidden></div>
<div class="controls" data-is="grades" hidden>{buttons}</div>
<p><span data-is="score"></span>
<button type="button" data-is="forget">Forget my grades</button></p>""",
        some,
    )


def mock_interview():
    """Display the mock interview."""
    display(HTML(mock_interview_page()))
