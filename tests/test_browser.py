"""A lesson in JupyterLab in Chromium, as a reader meets it."""

import os

import lab
import pytest

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
