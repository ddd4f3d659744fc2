"""The command line of `ddp_course.tools.rehearse`."""

import argparse
import shutil
import sys

from ddp_course.tools import rehearse
from ddp_course.tools.errors import CourseError
from ddp_course.tools.rehearse.memory import bytes_of

MOST = 64  # as in gpus.c


def main(words=None):
    """Run a command on pretended GPUs; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ddp_course.tools.rehearse",
        usage="%(prog)s --gpus 4 [--memory 16GiB] -- torchrun --nproc-per-node 4 train.py",
    )
    parser.add_argument("--gpus", type=int, default=2, metavar="N", help="how many (default: 2)")
    parser.add_argument("--memory", default="16GiB", help="of each GPU (default: 16GiB)")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
    if not command:
        parser.error("what shall I run? Put the command behind --")
    if not 1 <= asked.gpus <= MOST:
        parser.error(f"--gpus takes 1 to {MOST}")
    if shutil.which(command[0]) is None:
        parser.error(f"there is no command {command[0]}: is the environment of torch active?")
    try:
        return rehearse.run(command, asked.gpus, bytes_of(asked.memory))
    except CourseError as error:
        sys.stderr.write(f"{parser.prog}: {error}\n")
        return 2


if __name__ == "__main__":
    sys.exit(main())
