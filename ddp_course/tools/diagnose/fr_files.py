"""Read the files that torch's flight recorder wrote: one a rank, a pickle or JSON.

A pickle can run code as it is read. These need none, so whatever names a global is refused.
"""

import io
import json
import pickle
import re
from dataclasses import dataclass
from pathlib import Path

from ddp_course.tools.errors import CourseError

WANTED = "pass the folder of TORCH_FR_DUMP_TEMP_FILE's dumps, one file a rank: NAME0, NAME1, ..."
NAME = re.compile(r"(.*?)(\d+)(\.json|\.pkl|\.pickle)?$")
DEFAULT = "trace_rank_"  # what torch's own prefixes end in; they are in /tmp, among other files
KEYS = ("collective_seq_id", "profiling_name", "process_group", "input_sizes", "retired")


@dataclass
class Dump:
    """What one rank's recorder held.

    Attributes
    ----------
    rank : int
    version : str
        Of the format: "2.10".
    entries : list of dict
        Calls, the oldest first, with the recorder's own keys: "collective_seq_id" (from 1, a
        group), "profiling_name" ("gloo:all_reduce"), "process_group" (name, description),
        "input_sizes", "input_dtypes", "retired", "state", "frames" (innermost first), ...
    members : dict of str to list of int
        {group's name: global ranks}, where the recorder says so; gloo's doesn't.
    called : dict of str to int
        {group's name: collectives called}
    world_size : int
        The job's ranks at least: the most that any group has, with or without a name.
    """

    rank: int
    version: str
    entries: list
    members: dict
    called: dict
    world_size: int = 0

    def overwritten(self):
        """Whether the recorder has forgotten its first calls."""
        return bool(self.entries) and self.entries[0].get("record_id", 0) > 0


class _Plain(pickle.Unpickler):
    def find_class(self, module, name):
        raise CourseError(f"it names {module}.{name}, which no flight-recorder dump does: not read")


def read_folder(folder):
    """All dumps of a job.

    Parameters
    ----------
    folder : path
        Of the files; or their common beginning, such as /tmp/nccl_trace_rank_.

    Returns
    -------
    dumps : list of Dump
        In rank order.
    unread : dict of int to str
        {rank: why its file could not be read}

    Raises
    ------
    CourseError
        One line: what is wrong, and what to pass instead.
    """
    files = _files(Path(folder))
    dumps, unread = [], {}
    for rank, file in sorted(files.items()):
        try:
            dumps.append(dump_of(file.read_bytes(), rank))
        except CourseError as error:
            raise CourseError(f"{file}: {error}") from error
        except OSError as error:
            unread[rank] = f"{file.name} can't be read: {error.strerror}"
        except ValueError as error:
            unread[rank] = f"{file.name} is no whole dump: {error}"
    if not dumps:
        raise CourseError(f"{folder}: {'; '.join(unread.values())}; {WANTED}")
    versions = {d.version: d.rank for d in dumps}
    if len(versions) > 1:
        said = ", ".join(f"rank {rank}: {version}" for version, rank in versions.items())
        raise CourseError(
            f"{folder}: dumps of different versions of torch ({said}): pass those of one job"
        )
    return dumps, unread


def _files(folder):
    """{rank: path} of the dumps in a folder, or with a common beginning."""
    folder, beginning = (folder, "") if folder.is_dir() else (folder.parent, folder.name)
    if not folder.is_dir():
        raise CourseError(f"there is no folder {folder}: {WANTED}")
    groups = {}
    for file in folder.iterdir():
        match = NAME.fullmatch(file.name)
        if match and file.name.startswith(beginning) and file.is_file():
            groups.setdefault(match[1], {}).setdefault(int(match[2]), []).append(file)
    if beginning in groups:
        groups = {beginning: groups[beginning]}
    if not groups:
        raise CourseError(
            f"no dump in {folder}{f' begins with {beginning}' * bool(beginning)}: {WANTED}"
        )
    likely = [p for p in groups if p.endswith(DEFAULT)]
    if len(groups) > 1 and len(likely) != 1:
        names = ", ".join(f"{p}*" for p in sorted(groups)[:5])
        raise CourseError(f"files of several kinds in {folder} ({names}): pass one's beginning")
    found = groups[likely[0] if likely else next(iter(groups))]
    double = next((files for files in found.values() if len(files) > 1), None)
    if double:
        raise CourseError(f"one rank twice: {', '.join(sorted(f.name for f in double))}")
    return {rank: files[0] for rank, files in found.items()}


def dump_of(data, rank):
    """The dump in a file's bytes.

    Raises
    ------
    CourseError
        It is refused: it names a global, or its format is unknown.
    ValueError
        It is truncated, or something else.
    """
    if not data:
        raise ValueError("it is empty")
    try:
        found = json.loads(data) if data[:1] == b"{" else _Plain(io.BytesIO(data)).load()
    except CourseError:
        raise
    except (EOFError, pickle.UnpicklingError, json.JSONDecodeError) as error:
        whole = "truncated" in str(error) or isinstance(error, EOFError) or data[:1] in b"{\x80"
        raise ValueError("truncated" if whole else "neither a pickle nor JSON") from error
    except Exception as error:  # other bytes make an unpickler fail in many ways
        raise ValueError("neither a pickle nor JSON") from error
    if not isinstance(found, dict) or not isinstance(found.get("entries"), list):
        raise ValueError("it holds no entries of a flight recorder")
    version = str(found.get("version"))
    if not version.startswith("2."):
        raise CourseError(f"format {version} is unknown here: torch's flight recorder writes 2.x")
    entries = found["entries"]
    for key in KEYS:
        if not all(isinstance(e, dict) and key in e for e in entries):
            raise CourseError(f"format {version} without {key}: it was written by an older torch")
    try:
        members = _members(found)
        world_size = max(map(len, members.values()), default=0)
        members.pop("", None)  # gloo's: without a name, and numbered within the group
        return Dump(rank, version, entries, members, _called(found), world_size)
    except (AttributeError, IndexError, KeyError, TypeError) as error:
        raise ValueError("it holds no entries of a flight recorder") from error


def _members(found):
    config = found.get("pg_config") or {}
    return {name: json.loads(c["ranks"]) for name, c in config.items()}


def _called(found):
    """pg_status counts by a number of the process's own; entries have that and the name."""
    called, ids = {}, {}
    for e in found["entries"]:
        name = e["process_group"][0]
        ids[name] = str(e.get("pg_id"))
        called[name] = max(called.get(name, 0), e["collective_seq_id"])
    status = found.get("pg_status") or {}
    for name in called:
        said = status.get(ids[name], {}).get("last_enqueued_collective", 0)
        called[name] = max(called[name], int(said))
    return called
