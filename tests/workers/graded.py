"""Several conversions of lesson 14 in one launch, for test_grade.py."""

import os

import torch.distributed as dist

from ddp_course import grade
from ddp_course.tools import audit


def main(folder, ports):
    """Grade FOLDER/CASE.py of each case; what was seen goes to FOLDER/CASE/. ports: {case: port}"""
    watch = audit.watch
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"  # each case meets in a store of its own
    for case, port in ports.items():
        os.environ["MASTER_PORT"] = str(port)
        grade.look_on(folder / f"{case}.py", folder / case)
        if dist.is_initialized():  # the case that forgets to leave
            dist.destroy_process_group()
        assert audit.watch is watch, "the grader puts back what it wrapped"
