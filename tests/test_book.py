"""The reading edition: built once by its command, then read as files and in Chromium."""

import re
import shutil
import subprocess
import sys
from functools import cache
from html.parser import HTMLParser
from urllib.parse import unquote, urlsplit

import lab
import pytest
from launch import ODD_NAME, ROOT, copy_course, python
from lessons import NOTEBOOKS, code_cells, read

OFFLINE = """
import socket
def refuse(*_):
    raise OSError("the build wants a network")
socket.socket.connect = socket.getaddrinfo = refuse
"""
# What a page itself loads; an <a href> waits for a click.
LOADED = {
    "src", "srcset", "data", "poster", "background", "action", "formaction", "manifest",
}  # fmt: skip


class Page(HTMLParser):
    """What a page holds: ids, links, images, what it loads, and its folded answers."""

    def __init__(self, path):
        super().__init__()
        self.path = path
        self.ids, self.links, self.images, self.loads, self.scripts = set(), [], [], [], []
        self.details = self.open_details = 0
        self.folded_links, self._inside, self._tag = [], 0, ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        self._tag = tag
        if "id" in attrs:
            self.ids.add(attrs["id"])
        if tag == "a" and attrs.get("href"):
            self.links.append(attrs["href"])
            if self._inside:
                self.folded_links.append(attrs["href"])
        if tag == "img":
            self.images.append((attrs.get("src", ""), attrs.get("alt") or ""))
        if tag == "link" and attrs.get("rel") not in ("next", "prev", "index", "search"):
            self.loads.append(attrs["href"])
        self.loads += [value for name, value in attrs.items() if name in LOADED and value]
        if tag == "details":
            self._inside += 1
            self.details += 1
            self.open_details += "open" in attrs

    def handle_endtag(self, tag):
        self._inside -= tag == "details"
        self._tag = ""

    def handle_data(self, data):
        if self._tag == "script":
            self.scripts.append(data)


@cache
def parse(path):
    return Page(path)


def files(book):
    """The pages; the theme's templates among its static files are none."""
    return [path for path in sorted(book.rglob("*.html")) if "_static" not in path.parts]


def pages(book):
    return [parse(path) for path in files(book)]


def lands_nowhere(page):
    """Links of a page to files or fragments that are not there."""
    lost = []
    for link in page.links:
        parts = urlsplit(link)
        if parts.scheme or parts.netloc:
            continue
        target = (page.path.parent / unquote(parts.path)).resolve() if parts.path else page.path
        fragment = unquote(parts.fragment)
        found = target.is_file() and (
            not fragment or (target.suffix == ".html" and fragment in parse(target).ids)
        )
        if not found:
            lost.append(link)
    return lost


def without_alt(page):
    return [src[:60] for src, alt in page.images if len(alt) <= 20]


def from_elsewhere(page):
    """What a page loads over a network, and local files that it loads and are not there."""
    found = []
    for url in page.loads:
        parts = urlsplit(url)
        local = not parts.scheme and not parts.netloc
        if parts.scheme == "data" or (
            local and (page.path.parent / unquote(parts.path)).resolve().exists()
        ):
            continue
        found.append(url)
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Folder of the book, and what the command printed; made without a network."""
    folder = tmp_path_factory.mktemp("book")
    (folder / "offline").mkdir()
    (folder / "offline/sitecustomize.py").write_text(OFFLINE)
    env = {"PYTHONPATH": str(folder / "offline")}
    refused = python("-c", "import socket; socket.create_connection(('127.0.0.1', 9))", env=env)
    assert "the build wants a network" in refused.stdout
    book = folder / ODD_NAME / "book"
    done = python("-m", "ddp_course.book", "--out", book, env=env, timeout=280)
    assert done.returncode == 0, done.stdout
    return book, done.stdout


@pytest.fixture(scope="module")
def book(built):
    return built[0].resolve()


@pytest.fixture(scope="module")
def reader(browser_is_there, book):
    """A page of Chromium; the addresses it asks for, and the errors of its scripts."""
    with lab.chromium(width=1280, height=900) as page:
        page.asked, page.broken = [], []
        page.on("request", lambda request: page.asked.append(request.url))
        page.on("pageerror", lambda error: page.broken.append(str(error)))
        yield page


@pytest.fixture
def visit(reader, book):
    """Go to a page of the book at a width; afterwards nothing came from a network."""

    def go(name, width=1280):
        reader.set_viewport_size({"width": width, "height": 900})
        reader.goto((book / name).as_uri())
        return reader

    reader.asked.clear()
    reader.broken.clear()
    yield go
    assert not [url for url in reader.asked if not url.startswith(("file:", "data:"))]


def height(locator):
    return locator.bounding_box()["height"]


def lesson(number):
    return f"notebooks/{next(p.stem for p in NOTEBOOKS if p.stem[:2] == number)}.html"


def test_builds_without_a_warning(built):
    book, said = built
    assert said == f"open {book / 'index.html'}\n"
    left = [path.name for path in book.parent.iterdir()]
    assert left == ["book"]


def test_every_lesson_in_order(book):
    expected = [f"notebooks/{path.stem}.html" for path in NOTEBOOKS]
    seen = [link for link in parse(book / "index.html").links if link in expected]
    assert seen[: len(expected)] == expected  # at the side; the rest is the start page's table
    for before, after in zip(NOTEBOOKS, NOTEBOOKS[1:]):
        assert f"{after.stem}.html" in parse(book / f"notebooks/{before.stem}.html").links


def test_links_land(book):
    assert {page.path.name: lost for page in pages(book) if (lost := lands_nowhere(page))} == {}


def test_links_of_folded_answers_are_jupyterlab_s(book):
    """They are raw HTML, that Sphinx doesn't look at."""
    for path in NOTEBOOKS:
        links = parse(book / f"notebooks/{path.stem}.html").folded_links
        assert [link for link in links if link.startswith("#")], path.stem
        assert not [link for link in links if ".ipynb" in link], path.stem


