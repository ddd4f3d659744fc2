"""A lesson in JupyterLab in Chromium, as a reader meets it."""

import os

import lab
import matplotlib.pyplot as plt
import pytest

from ddp_course import plots

LESSON = "00_start_here"


@pytest.fixture(scope="module")
def browser_is_there():
    if not lab.browser():
        # Under CI a missing browser is a fault of the set-up, not a reason to look away.
        (pytest.fail if os.environ.get("CI") else pytest.skip)("chromium is not installed")


@pytest.mark.timeout(500)
def test_run_all(browser_is_there, tmp_path):
    with lab.jupyterlab(tmp_path) as (address, token), lab.chromium() as page:
        prompts = lab.open_lesson(page, address, token, LESSON)
        assert lab.run_all(page, prompts) == []
        text = page.locator(".jp-NotebookPanel").inner_text()
        assert "so the ranks talk to each other" in text
        assert "ranks still running: []" in text
        images = page.locator(".jp-NotebookPanel .jp-RenderedImage img")
        assert images.count() == 2
        folded = page.locator("details").first
        assert not folded.evaluate("d => d.open")
        folded.locator("summary").click()
        assert folded.evaluate("d => d.open")
    assert (tmp_path / "runs/00_hello.json").exists()


def test_player_steps(browser_is_there, monkeypatch):
    shown = []
    monkeypatch.setattr(plots, "display", lambda page: shown.append(page.data))
    fig, ax = plt.subplots(figsize=(2, 1))
    plots.player(fig, lambda i: ax.set_title(f"picture {i}"), 3, 'three "pictures"')
    assert "http" not in shown[0].replace("http://www.w3.org", "")  # nothing comes from a network
    with lab.chromium() as page:
        page.set_content(shown[0])
        image = page.get_by_alt_text('three "pictures"')
        seen = [image.get_attribute("src")]
        for name in ("Next frame", "Next frame", "Previous frame", "Last frame", "First frame"):
            page.get_by_role("button", name=name).click()
            seen.append(image.get_attribute("src"))
        pictures = seen[:3]
        assert len(set(pictures)) == 3 and seen[3:] == [pictures[i] for i in (1, 2, 0)]
        assert page.get_by_role("button", name="Next frame").inner_text() == "▶"
