"""The notebooks as the tests see them."""

import re
from pathlib import Path

import nbformat
from launch import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
SCRIPTS = sorted((ROOT / "scripts").glob("*"))


def read(path):
    return nbformat.read(path, as_version=4)


def code_cells(notebook):
    return [c for c in notebook.cells if c.cell_type == "code"]


def markdown(notebook):
    """Text of the Markdown cells, without fenced code."""
    cells = [c.source for c in notebook.cells if c.cell_type == "markdown"]
    return [re.sub(r"```.*?```", "", text, flags=re.DOTALL) for text in cells]


def headings(notebook):
    """(level, text) of each heading."""
    found = (
        re.findall(r"^(#+) +(.+?) *$", text, flags=re.MULTILINE) for text in markdown(notebook)
    )
    return [(len(marks), text) for cell in found for marks, text in cell]


def written_scripts(notebook):
    """{script name: content} of the %%writefile cells."""
    found = {}
    for cell in code_cells(notebook):
        first, _, body = cell.source.partition("\n")
        if first.startswith("%%writefile"):
            found[Path(first.split()[1]).name] = body.rstrip("\n") + "\n"
    return found
