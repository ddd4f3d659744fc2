"""The reading edition: the executed notebooks as web pages that need no network.

    python -m ddp_course.book --out runs/book

Nothing is executed: the outputs are those that are stored. Open ``index.html`` in the folder.
"""

import argparse
import json
import re
import shutil
import sys
import tempfile
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parents[1]
MARK = ".ddp_course_book"  # is in a folder that this command made, and may replace
_LANGUAGES = {".py": "python", ".sh": "bash", ".sbatch": "bash", ".yaml": "yaml"}
_SETTINGS = {
    "extensions": ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "ddp_course.book"],
    "autodoc_member_order": "bysource",
    "autodoc_typehints": "none",  # the docstrings name types, and shapes too
    "add_module_names": False,
    "napoleon_use_rtype": False,
    "napoleon_use_ivar": True,
    "html_title": "Learn DDP by running it",
    "html_theme": "sphinx_book_theme",
    "html_theme_options": {
        "use_download_button": False,  # its link would need a copy of every notebook
        "use_fullscreen_button": False,
        "navbar_persistent": [],  # the search field is at the side already
        "footer_content_items": [],
    },
    "html_static_path": ["_static"],
    "html_css_files": ["book.css"],
    "html_copy_source": False,
    "html_use_index": False,
    "html_domain_indices": False,
    "html_math_renderer": "mathml",
    "highlight_language": "text",
    "smartquotes": False,  # would make a dash of the -- in an error text
    "nb_execution_mode": "off",
    "nb_merge_streams": True,
    "myst_enable_extensions": ["dollarmath"],
    "myst_heading_anchors": 6,
    "myst_heading_slug_func": "ddp_course.book.anchor",
}

# The page of the tools is made of their docstrings, module by module.
_TOOLS = ("diagnose", "audit", "rehearse", "checkpoint", "preemption", "cluster_check", "launched",
          "collectives", "errors")  # fmt: skip
_TOOLS_PAGE = """# The tools' functions and classes

What `ddp_course.tools` offers to a project of your own, from the docstrings of the code.

"""


def anchor(heading):
    """What JupyterLab calls a heading in a link; in the book it is an id of the heading, too."""
    return heading.replace("`", "").replace(" ", "-")


def build(out):
    """Build the book of the notebooks in this folder.

    Parameters
    ----------
    out : path
        Folder to write: new, empty, or a book that this function made, which it replaces.

    Returns
    -------
    int
        0; or 1 if Sphinx had warnings, which it has printed. Then ``out`` is as it was.

    Raises
    ------
    ModuleNotFoundError
        Sphinx, myst-nb or the theme is not installed.
    OSError
        ``out`` holds something else or can't be written, or there are no notebooks.
    """
    import myst_nb  # noqa: F401  # here, because Sphinx would report it missing in many lines
    import sphinx_book_theme  # noqa: F401
    from sphinx.application import Sphinx

    out = Path(out).resolve()
    if out.exists() and not (out / MARK).exists() and (not out.is_dir() or any(out.iterdir())):
        raise FileExistsError(f"{out} is not a book of this command: name a new or empty folder")
    out.parent.mkdir(parents=True, exist_ok=True)
    # Made beside its place and moved there whole: until then an old book stays.
    with tempfile.TemporaryDirectory(prefix=".book-", dir=out.parent) as folder:
        source, made = Path(folder, "source"), Path(folder, "book")
        _write_source(source)
        app = Sphinx(
            source, None, made, Path(folder, "doctrees"), "html", _SETTINGS,
            status=None, warning=sys.stderr, warningiserror=True,
        )  # fmt: skip
        app.build()
        if app.statuscode:
            return app.statuscode
        (made / MARK).touch()
        if out.exists():
            shutil.rmtree(out)
        made.rename(out)
    return 0


