"""A lesson in JupyterLab in Chromium, as a reader meets it."""

import http.client
import json
import os
from contextlib import suppress
from typing import NamedTuple
from urllib.parse import urlsplit

import lab
import nbformat
import psutil
import pytest
from launch import ODD_NAME, ROOT
from playwright.sync_api import expect

LESSON = "00_start_here"
LAUNCH = "torchrun --standalone --nproc-per-node 2 ../scripts/00_hello.py --wait 300"


class Course(NamedTuple):
    folder: os.PathLike
    address: str
    token: str


@pytest.fixture(scope="module")
def course(tmp_path_factory):
    """A copy of the course in JupyterLab."""
    folder = tmp_path_factory.mktemp("lab") / ODD_NAME
    with lab.jupyterlab(folder) as (address, token):
        yield Course(folder, address, token)


@pytest.mark.timeout(500)
def test_run_all(browser_is_there, course):
    """Lesson 00 in a folder of such a name: it writes its script and launches it there."""
    script = course.folder / "scripts/00_hello.py"
    script.unlink()
    with lab.chromium() as page:
        prompts = lab.open_lesson(page, course.address, course.token, LESSON)
        assert lab.run_all(page, prompts) == []
        text = page.locator(".jp-NotebookPanel").inner_text()
        assert "so the ranks talk to each other" in text
        ranks = json.loads((course.folder / "runs/00_hello.json").read_text())["ranks"]
        assert f"1 + ... + {len(ranks)} = " in text and "ranks still running: []" in text
        images = page.locator(".jp-NotebookPanel .jp-RenderedImage img")
        assert images.count() == 4
        folded = page.locator("details").first
        assert not folded.evaluate("d => d.open")
        folded.locator("summary").click()
        assert folded.evaluate("d => d.open")
    assert script.read_bytes() == (ROOT / "scripts/00_hello.py").read_bytes()


def test_a_script_opens_from_the_file_browser(browser_is_there, course):
    """The README's command shows the whole project, not only the notebooks."""
    with lab.chromium() as page:
        page.goto(f"{course.address}?token={course.token}&reset")
        listing = page.locator(".jp-DirListing-content .jp-DirListing-item")
        for name in ("scripts", "00_hello.py"):
            listing.get_by_text(name, exact=True).dblclick()
        first = (ROOT / "scripts/00_hello.py").read_text().splitlines()[0]
        expect(page.locator(".jp-FileEditor .cm-line").first).to_have_text(first)


def test_interrupt(browser_is_there, course):
    """■ while ranks run: its cell turns red, Run All stops, no rank is left, the kernel answers."""
    cells = ["%load_ext ddp_course", f"!{LAUNCH}", "print('the kernel', 'answers')"]
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(c) for c in cells])
    notebook.metadata.kernelspec = {"name": "python3", "display_name": "Python 3"}
    nbformat.write(notebook, course.folder / "notebooks/interrupt.ipynb")
    result = course.folder / "runs/00_hello.json"
    result.unlink(missing_ok=True)
    with lab.chromium() as page:
        lab.open_lesson(page, course.address, course.token, "interrupt", course.folder)
        lab.start_all(page)
        assert lab.wait_for(result.exists, 90), "the launch did not start"
        ranks = [psutil.Process(r["pid"]) for r in json.loads(result.read_text())["ranks"]]
        launched = [ranks[0].parent(), *ranks]  # torchrun, too
        try:
            assert len(ranks) == 2 and set(launched) < set(lab.processes(course.folder))
            page.locator(".jp-NotebookPanel [data-jp-item-name=interrupt]").click()
            error = page.locator(lab.STDERR).filter(has_text=lab.ERROR).inner_text()
            _, alive = psutil.wait_procs(launched, timeout=10)
            assert alive == []
        finally:
            for process in launched:
                with suppress(psutil.NoSuchProcess):
                    process.kill()
        assert "CalledProcessError" in error  # bash: exit status 1; sh: died with SIGINT
        assert "KeyboardInterrupt" in page.locator(".jp-NotebookPanel").inner_text()  # of the ranks
        last = page.locator(".jp-NotebookPanel .jp-CodeCell").nth(2)
        expect(last.locator(".jp-InputPrompt")).to_have_text("[ ]:", timeout=60_000)
        last.locator(".cm-content").click()
        page.keyboard.press("Shift+Enter")
        last.get_by_text("the kernel answers").wait_for()


def test_nobody_else_gets_in(course):
    """Only this machine reaches the server, and only with the token."""
    here = urlsplit(course.address)

    def ask(method, path, token=None):
        connection = http.client.HTTPConnection(here.hostname, here.port, timeout=60)
        headers = {"Authorization": f"token {token}"} if token else {}
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        connection.close()
        return answer.status, answer.getheader("Location", "")

    assert ask("GET", "/api/contents", course.token) == (200, "")
    assert ask("GET", "/api/contents")[0] == 403
    assert ask("GET", "/api/contents", "wrong" + course.token)[0] == 403
    assert ask("POST", "/api/kernels")[0] == 403
    status, where = ask("GET", "/lab")
    assert status == 302 and where.startswith("/login")
    sockets = [c for p in lab.processes(course.folder) for c in p.net_connections("tcp")]
    listening = {c.laddr for c in sockets if c.status == psutil.CONN_LISTEN}
    assert here.port in {a.port for a in listening}
    assert {a.ip for a in listening} <= {"127.0.0.1", "::1"}
