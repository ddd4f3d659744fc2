"""JupyterLab on loopback, and a Chromium that works in it as a reader would."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
from launch import ROOT, copy_course
from playwright.sync_api import TimeoutError as PageTimeout

PROMPTS = "[...document.querySelectorAll('.jp-NotebookPanel .jp-CodeCell .jp-InputPrompt')]"
STDERR = "[data-mime-type='application/vnd.jupyter.stderr']"  # JupyterLab shows tracebacks so, too
ERROR = re.compile(r"Traceback \(most recent call last\)|UsageError")


@contextmanager
def jupyterlab(folder):
    """Serve a copy of the course from folder, with a token; yields the address of /lab."""
    env = copy_course(folder)
    settings = folder / "settings/@jupyterlab/notebook-extension/tracker.jupyterlab-settings"
    settings.parent.mkdir(parents=True)
    settings.write_text(
        '{"windowingMode": "none"}'
    )  # every cell is in the page, not only those in view
    env |= {
        "JUPYTER_CONFIG_DIR": str(folder / "config"),  # without the user's own settings
        "JUPYTERLAB_SETTINGS_DIR": str(folder / "settings"),
        "JUPYTER_RUNTIME_DIR": str(folder / "runtime"),
    }
    # As a reader gets it who types the README's command, with no --ip and no token of ours.
    command = re.search(r"bin/jupyter lab (.+)", (ROOT / "README.md").read_text())[1]
    flags = [*command.split(), "--no-browser", "--port=0"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        flags.append("--allow-root")
    with open(folder / "lab.log", "w") as log:
        server = subprocess.Popen(
            [sys.executable, "-m", "jupyterlab", *flags],
            env=env,
            cwd=folder,
            stdout=log,
            stderr=log,
        )
    try:
        about = wait_for(lambda: _about(folder), 60)
        yield f"{about['url']}lab", about["token"]
    finally:
        below = psutil.Process(server.pid).children(recursive=True)
        server.terminate()
        server.wait(30)
        _, alive = psutil.wait_procs(below, timeout=10)
        for process in alive:
            process.kill()
        assert alive == [], "JupyterLab left these running"


def processes(folder):
    """The server that `jupyterlab` started in folder, its kernels, and what these have started."""
    server = psutil.Process(_about(folder)["pid"])
    return [server, *server.children(recursive=True)]


def browser():
    """Path of a Chromium or Chrome on this machine, or None."""
    names = ("chromium", "chromium-browser", "google-chrome")
    return next((path for name in names if (path := shutil.which(name))), None)


@contextmanager
def chromium(width=1280, height=1600):
    """A page of a headless Chromium."""
    from playwright.sync_api import sync_playwright

    flags = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking"]
    flags += ["--disable-component-update", "--disable-sync", "--no-first-run"]
    with sync_playwright() as p:
        started = p.chromium.launch(executable_path=browser(), args=flags)
        try:
            page = started.new_page(viewport={"width": width, "height": height})
            page.set_default_timeout(120_000)  # two cores may be busy with ranks
            yield page
        finally:
            started.close()


def open_lesson(page, address, token, name, folder=ROOT):
    """Open a notebook, wait for its last cell and its kernel; returns the prompts to expect."""
    cells = json.loads((folder / f"notebooks/{name}.ipynb").read_text())["cells"]
    code = [c for c in cells if c["cell_type"] == "code"]
    count = len(code)
    page.goto(f"{address}/tree/notebooks/{name}.ipynb?token={token}&reset")
    page.wait_for_function(
        f"document.querySelectorAll('.jp-NotebookPanel .jp-CodeCell').length == {count}"
    )
    # A cell started earlier goes nowhere, or ends in a dialog that asks for a kernel.
    page.locator("#jp-main-statusbar").get_by_text("| Idle").wait_for()
    # A cell with a folded source shows no prompt.
    folded = [c["metadata"].get("jupyter", {}).get("source_hidden", False) for c in code]
    return [f"[{i + 1}]:" for i in range(count) if not folded[i]]


def start_all(page):
    """Run All Cells; returns when the first has started."""
    started = f"{PROMPTS}.some(p => p.innerText.includes('*'))"
    for wait_ms in (20_000, 20_000, 80_000):  # a click before the page is ready goes nowhere
        page.get_by_role("menuitem", name="Run", exact=True).click()
        page.get_by_role("menuitem", name="Run All Cells", exact=True).click()
        with suppress(PageTimeout):
            page.wait_for_function(started, timeout=wait_ms)
            return
    status = page.locator("#jp-main-statusbar").inner_text()
    raise AssertionError(f"no cell has started; the status bar says {status}")


def run_all(page, numbered, seconds=400):
    """Run all cells of a fresh kernel and wait for the last; returns the texts of errors."""
    start_all(page)
    page.wait_for_function(
        f"""(() => {{
            const seen = {PROMPTS}.map(p => p.innerText.trim()).filter(Boolean);
            return [...document.querySelectorAll("{STDERR}")].some(e => e.innerText.match(
                    {json.dumps(ERROR.pattern)}))
                || ({json.dumps(numbered)}.every(n => seen.includes(n))
                    && !seen.some(text => text.includes("*")));
        }})()""",
        timeout=seconds * 1000,
    )
    return page.locator(STDERR).filter(has_text=ERROR).all_inner_texts()


def _about(folder):
    """What the server wrote about itself, once it has finished writing."""
    for file in Path(folder / "runtime").glob("jpserver-*.json"):
        with suppress(json.JSONDecodeError):
            return json.loads(file.read_text())


def wait_for(look, seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := look():
            return found
        time.sleep(0.2)
    raise TimeoutError(f"nothing after {seconds} s")
