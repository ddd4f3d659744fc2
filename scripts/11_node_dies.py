"""The training of lesson 09; a whole node dies in the middle, its torchrun with it."""

import argparse
import contextlib
import os
import runpy
import signal
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course.process_group import process_group

training = runpy.run_path(str(Path(__file__).with_name("09_train.py")))
STEP = 25
TORCHRUN = os.getppid()  # asked now: a process whose parent is gone gets another one


@record
def main():
    os.environ["DDP_COURSE_DEVICE"] = "cpu"
    parser = argparse.ArgumentParser()
    parser.add_argument("--dies", action="store_true", help="this is the node that dies")
    own, rest = parser.parse_known_args()

    def accident(args, me, job):
        if own.dies and job.step == STEP:
            with contextlib.suppress(ProcessLookupError):  # another rank of the node was faster
                os.kill(TORCHRUN, signal.SIGKILL)
            os.kill(os.getpid(), signal.SIGKILL)

    with process_group() as me:
        training["run"](training["settings"](rest), me, accident, "11_node_dies")


if __name__ == "__main__":
    main()