def test_images_have_alt_text(book):
    assert {page.path.name: lost for page in pages(book) if (lost := without_alt(page))} == {}


def test_images_are_the_notebooks_own(book):
    for path in NOTEBOOKS:
        alts = []
        for cell in read(path).cells:
            if cell.cell_type == "markdown":
                alts += re.findall(r"!\[([^\]]+)\]\(\w+\.png\)", cell.source)
            data = [out for out in cell.get("outputs", []) if "data" in out]
            alts += [o.metadata["image/png"]["alt"] for o in data if "image/png" in o.data]
        images = parse(book / f"notebooks/{path.stem}.html").images
        assert [alt for src, alt in images if "_images/" in src] == alts


def test_nothing_is_loaded_from_a_network(book):
    assert {page.path.name: lost for page in pages(book) if (lost := from_elsewhere(page))} == {}
    for path in book.rglob("*.css"):
        text = path.read_text(encoding="utf-8")
        assert not [x for x in text.split("url(")[1:] if x.lstrip("\"'").startswith(("http", "//"))]
    for page in pages(book):
        scripts = "".join(page.scripts).replace("http://www.w3.org", "")
        assert "http://" not in scripts and "https://" not in scripts, page.path.name


def test_answers_are_folded(book):
    for path in NOTEBOOKS:
        page = parse(book / f"notebooks/{path.stem}.html")
        notebook = read(path)
        text = "\n".join(c.source for c in notebook.cells if c.cell_type == "markdown")
        hidden = [c for c in code_cells(notebook) if c.metadata.get("jupyter")]
        assert page.details == text.count("<details>") + len(hidden), path.stem
        assert page.open_details == 0


def test_scripts_are_pages(book):
    text = (book / "scripts/14_train.py.html").read_text(encoding="utf-8")
    assert "argparse" in text and "../notebooks/14_capstone.html" in text


def test_the_checks_find_what_is_broken(tmp_path):
    (tmp_path / "there.html").write_text('<h2 id="Here,-too?">x</h2>')
    (tmp_path / "page.html").write_text(
        '<a href="there.html#Here,-too%3F">ok</a> <a href="https://example.org/x">ok</a>'
        '<a href="gone.html">1</a> <a href="there.html#here">2</a> <a href="#nowhere">3</a>'
        '<img src="there.html" alt="fig"> <img src="data:image/png;base64,AA">'
        '<img src="//example.org/a.png" alt="a figure that lies somewhere else">'
        '<script src="https://example.org/x.js"></script><link rel="stylesheet" href="no.css">'
    )
    page = Page(tmp_path / "page.html")
    assert lands_nowhere(page) == ["gone.html", "there.html#here", "#nowhere"]
    assert without_alt(page) == ["there.html", "data:image/png;base64,AA"]
    away = ["//example.org/a.png", "https://example.org/x.js", "no.css"]
    assert sorted(from_elsewhere(page)) == sorted(away)


def test_an_answer_unfolds(visit):
    page = visit(lesson("00"))
    answer = page.locator("details", has_text="Two ranks, on the CPU.")
    folded = height(answer)
    answer.locator("summary").click()
    assert height(answer) > folded + 20
    page.locator("details", has_text="World size is the number").locator("summary").click()
    page.get_by_role("link", name="the first launch", exact=True).click()
    assert page.url.endswith("#The-first-launch")
    top = page.locator("h2", has_text="The first launch").bounding_box()["y"]
    assert 0 <= top < 300  # the browser went there
    assert page.broken == []


