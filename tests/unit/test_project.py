"""One list of versions, one test command, and a clean style."""

import base64
import json
import re
import subprocess
import sys

import tomllib
import yaml
from launch import ROOT
from lessons import NOTEBOOKS, code_cells, read
from nbval.plugin import get_sanitize_patterns

README = (ROOT / "README.md").read_text()
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
ALLOWED = {
    "notebooks", "ddp_course", "scripts", "tests", "environment.yml", "README.md",
    "pyproject.toml", "LICENSE", ".gitignore", ".ci", ".github",
    ".devcontainer",
}  # fmt: skip


def commands():
    return re.findall(r"^python3 -m venv .*$", README, flags=re.MULTILINE)


def test_ruff():
    for args in (["check"], ["format", "--check", "ddp_course", "scripts", "tests"]):
        done = subprocess.run(
            [sys.executable, "-m", "ruff", *args], cwd=ROOT, capture_output=True, text=True
        )
        assert done.returncode == 0, done.stdout


def test_environment_names_no_version():
    lines = (ROOT / "environment.yml").read_text().splitlines()
    entries = [x.strip(" -") for x in lines if x.startswith("  - ") or x.startswith("      - ")]
    assert set(entries) == {"conda-forge", "python", "pip", "pip:", "e .[test]"}
    extras = PYPROJECT["project"]["optional-dependencies"]
    assert "test" in extras


def test_nbval_reads_every_sanitizer():
    """It skips, silently, an entry whose replacement is empty."""
    text = (ROOT / "tests/sanitize.cfg").read_text()
    patterns = dict(get_sanitize_patterns(text))
    assert len(patterns) == text.count("regex:")
    terminal = "a\r\nb\r\n"
    for regex, replacement in patterns.items():
        terminal = re.sub(regex, replacement, terminal)
    assert terminal == "a\nb\n"


def test_ci_runs_the_readme_s_command():
    lab, test = commands()
    assert lab.endswith("jupyter lab --ServerApp.root_dir=. notebooks/00_start_here.ipynb")
    assert test.endswith("python -m pytest -n 2")
    assert test in (ROOT / ".ci/run").read_text().splitlines()
    workflow = (ROOT / ".github/workflows/test.yml").read_text()
    assert "run: bash .ci/run" in workflow


def test_the_book_s_workflow_runs_the_readme_s_command():
    workflow = yaml.safe_load((ROOT / ".github/workflows/book.yml").read_text())
    build, publish = workflow["jobs"]["build"]["steps"], workflow["jobs"]["publish"]
    (made,) = [step["run"] for step in build if "ddp_course.book" in step.get("run", "")]
    assert made.split(" #")[0] in README
    (upload,) = [step for step in build if "upload-pages-artifact" in step.get("uses", "")]
    assert upload["with"]["path"] + "/index.html" in README
    assert publish["needs"] == "build" and set(workflow["permissions"]) >= {"pages", "id-token"}


def test_the_codespace_installs_what_the_lessons_need():
    container = json.loads((ROOT / ".devcontainer/devcontainer.json").read_text())
    assert container["postCreateCommand"] == "pip install -e '.[course]'"
    assert container["hostRequirements"]["cpus"] == 2
    newest = container["image"].rpartition(":")[2]  # an image tag such as 3.12
    assert tuple(map(int, newest.split("."))) >= (3, 11)


def test_readme_lists_every_lesson():
    for path in NOTEBOOKS:
        assert f"notebooks/{path.name}" in README
    for target in re.findall(r"\]\(([^)#:]+)\)", README):
        assert (ROOT / target).exists(), target


def test_the_picture_is_a_lesson_s():
    """Executed again, a lesson may draw it anew: then copy it from the notebook's output."""
    (name,) = re.findall(r"!\[[^\]]{40,}\]\(notebooks/(\w+\.png)\)", README)
    cells = [c for path in NOTEBOOKS for c in code_cells(read(path))]
    found = [out.get("data", {}).get("image/png") for c in cells for out in c.outputs]
    stored = {base64.b64decode(data) for data in found if data}
    assert (ROOT / "notebooks" / name).read_bytes() in stored


def test_top_level():
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode == 0:
        assert {line.split("/")[0] for line in listed.stdout.splitlines()} <= ALLOWED
