"""Let each Python process of a command run a file of ours first: as sitecustomize.py.

A copy of this module lies beside that file, under the name COPY: it must work in any environment.
"""

import importlib.machinery
import importlib.util
import os
import sys

COPY = "ddp_course_first_of_all"


def install(file, folder):
    """Make a folder that comes first in PYTHONPATH, with a file in it as sitecustomize.py.

    Parameters
    ----------
    file : str
        It imports the standard library only, and ends with `run_the_next`.
    folder : path
        The folder is made in here.

    Returns
    -------
    str
        PYTHONPATH for the command.
    """
    import shutil  # not at the top: each process of the command imports this module

    hook = os.path.join(folder, "hook")
    os.mkdir(hook)
    shutil.copy(file, os.path.join(hook, "sitecustomize.py"))
    shutil.copy(__file__, os.path.join(hook, f"{COPY}.py"))
    rest = os.environ.get("PYTHONPATH")
    return os.pathsep.join([hook, *([rest] if rest else [])])


def run_the_next(file):
    """Run the environment's own sitecustomize, which `file` hides, and leave the path as it was."""
    here = os.path.dirname(os.path.abspath(file))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != here]
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))
