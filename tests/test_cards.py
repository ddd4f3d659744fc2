"""The deck of cards, read back as Anki reads it: a zip file with a SQLite database."""

import json
import re
import sqlite3
import sys
import zipfile

import pytest

from ddp_course import cards

pytest.importorskip("genanki")


def read_back(path, folder):
    """Notes of a deck: (guid, tags, question, answer); and its media {name: bytes}."""
    with zipfile.ZipFile(path) as package:
        package.extractall(folder)
    database = sqlite3.connect(folder / "collection.anki2")
    rows = database.execute("select guid, tags, flds from notes").fetchall()
    assert database.execute("select count(*) from cards").fetchone() == (len(rows),)
    database.close()
    media = json.loads((folder / "media").read_text())
    return (
        [(guid, tags.split(), *fields.split("\x1f")) for guid, tags, fields in rows],
        {name: (folder / number).read_bytes() for number, name in media.items()},
    )


@pytest.fixture(scope="module")
def deck(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cards")
    assert cards.main(["--out", str(folder / "a deck.apkg")]) == 0
    return read_back(folder / "a deck.apkg", folder)


def test_every_question_has_a_card(deck):
    text = cards.LESSON.read_text(encoding="utf-8")
    numbers = re.findall(r"<summary>(\d+)\. ", text)
    notes, _ = deck
    assert len(notes) == len(numbers) >= 100
    assert len({guid for guid, *_ in notes}) == len(notes)
    assert all(question and len(answer) > 40 for _, _, question, answer in notes)


def test_answers_stand_alone(deck):
    notes, _ = deck
    for _, _, question, answer in notes:
        assert all(link.startswith("https://") for link in re.findall('href="([^"]*)', answer))
        assert "<details" not in answer + question
    (ring,) = [answer for _, _, question, answer in notes if question.startswith("Sum or mean?")]
    assert "measured (lesson 03, “The mean, not the sum”)" in ring


def test_pictures_are_in_the_deck(deck):
    notes, media = deck
    named = [name for *_, answer in notes for name in re.findall(r'<img src="(.+?)">', answer)]
    assert len(named) > 30 and set(named) == set(media)
    assert all(png.startswith(b"\x89PNG") for png in media.values())


def test_tags(deck):
    notes, _ = deck
    tags = {tag for _, some, *_ in notes for tag in some}
    assert {"level::first", "level::second", "section::basics", "often-answered-wrongly"} <= tags
    assert {"lesson::03_first_ddp_training", "lesson::05_ring_allreduce"} <= tags
    assert all(any(t.startswith("section::") for t in some) for _, some, *_ in notes)


def test_a_second_deck_updates_the_first(deck, tmp_path):
    cards.write(tmp_path / "again.apkg")
    notes, _ = read_back(tmp_path / "again.apkg", tmp_path)
    assert {guid for guid, *_ in notes} == {guid for guid, *_ in deck[0]}


def test_no_place_to_write(tmp_path, capsys):
    assert cards.main(["--out", str(tmp_path / "nowhere" / "deck.apkg")]) == 1
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "type another --out" in said


def test_without_genanki(monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(sys.modules, "genanki", None)
    assert cards.main(["--out", str(tmp_path / "deck.apkg")]) == 1
    assert 'type  pip install -e ".[cards]"' in capsys.readouterr().err
