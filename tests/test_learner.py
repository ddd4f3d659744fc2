"""What a learner meets on a machine that isn't set up as ours."""

import json
import os
import re
import stat
import subprocess
import sys
import sysconfig
import venv

import pytest
from jupyter_client.manager import start_new_kernel
from launch import ROOT
from lessons import NOTEBOOKS, code_cells, markdown, read

FIRST = "%load_ext ddp_course\nfrom ddp_course import checks, hardware, plots, results"


def run(*cells, kernel="python3", env=None):
    """Run cells in a kernel; for each its status and the text it shows, without colours."""
    env = {**os.environ, **(env or {})}
    manager, client = start_new_kernel(60, kernel, cwd=ROOT / "notebooks", env=env)
    try:
        return [_run(client, cell) for cell in cells]
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)


def _run(client, cell):
    shown = []
    reply = client.execute_interactive(cell, timeout=120, output_hook=shown.append)
    contents = [message["content"] for message in shown]
    text = "".join(c.get("text", "") + "\n".join(c.get("traceback", [])) for c in contents)
    return reply["content"]["status"], re.sub(r"\x1b\[[\d;]*m", "", text).strip()


def test_paths_in_launch_lines_are_quoted():
    """What a `!` line takes from Python is a number of ranks, or stands in quotes."""
    have_their_own = ("{rest}", '{args["whole"]}', "{start.format(plan=plan)}")
    have_their_own += ("{on_gpus}", "{on_gpu}")  # what starts pretended GPUs, or nothing
    quoted = 0
    for path in NOTEBOOKS:
        for cell in code_cells(read(path)):
            source = cell.source.replace("\\\n", " ")
            for line in re.findall(r"^\s*!(.*)", source, flags=re.MULTILINE):
                bare = re.sub(r"--nproc-per-node \{[\w.]+\}|--ranks \{[\w.]+\}", "", line)
                for braces in have_their_own:
                    bare = bare.replace(braces, "")
                bare, found = re.subn(r"""(["'])\{.*?\1""", "", bare)
                quoted += found
                assert "{" not in bare, f"{path.name}: quote what is in braces: {line}"
    assert quoted  # or the patterns have lost the lines


@pytest.mark.parametrize("missing", ["torch", "matplotlib"])
def test_missing_package(tmp_path, missing):
    """One line says which Python lacks what, and what to type; Run All stops there."""
    (tmp_path / "sitecustomize.py").write_text(
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        f"        if name.split('.')[0] == {missing!r}:\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "sys.meta_path.insert(0, Missing())\n"
    )
    imported, first = run("import ddp_course", FIRST, env={"PYTHONPATH": str(tmp_path)})
    assert imported == ("ok", "")
    assert first == (
        "error",
        f"UsageError: No module named '{missing}' in this kernel's Python, {sys.executable}: "
        "choose the kernel of the course's .venv, "
        'or type  %pip install -e "..[course]"  in a cell and restart the kernel',
    )


@pytest.fixture
def other_environment(tmp_path, monkeypatch):
    """An environment without the course shadows this one's kernel, and its torchrun comes first.

    It borrows this one's packages: but not the course, because Python reads no .pth files there.
    """
    folder = tmp_path / "other"
    venv.create(folder, symlinks=True)
    paths = sysconfig.get_paths("venv", {"base": str(folder), "platbase": str(folder)})
    with open(f"{paths['purelib']}/borrowed.pth", "w") as pth:
        pth.write(sysconfig.get_path("purelib") + "\n")
    torchrun = f"{paths['scripts']}/torchrun"
    with open(torchrun, "w") as file:
        file.write("#!/bin/sh\necho another torchrun\n")
    os.chmod(torchrun, os.stat(torchrun).st_mode | stat.S_IXUSR)
    spec = tmp_path / "jupyter/kernels/python3"
    spec.mkdir(parents=True)
    command = [f"{paths['scripts']}/python", "-m", "ipykernel_launcher", "-f", "{connection_file}"]
    about = {"argv": command, "display_name": "Python 3", "language": "python"}
    (spec / "kernel.json").write_text(json.dumps(about))
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
    monkeypatch.setenv("JUPYTER_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("PATH", paths["scripts"], prepend=os.pathsep)
    monkeypatch.delenv("PYTHONPATH", raising=False)


COMMAND = "-m ipykernel install --user --name ddp_course"


def test_kernel_of_another_environment(other_environment):
    (status, text), (_, python) = run(FIRST, "import sys; print(sys.prefix)")
    assert python != sys.prefix
    assert status == "error" and text.endswith("No module named 'ddp_course'")
    # The cure: this environment as a kernel that every JupyterLab of this user offers.
    subprocess.run([sys.executable, *COMMAND.split()], check=True, capture_output=True)
    which = "!command -v torchrun; command -v python"  # sh takes one name only
    before, first, after = run(which, FIRST, which, kernel="ddp_course")
    scripts = sysconfig.get_path("scripts")
    assert scripts not in before[1]
    assert first[0] == "ok" and "backend" in first[1]
    assert after[1].splitlines() == [f"{scripts}/torchrun", f"{scripts}/python"]


def test_lesson_00_names_what_they_meet():
    text = "\n".join(markdown(read(ROOT / "notebooks/00_start_here.ipynb")))
    assert "No module named 'ddp_course'" in text and COMMAND in text
