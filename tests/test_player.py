"""Lesson 05's player and calculator, in a headless Chromium, without a network."""

import json
import re

import lab
import numpy as np
import pytest

from ddp_course import ring, ring_page
from ddp_course.tools.errors import CourseError

LINKS = {"fixed": 2e-5, "alpha_in": 1e-6, "bandwidth_in": 3e11, "alpha_between": 5e-6,
         "bandwidth_between": 2.5e10}  # fmt: skip


@pytest.fixture(scope="module")
def page(browser_is_there):
    with lab.chromium() as page:
        asked = []
        page.on("request", lambda request: asked.append(request.url))
        page.set_content(ring_page.player_page() + ring_page.calculator_page())
        yield page
        assert [url for url in asked if not url.startswith(("about:", "data:"))] == []


def test_pages_hold_no_address():
    text = ring_page.player_page() + ring_page.calculator_page()
    assert "http" not in text.replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("algorithm", ["ring", "star", "tree", "halving-doubling", "two-level"])
def test_every_schedule_ends_with_the_sum(page, algorithm):
    player = page.locator(".ddp-ring_player")
    text = player.locator("[data-is='text']")
    player.get_by_label("algorithm").select_option(algorithm)
    ranks = player.locator("[data-is='ranks']").locator("option").all_inner_texts()
    assert [int(n) for n in ranks] == ([4, 6, 8] if algorithm == "two-level" else list(range(2, 9)))
    for n in map(int, ranks):
        player.locator("[data-is='ranks']").select_option(str(n))
        assert "Step 0 of" in text.inner_text() and "whole sum" not in text.inner_text()
        player.get_by_label("Last step").click()
        make = ring.ALGORITHMS[algorithm]
        schedule = make(n, per_node=n // 2) if algorithm == "two-level" else make(n)
        assert f"Step {len(schedule.steps)} of {len(schedule.steps)}." in text.inner_text()
        assert "All ranks hold the whole sum." in text.inner_text()
        busiest = max(ring.count(schedule, 840 * 8).sent) / (840 * 8)
        assert f"has sent {busiest:.2f} buffers" in text.inner_text()
        assert player.locator("rect.in").count() == n * n * schedule.chunks


def test_the_player_steps_and_plays(page):
    player = page.locator(".ddp-ring_player")
    text, arrows = player.locator("[data-is='text']"), player.locator("path.arrow")
    player.get_by_label("algorithm").select_option("ring")
    player.locator("[data-is='ranks']").select_option("4")
    assert arrows.count() == 0
    player.get_by_label("Next step").click()
    assert arrows.count() == 4 and "0→1 adds chunk 0" in text.inner_text()
    player.get_by_label("Last step").click()
    assert "copies chunk" in text.inner_text()
    player.get_by_label("Previous step").click()
    assert "Step 5 of 6." in text.inner_text()
    player.get_by_label("First step").click()
    player.get_by_role("button", name="Play").click()
    page.wait_for_function(
        "document.querySelector('.ddp-ring_player [data-is=text]')"
        ".textContent.startsWith('Step 2 of')"
    )
    player.get_by_role("button", name="Pause").click()
    assert player.get_by_role("button", name="Play").count() == 1
    assert player.locator("svg").get_attribute("aria-label").startswith("Step ")


def test_the_calculator_is_what_if(page):
    box = page.locator(".ddp-ring_calculator")
    for n, per_node, nbytes in (
        (64, 8, 1e8),
        (16, 16, 1e6),
        (6, 3, 1e9),
        (5, 1, 1e3),
        (12, 4, 1e7),
    ):
        values = ring_page.presets()["an example: fast inside, slow between"]
        values |= {"ranks": n, "per_node": per_node, "megabytes": nbytes / 1e6}
        for name, value in values.items():
            box.locator(f"[data-is='{name}']").fill(str(value))
        shown = [float(t.get_attribute("data-ms")) for t in box.locator("[data-ms]").all()]
        expected = ring.what_if(n, per_node, nbytes, **LINKS)
        assert np.allclose(shown, [1e3 * t for t in expected.values()], rtol=1e-9)
        best = min(expected, key=expected.get)
        assert f"the {best} is the fastest" in box.locator("[data-is='text']").inner_text()


@pytest.mark.parametrize(
    "field, value, complaint",
    [("ranks", "1", "2 to 65536 ranks"), ("ranks", "2.5", "2 to 65536"), ("ranks", "", "2 to"),
     ("per_node", "7", "must fill their nodes"), ("GBps_in", "0", "above 0"),
     ("megabytes", "-1", "above 0"), ("alpha_in_us", "-1", "0 or more")],
)  # fmt: skip
def test_bad_input_gets_one_line(page, field, value, complaint):
    box = page.locator(".ddp-ring_calculator")
    box.get_by_label("links").select_option("lesson 06's slow link")
    box.get_by_label("links").select_option("an example: fast inside, slow between")
    box.locator(f"[data-is='{field}']").fill(value)
    assert complaint in box.locator("[data-is='text']").inner_text()
    assert box.locator("rect").count() == 0


def test_presets(page):
    box = page.locator(".ddp-ring_calculator")
    names = box.get_by_label("links").locator("option").all_inner_texts()
    assert names == list(ring_page.presets()) and len([n for n in names if "recorded" in n]) == 3
    for name, values in ring_page.presets().items():
        box.get_by_label("links").select_option(name)
        shown = {f: box.locator(f"[data-is='{f}']").input_value() for f in values}
        assert {f: float(v) for f, v in shown.items()} == values
        assert box.locator("rect").count() == 3


def step_by_step(schedule, per_node, nbytes, links):
    """What a schedule costs if each step lasts as long as its slowest message."""
    total = links["fixed"]
    sizes = ring.chunk_sizes(int(nbytes), schedule.chunks)
    for step in schedule.steps:
        lasts = 0.0
        for src, dst in {*zip(step.src.tolist(), step.dst.tolist())}:
            part = sizes[step.chunk[(step.src == src) & (step.dst == dst)]].sum()
            where = "between" if src // per_node != dst // per_node else "in"
            lasts = max(lasts, links[f"alpha_{where}"] + part / links[f"bandwidth_{where}"])
        total += lasts
    return total


@pytest.mark.parametrize("n, per_node", [(8, 4), (16, 8), (6, 2), (9, 3), (4, 4), (12, 6), (5, 1)])
def test_what_if_is_the_schedules(n, per_node):
    nbytes = 5040 * n
    found = ring.what_if(n, per_node, nbytes, **LINKS)
    made = {
        "ring": ring.ring(n),
        "tree": ring.tree(n),
        "two-level": ring.two_level(n, None, per_node),
    }
    for name, schedule in made.items():
        assert np.isclose(found[name], step_by_step(schedule, per_node, nbytes, LINKS)), name


def test_what_if_refuses():
    with pytest.raises(CourseError, match="10 ranks don't fill nodes of 4"):
        ring.what_if(10, 4, 1e6, **LINKS)


def test_the_data_is_plain():
    for page in (ring_page.player_page(), ring_page.calculator_page()):
        (text,) = re.findall(r'application/json">(.*?)</script>', page)
        json.loads(text)
