"""A script of lesson 12, all of its cases in one launch, each hanging long enough to be seen."""

import runpy
import sys
from datetime import timedelta

from ddp_course import gallery

if __name__ == "__main__":
    gallery.SHORT = timedelta(seconds=5)
    runpy.run_path(sys.argv.pop(1), run_name="__main__")