def test_player_and_calculator_run_in_the_book(visit):
    page = visit(lesson("05"))
    player, calculator = page.locator(".ddp-ring_player"), page.locator(".ddp-ring_calculator")
    text = player.locator("[data-is='text']")
    assert text.inner_text().startswith("Step 0 of 6.")
    player.get_by_label("algorithm").select_option("tree")
    player.get_by_label("Last step").click()
    assert "All ranks hold the whole sum." in text.inner_text()
    before = calculator.locator("svg").get_attribute("aria-label")
    calculator.locator("[data-is='megabytes']").fill("1")
    assert calculator.locator("svg").get_attribute("aria-label") != before
    assert page.locator("math").count() == 1
    assert page.broken == []


def test_no_page_is_wider_than_a_phone(visit, book):
    wide = {}
    scripts = sorted((book / "scripts").glob("*.html"), key=lambda path: len(path.name))
    lessons = sorted((book / "notebooks").glob("*.html"))
    for path in [book / "index.html", *lessons, scripts[-1]]:
        name = path.relative_to(book).as_posix()
        width = visit(name, 390).evaluate("document.documentElement.scrollWidth")
        if width > 390:
            wide[name] = width
    assert wide == {}
    page = visit(lesson("12"), 390)
    page.evaluate("document.querySelectorAll('details').forEach(d => d.open = true)")
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_the_switch_makes_it_dark(visit):
    page = visit(lesson("00"))
    lightness = """getComputedStyle(document.body).backgroundColor.match(/\\d+/g).slice(0, 3)
                   .reduce((sum, part) => sum + Number(part), 0)"""
    seen = {}
    for mode in ("light", "dark"):
        page.get_by_role("button", name="Color mode").locator("visible=true").click()
        page.locator(f".theme-change-button[data-mode={mode}]:visible").click()
        seen[mode] = page.evaluate(lightness)
    assert seen["light"] > 700 and seen["dark"] < 120
    page.evaluate("localStorage.clear()")


def test_print_unfolds_the_answers(visit):
    page = visit(lesson("00"))
    answer = page.locator("details", has_text="Two ranks, on the CPU.")
    folded = height(answer)
    page.emulate_media(media="print")
    try:
        assert height(answer) > folded + 20
        assert not page.locator(".bd-sidebar-primary").is_visible()
        assert not page.locator(".header-article").is_visible()
    finally:
        page.emulate_media(media="screen")


def test_search_finds_a_word_of_a_folded_answer(visit):
    page = visit("index.html")
    page.keyboard.press("Control+k")
    page.keyboard.type("patarasuk")
    page.keyboard.press("Enter")
    found = page.locator("#search-results li a").first
    found.wait_for()
    assert lesson("05") in found.get_attribute("href")


def test_what_is_wrong_is_said_in_a_line(tmp_path):
    """Sphinx missing; a folder that isn't ours; one lesson that can't be right, and an old book."""
    without = "import sys; sys.modules['myst_nb'] = None; import ddp_course.book as b; b.main([])"
    done = subprocess.run([sys.executable, "-c", without], capture_output=True, text=True)
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.count("\n") == 1 and 'type  pip install -e ".[book]"' in done.stderr

    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    for out in (mine, mine / "thesis.txt"):
        done = python("-m", "ddp_course.book", "--out", out)
        assert done.returncode == 1 and done.stdout.count("\n") == 1
        assert "name a new or empty folder" in done.stdout
    assert (mine / "thesis.txt").read_text() == "years of work"


def test_a_broken_lesson_leaves_the_old_book(tmp_path):
    course, book = tmp_path / "course", tmp_path / "old"
    env = copy_course(course)
    for path in NOTEBOOKS[1:]:
        (course / "notebooks" / path.name).unlink()
    shutil.copy(ROOT / "LICENSE", course)
    (course / "README.md").write_text("# A course\n\n[lesson](notebooks/00_start_here.ipynb)\n")
    first = course / "notebooks/00_start_here.ipynb"
    text = first.read_text(encoding="utf-8")
    bad = text.replace("(02_process_groups.ipynb)", "(99_gone.ipynb)").replace('"alt":', '"old":')
    first.write_text(bad, encoding="utf-8")
    book.mkdir()
    (book / ".ddp_course_book").touch()
    (book / "index.html").write_text("old")
    done = python("-m", "ddp_course.book", "--out", book, env=env, cwd=course, timeout=280)
    assert done.returncode == 1
    assert "99_gone.ipynb" in done.stdout and "a figure has no alt text" in done.stdout
    assert done.stdout.endswith("no book was made: the lines above say what to correct\n")
    assert (book / "index.html").read_text() == "old"
    assert {path.name for path in tmp_path.iterdir()} == {"course", "old"}


def test_the_tools_have_a_page(book):
    page = (book / "tools.html").read_text(encoding="utf-8")
    names = ("audit.watch", "diagnose.run", "rehearse.run", "checkpoint.save")
    for name in (*names, "cluster_check.measure"):
        assert f'id="ddp_course.tools.{name}"' in page, name
