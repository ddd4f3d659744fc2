"""What the stack of a rank says: whose lines they are, and which call it waits in.

A stack is a list of [file, line, function, source], outermost frame first.
"""

import linecache
import os
import re
import sysconfig
from pathlib import Path

COURSE = str(Path(__file__).parents[2]) + os.sep  # helpers that a script of the course calls
DDP_FILE = "torch/nn/parallel/distributed.py"
# Torch's and Python's own frames; an installed package of the user's is the user's code.
STDLIB = tuple({os.path.realpath(sysconfig.get_path(p)) + os.sep for p in ("stdlib", "platstdlib")})
PACKAGES = re.compile(r"[/\\](site|dist)-packages[/\\]")
TORCH = re.compile(r"[/\\](site|dist)-packages[/\\](torch|functorch)[/\\]")
# gloo's errors begin with a file name on the machine that built torch.
BUILT_AT = r"\[(enforce fail at )?\.{0,2}/\S+\.\w+:\d+\] "
# Calls that wait for others although the function above them was made by the user.
WAITING = re.compile(r"\.(wait|item|cpu|tolist|synchronize)\(")


def is_library(file):
    """Is it a file of torch's or of Python's own?"""
    if file.startswith("<"):
        return True
    if PACKAGES.search(file):
        return bool(TORCH.search(file))
    # Another Python's library is one, too: a stack may come from another environment.
    return file.startswith(STDLIB) or re.search(r"[/\\]lib[/\\]python3\.\d+[/\\]", file) is not None


def own_lines(stack):
    """The frames of the user's own code; without any, the innermost frame with a file.

    Of a child of multiprocessing those of its own: a forked one has its parent's, too.
    """
    starts = [n for n, f in enumerate(stack) if f[2] == "_bootstrap" and "multiproc" in f[0]]
    stack = stack[starts[-1] + 1 :] if starts else stack
    own = [f for f in stack if not is_library(f[0])]
    own = [f for f in own if not f[0].startswith(COURSE)] or own
    return own or [f for f in stack if not f[0].startswith("<")][-1:]


def waits_in(stack, unfinished=None, recorded=True):
    """The function in which a rank waits for others, or None.

    Parameters
    ----------
    stack : list of [file, line, function, source]
    unfinished : dict, optional
        The oldest collective that has not finished, with "op".
    recorded : bool
        Whether such a collective would be known. If not, a backward that stands counts as waiting.
    """
    if not stack:
        return None
    file, _, function, source = stack[-1]
    if function == "_engine_run_backward" and (unfinished or not recorded):
        return "backward"
    inside = [f[2] for f in stack if f[0].endswith(DDP_FILE)]
    if inside and (of_distributed(file) or file.endswith(DDP_FILE)):
        return "DDP(...)" if inside[0] == "__init__" else "DDP's forward"
    if of_distributed(file):
        # Functions of torch call each other: the user called the outermost.
        return next(f[2] for f in stack if of_distributed(f[0]) and f[2] != "wrapper")
    if unfinished and WAITING.search(source):
        return unfinished["op"].split(":")[-1]
    if not recorded and re.search(r"\.wait\(", source):  # of a collective: Python's own has frames
        return "wait"
    return None


def of_distributed(file):
    """Is it a file of torch.distributed's, and not one of torchrun's own?"""
    return "torch/distributed/" in file and "torch/distributed/elastic" not in file


def of_communication(stack):
    """Whether an error came from communication: a connection of the script's own may fail, too."""
    if not stack:
        return False
    file, _, function, source = stack[-1]
    waited = function == "_engine_run_backward" or re.search(r"\.(wait|get)\(", source)
    return bool(waited) or of_distributed(file) or file.endswith(DDP_FILE)


def main_stack(text):
    """The main thread's stack in what faulthandler printed last, outermost frame first."""
    for thread in reversed(text.split("most recent call first")[1:]):
        found = re.findall(r'File "(.*)", line (\d+) in (\S+)', thread.split("\n\n")[0])
        if "<module>" in [name for *_, name in found]:
            return [
                [file, int(line), name, linecache.getline(file, int(line)).strip()]
                for file, line, name in reversed(found)
            ]
    return []


def short(file):
    """A path, from here where that is shorter."""
    try:
        return min(file, os.path.relpath(file), key=len)
    except ValueError:  # another drive
        return file
