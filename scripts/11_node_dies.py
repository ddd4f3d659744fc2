"""The training of lesson 09; a whole node dies in the middle, its torchrun with it."""

import os
import runpy
import signal
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course.process_group import process_group

training = runpy.run_path(str(Path(__file__).with_name("09_train.py")))
STEP = 25


def node_1_dies(args, me, job):
    if job.step == STEP and os.environ["GROUP_RANK"] == "1":
        os.kill(os.getppid(), signal.SIGKILL)  # torchrun
        os.kill(os.getpid(), signal.SIGKILL)


@record
def main():
    os.environ["DDP_COURSE_DEVICE"] = "cpu"
    args = training["settings"]()
    with process_group() as me:
        training["run"](args, me, node_1_dies)


if __name__ == "__main__":
    main()
