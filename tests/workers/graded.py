"""Several conversions of lesson 14 in one launch: graded.py FOLDER PORT=CASE.py ..."""

import os
import sys
from pathlib import Path

import torch.distributed as dist

from ddp_course import grade
from ddp_course.tools import audit

if __name__ == "__main__":
    folder, watch = Path(sys.argv[1]), audit.watch
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # each case meets in a store of its own
    for word in sys.argv[2:]:
        port, case = word.split("=")
        os.environ["MASTER_PORT"] = port
        os.environ["DDP_COURSE_RUNS"] = str(folder / case)
        grade.look_on(folder / f"{case}.py", folder / case)
        if dist.is_initialized():  # the case that forgets to leave
            dist.destroy_process_group()
        assert audit.watch is watch, "the grader puts back what it wrapped"
