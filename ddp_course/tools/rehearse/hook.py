"""What `rehearse` runs first in every Python process of the command: wait for torch.

It is copied as sitecustomize.py into a folder that comes first in PYTHONPATH. Only the standard
library at the top: it must work in any environment, and cost nothing where torch isn't imported.
"""

import importlib.util
import os
import sys

HOME = "DDP_COURSE_REHEARSE_HOME"  # the folder that ddp_course lies in


class AfterTorch:
    """On the path of finders: runs `start` right after the import of torch, and then is gone."""

    def find_spec(self, name, path=None, target=None):
        if name != "torch":
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        load = spec.loader.exec_module

        def exec_module(module):
            load(module)
            start()

        spec.loader.exec_module = exec_module
        return spec


def start():
    """Take ddp_course from where `rehearse` is: the command's Python may have none, or another."""
    sys.path.insert(0, os.environ[HOME])
    try:
        from ddp_course.tools.rehearse import pretend
    finally:
        sys.path.remove(os.environ[HOME])
    pretend.start()


if __name__ == "sitecustomize":
    from ddp_course_first_of_all import run_the_next

    if HOME in os.environ:
        sys.meta_path.insert(0, AfterTorch())
    run_the_next(__file__)
