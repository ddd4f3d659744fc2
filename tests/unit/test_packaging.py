"""What a training project gets: torch and psutil, and tools that know no lesson."""

import ast

import pytest
import tomllib
from launch import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
TOOLS = sorted((ROOT / "ddp_course/tools").rglob("*.py"))


def name_of(requirement):
    return requirement.split(">")[0].split("[")[0]


def test_the_package_alone_needs_torch_and_psutil():
    assert PROJECT["dependencies"][0] == "torch>=2.4"
    assert {name_of(r) for r in PROJECT["dependencies"]} == {"torch", "psutil"}
    assert PROJECT["requires-python"] == ">=3.10"


def test_the_extras_for_lessons_and_tests():
    extras = PROJECT["optional-dependencies"]
    assert "torch>=2.14.1" in extras["course"]
    assert any(r.startswith("ddp_course[course,") for r in extras["test"])
    named = {name_of(r) for r in extras["course"]}
    assert {"jupyterlab", "matplotlib", "torchvision", "scikit-learn", "tensorboard"} <= named


def test_every_folder_of_the_package_is_packed():
    text = tomllib.loads((ROOT / "pyproject.toml").read_text())
    folders = {p.parent.relative_to(ROOT).as_posix().replace("/", ".") for p in TOOLS}
    assert {"ddp_course", *folders} == set(text["tool"]["setuptools"]["packages"])


def test_what_is_not_python_is_packed():
    packed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folder = ROOT / "ddp_course/tools/rehearse"
    others = {p.relative_to(folder).as_posix() for p in folder.rglob("*.[ch]")}
    assert "gpus.c" in others and others == {*packed["package-data"]["ddp_course.tools.rehearse"]}


@pytest.mark.parametrize("file", TOOLS, ids=lambda p: p.relative_to(ROOT).as_posix())
def test_tools_know_no_lesson(file):
    tree = ast.parse(file.read_text(), feature_version=(3, 10))
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "imports are absolute here"
            imported.add(node.module)
            if node.module in ("ddp_course", "ddp_course.tools"):
                imported |= {f"{node.module}.{alias.name}" for alias in node.names}
    of_the_course = {m for m in imported if m.startswith("ddp_course.")}
    assert "ddp_course" not in imported
    assert all(m.startswith("ddp_course.tools") for m in of_the_course), of_the_course
