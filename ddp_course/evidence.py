"""What real GPUs did: public recordings and tables, as files under notebooks/evidence/.

Each file begins with two lines that say what was recorded and where it comes from; SOURCES.md,
beside them, has licences, columns, and what a recording can't show.
"""

import csv
from dataclasses import dataclass
from pathlib import Path

from ddp_course.tools.errors import CourseError

FOLDER = Path(__file__).parent.parent / "notebooks" / "evidence"
# A part of a column's name tells its unit; a name without one counts, or is text.
UNITS = {"us": "µs", "ms": "ms", "s": "s", "pct": "%", "bytes": "bytes", "MB": "MB", "GB": "GB"}
UNITS["GBps"] = "GB/s"


@dataclass(frozen=True)
class Recording:
    """A file of notebooks/evidence/.

    Attributes
    ----------
    name : str
    rows : list of dict
        By column: int or float where the file has a number, None where it has nothing, else str.
    units : dict
        Column: unit, for the columns that have one. GB is 1e9 bytes, MB 1e6.
    what : str
        Hardware, versions, kind and year, in a few words.
    source : str
        Address of what it was made from, at the commit that was read.
    """

    name: str
    rows: list
    units: dict
    what: str
    source: str

    def column(self, name, **where):
        """The values of a column, from the rows that agree with `where`.

        Returns
        -------
        list
        """
        rows = (r for r in self.rows if all(r[k] == v for k, v in where.items()))
        return [r[name] for r in rows]


def load(name):
    """Read a recording.

    Parameters
    ----------
    name : str
        The file's name without ".csv".

    Returns
    -------
    Recording

    Raises
    ------
    CourseError
        There is no such file.
    """
    path = FOLDER / f"{name}.csv"
    if not path.is_file():
        have = ", ".join(sorted(p.stem for p in FOLDER.glob("*.csv"))) or f"none in {FOLDER}"
        raise CourseError(f"there is no recording {name}; there are: {have}")
    what, source, *lines = path.read_text(encoding="utf-8").splitlines()
    rows = [{k: _value(v) for k, v in row.items()} for row in csv.DictReader(lines)]
    units = {column: unit for column in rows[0] if (unit := _unit(column))}
    what, source = what.removeprefix("# recorded: "), source.removeprefix("# source: ")
    return Recording(name, rows, units, what, source)


def cite(name):
    """The line with which a picture from a recording is stamped.

    Returns
    -------
    str
        Such as "recorded: 2×A100-40GB, NCCL 2.17.1, public trace, 2024".
    """
    return f"recorded: {load(name).what}"


def _unit(column):
    if column.startswith("images_per_s"):
        return "1/s"
    return next((UNITS[part] for part in column.split("_") if part in UNITS), None)


def _value(text):
    if text == "":
        return None
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return text
