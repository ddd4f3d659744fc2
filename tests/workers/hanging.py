"""A script of lesson 12, its cases in one launch, each hanging long enough to be seen.

hanging.py SCRIPT PART PARTS: every PARTS-th of the cases, beginning with number PART.
"""

import runpy
import sys
from datetime import timedelta

from ddp_course import gallery

if __name__ == "__main__":
    script, part, parts = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    run_cases = gallery.main
    gallery.SHORT = timedelta(seconds=5)
    gallery.main = lambda name, cases, deadly: run_cases(
        f"{name}_{part}", dict(list(cases.items())[part::parts]), deadly
    )
    sys.argv[:] = [script]
    runpy.run_path(script, run_name="__main__")
