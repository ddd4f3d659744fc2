"""Lesson 15's questions as a deck for Anki, to take along.

    pip install -e ".[cards]"
    python -m ddp_course.cards --out ddp_course.apkg

A card has the question in front; behind it the answer, what it rests on, and the picture that
stands under the first heading it leads to, if there is one. Tags: the section and its level, the
lessons that prove it, and whether the question is often answered wrongly.
"""

import argparse
import base64
import json
import re
import sys
import tempfile
from functools import cache
from html import unescape
from pathlib import Path
from urllib.parse import unquote

from ddp_course.book import anchor

NOTEBOOKS = Path(__file__).resolve().parents[1] / "notebooks"
LESSON = NOTEBOOKS / "15_interview.ipynb"
# Anki tells decks and kinds of cards by numbers; with other ones it would not update but add.
DECK, MODEL = 1733250100, 1733250101
_FOLDED = re.compile(r"<details><summary>\d+\. (.*?)</summary>(.*?)</details>", re.DOTALL)
_LINK = re.compile(r'<a href="(?!https?:)([^"#]*)#([^"]*)">(.*?)</a>', re.DOTALL)


def questions():
    """The numbered questions of lesson 15.

    Returns
    -------
    list of dict
        ``section``, ``question``, ``answer`` (HTML, links into lessons written out), ``picture``
        (a file's name and its bytes as PNG, or None) and ``tags``.
    """
    found, section = [], ""
    for cell in _cells(LESSON):
        if cell["cell_type"] != "markdown":
            continue
        titles = re.findall(r"^## +(.+?) *$", cell["source"], flags=re.MULTILINE)
        section = titles[-1] if titles else section
        for question, answer in _FOLDED.findall(cell["source"]):
            found.append(_card(unescape(question), answer.strip(), section))
    return found


def write(out):
    """Write the deck.

    Parameters
    ----------
    out : path
        The file; Anki's name for its kind is ``.apkg``.

    Returns
    -------
    int
        Cards in it.

    Raises
    ------
    ModuleNotFoundError
        genanki is not installed.
    OSError
        ``out`` can't be written.
    """
    import genanki

    model = genanki.Model(
        MODEL, "ddp_course", fields=[{"name": "Question"}, {"name": "Answer"}],
        templates=[{"name": "Card", "qfmt": "{{Question}}",
                    "afmt": "{{FrontSide}}<hr id=answer>{{Answer}}"}],
        css=".card { font-family: sans-serif; font-size: 18px; } img { max-width: 100%; }",
    )  # fmt: skip
    deck = genanki.Deck(DECK, "DDP, with evidence")
    with tempfile.TemporaryDirectory() as folder:
        media = {}
        for card in questions():
            answer = card["answer"]
            if card["picture"]:
                name, png = card["picture"]
                media[name] = Path(folder, name)
                media[name].write_bytes(png)
                answer += f'<br><img src="{name}">'
            # The question is the card's identity: with another answer Anki updates the card.
            guid = genanki.guid_for("ddp_course", card["question"])
            deck.add_note(genanki.Note(model, [card["question"], answer], tags=card["tags"],
                                       guid=guid))  # fmt: skip
        genanki.Package(deck, media_files=[str(p) for p in media.values()]).write_to_file(str(out))
    return len(deck.notes)


@cache
def _cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [cell | {"source": "".join(cell["source"])} for cell in cells]


def _card(question, answer, section):
    links = [(unquote(file), unquote(at)) for file, at, _ in _LINK.findall(answer)]
    tags = [f"section::{_tag(section)}", f"level::{'first' if section == 'Basics' else 'second'}"]
    tags += sorted({f"lesson::{Path(file).stem}" for file, _ in links if file})
    tags += ["often-answered-wrongly"] * ("Often answered wrongly" in answer)

    def written_out(match):
        file, at, text = unquote(match[1]), unquote(match[2]), match[3]
        where = f"lesson {file[:2]}, “{at.replace('-', ' ')}”" if file else "below, in the lesson"
        return f"{text} ({where})"

    pictures = (_picture(NOTEBOOKS / file, at) for file, at in links if file)
    picture = next((p for p in pictures if p), None)
    return {"section": section, "question": question, "answer": _LINK.sub(written_out, answer),
            "picture": picture, "tags": tags}  # fmt: skip


def _picture(path, at):
    """The first picture under a heading of a lesson: (its name in the deck, PNG), or None."""
    inside = False
    for number, cell in enumerate(_cells(path)):
        titles = re.findall(r"^#+ +(.+?) *$", cell["source"], flags=re.MULTILINE)
        if cell["cell_type"] == "markdown" and titles:
            inside = anchor(titles[-1]) == at
        for output in cell.get("outputs", ()) if inside else ():
            png = output.get("data", {}).get("image/png")
            if png:
                return f"ddp_{path.stem}_{number}.png", base64.b64decode("".join(png))
    return None


def _tag(text):
    return re.sub(r"\W+", "-", text).strip("-").lower()


def main(argv=None):
    parser = argparse.ArgumentParser(
        prog="python -m ddp_course.cards", description="Write lesson 15's questions as Anki cards."
    )
    parser.add_argument("--out", default="ddp_course.apkg", help="file to write (default: here)")
    out = Path(parser.parse_args(argv).out)
    try:
        count = write(out)
    except ModuleNotFoundError as error:
        print(f'{error.name} is missing: type  pip install -e ".[cards]"', file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{out} can't be written ({error.strerror}): type another --out", file=sys.stderr)
        return 1
    print(f"{out}: {count} cards; in Anki: File, Import")
    return 0


if __name__ == "__main__":
    sys.exit(main())