def _write_source(source):
    """Lay out README, notebooks and the files they link to as Sphinx wants them."""
    notebooks = sorted((ROOT / "notebooks").glob("*.ipynb"))
    if not notebooks:
        raise FileNotFoundError(f'no notebooks in {ROOT}: type  pip install -e ".[book]"  there')
    (source / "notebooks").mkdir(parents=True)
    (source / "_static").mkdir()
    shutil.copy(Path(__file__).with_suffix(".css"), source / "_static")
    files, titles = set(), []
    for path in notebooks:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        notebook["metadata"].setdefault("language_info", {})["pygments_lexer"] = "ipython3"
        for cell in notebook["cells"]:
            if cell["cell_type"] == "markdown":
                cell["source"] = _point_links("".join(cell["source"]), path.parent, files)
            elif cell["metadata"].get("jupyter", {}).get("source_hidden"):
                cell["metadata"].setdefault("tags", []).append("hide-input")
        (source / "notebooks" / path.name).write_text(json.dumps(notebook), encoding="utf-8")
        title = notebook["cells"][0]["source"].partition("\n")[0].lstrip("# ").replace("`", "")
        titles.append(f"{path.stem[:2]} {title} <notebooks/{path.stem}>")
    start = _point_links((ROOT / "README.md").read_text(encoding="utf-8"), ROOT, files)
    titles.append("The tools' functions and classes <tools>")
    (source / "tools.md").write_text(_TOOLS_PAGE + "".join(map(_tool, _TOOLS)), encoding="utf-8")
    contents = ["", "```{toctree}", ":hidden:", "", *titles, "```", ""]
    (source / "index.md").write_text(start + "\n".join(contents), encoding="utf-8")
    for file in files:
        name, fence = file.relative_to(ROOT).as_posix(), "`" * 8
        if file.suffix == ".png":
            shutil.copy(file, source / name)
            continue
        page = f"---\norphan: true\nnosearch: true\n---\n# `{name}`\n\n"
        for lesson in notebooks:
            if file.parent.name == "scripts" and lesson.name[:3] == file.name[:3]:
                page += f"From [lesson {lesson.name[:2]}](/notebooks/{lesson.name}).\n\n"
        language = _LANGUAGES.get(file.suffix, "text")
        page += f"{fence}{language}\n{file.read_text(encoding='utf-8')}\n{fence}\n"
        made = source / f"{name}.md"
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(page, encoding="utf-8")


def _tool(name):
    """A section with all that a module documents; Sphinx's autodoc reads it."""
    module = f"ddp_course.tools.{name}"
    return f"## `{module}`\n\n```{{eval-rst}}\n.. automodule:: {module}\n   :members:\n```\n\n"


def _point_links(text, here, files):
    """Point links at pages of the book; add to files what needs a page of its own.

    Sphinx doesn't see links in raw HTML (the folded answers): they get the name of the page made.
    """

    def point(match):
        before, target, fragment = match[1], match[2], match[3] or ""
        file = (here / unquote(target)).resolve()
        if ":" in target or not file.is_file():
            return match[0]
        raw = before.startswith("href")
        if file.suffix == ".png":
            files.add(file)
        elif file.suffix != ".ipynb":
            files.add(file)
            target += ".html" if raw else ".md"
        elif raw:
            target = target.removesuffix(".ipynb") + ".html"
        return before + target + fragment

    return re.sub(r'(\]\(|href=")([^)"#\s]+)(#[^)"\s]*)?', point, text)


def setup(app):
    """What Sphinx calls: this module is also an extension of it."""
    app.connect("doctree-read", _finish)
    visits = (_visit_math, None)
    app.add_html_math_renderer("mathml", inline_renderers=visits, block_renderers=visits)


def _finish(app, doctree):
    """Give each code cell its language and each figure its alt text."""
    from docutils import nodes
    from sphinx.util import logging

    for block in doctree.findall(nodes.literal_block):
        if block.get("language") == "ipython3":
            block["force"] = True  # code that ran is not wrong if the highlighter can't read it
            written = re.match(r"%%writefile .*(\.\w+)\n", block.astext())
            if written and written[1] != ".py":
                block["language"] = _LANGUAGES.get(written[1], "text")
    path = Path(app.env.doc2path(app.env.docname))
    if path.suffix == ".ipynb":
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        outputs = [out for cell in cells for out in cell.get("outputs", [])]
        figures = [out for out in outputs if "image/png" in out.get("data", {})]
        images = [node for node in doctree.findall(nodes.image) if "alt" not in node]
        for node, out in zip(images, figures, strict=True):
            node["alt"] = out["metadata"].get("image/png", {}).get("alt", "")
            if not node["alt"]:
                logging.getLogger(__name__).warning(
                    "a figure has no alt text", location=app.env.docname
                )


def _visit_math(self, node):
    """Write a formula as MathML, which browsers show without a script."""
    from docutils import nodes
    from docutils.utils.math.latex2mathml import tex2mathml

    self.body.append(tex2mathml(node.astext(), as_block=isinstance(node, nodes.math_block)))
    raise nodes.SkipNode


def main(words=None):
    parser = argparse.ArgumentParser(
        prog="python -m ddp_course.book", description="Make web pages of the executed notebooks."
    )
    parser.add_argument("--out", default=ROOT / "runs/book", metavar="FOLDER", type=Path)
    out = parser.parse_args(words).out
    try:
        if build(out):
            sys.exit("no book was made: the lines above say what to correct")
    except ModuleNotFoundError as error:
        sys.exit(f'{error.msg}: type  pip install -e ".[book]"')
    except OSError as error:
        sys.exit(str(error))
    print(f"open {out / 'index.html'}")


if __name__ == "__main__":
    main()
