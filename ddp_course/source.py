"""What the installed torch says of itself: lines of its source, docstrings, headers, asserted."""

import inspect
import re
from pathlib import Path

import torch

from ddp_course.tools.errors import CourseError

INCLUDE = Path(torch.__file__).parent / "include"


def read(where):
    """The text of a function, a class, or a header, its white space and comment signs removed.

    Parameters
    ----------
    where : function, class, module, or str
        A str names a file under torch's ``include`` folder, which its wheels bring along, the
        CPU's too.

    Returns
    -------
    str
        Words with one space between them, so that a sentence is found across lines.

    Raises
    ------
    CourseError
        The installed torch has no such header.
    """
    if not isinstance(where, str):
        text = inspect.getsource(inspect.unwrap(where))
    elif (INCLUDE / where).is_file():
        text = (INCLUDE / where).read_text(encoding="utf-8")
    else:
        raise CourseError(f"torch {torch.__version__} installs no {where}")
    return " ".join(re.sub(r"^\s*((//|#(?!\w))\s*)+", "", text, flags=re.MULTILINE).split())


def says(where, *texts):
    """Assert that the installed torch says something, and print it with the place.

    Parameters
    ----------
    where
        As for `read`.
    texts : str
        Each is looked for, white space and comment signs aside.

    Raises
    ------
    AssertionError
        This torch doesn't say so (any more); names the version, the place and the text.
    """
    found, name = read(where), _name(where)
    for text in texts:
        assert text in found, f"torch {torch.__version__}, {name}, does not say: {text}"
        print(f"{name}: {text}")


def find(where, pattern):
    """All matches of a regular expression, each once, in order of appearance: a list of str."""
    return list(dict.fromkeys(re.findall(pattern, read(where))))


def _name(where):
    if isinstance(where, str):
        return Path(where).name
    return getattr(where, "__qualname__", where.__name__)
