"""The command line of `ddp_course.tools.diagnose`."""

import argparse
import shutil
import sys

from ddp_course.tools import diagnose
from ddp_course.tools.errors import CourseError


def main(words=None):
    """Report on a launch, on processes that already run, or on dumps; returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m ddp_course.tools.diagnose",
        usage="%(prog)s [--after SECONDS] -- torchrun --standalone --nproc-per-node 2 script.py\n"
        "       %(prog)s --pid PID ... | --match TEXT | --fr FOLDER",
    )
    parser.add_argument("--after", type=float, default=60.0, metavar="SECONDS",
                        help="in which no rank moves, that count as a hang")  # fmt: skip
    parser.add_argument("--pid", type=int, nargs="+", help="processes of a job that hangs")
    parser.add_argument("--match", metavar="TEXT", help="... those with TEXT in their command")
    parser.add_argument("--fr", metavar="FOLDER", help="dumps of torch's flight recorder")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(words)
    command = asked.command[1:] if asked.command[:1] == ["--"] else asked.command
    if asked.pid or asked.match or asked.fr:
        if command:
            parser.error("--pid, --match and --fr look at what is there: they run no command")
        try:
            report = look(asked)
        except CourseError as error:
            parser.error(str(error))
    else:
        check(parser, asked.after, command)
        report = diagnose.run(command, asked.after)
    if report.headline:
        print("", "=" * 70, report, "=" * 70, sep="\n", flush=True)
    return report.exit_code


def look(asked):
    """The report on what is already there; each way is imported only where it is asked for."""
    if asked.fr:
        from ddp_course.tools.diagnose import flight_recorder

        return flight_recorder.report(asked.fr)
    from ddp_course.tools.diagnose import attach

    return attach.report(asked.pid or attach.matching(asked.match))


def check(parser, after, command):
    """Leave with one line and exit code 2 if there is nothing to run."""
    if not command:
        parser.error("what shall I run? Put the launch behind --")
    if after <= 0:
        parser.error("--after takes seconds, more than 0")
    if shutil.which(command[0]) is None:
        parser.error(f"there is no command {command[0]}: is the environment of torch active?")


if __name__ == "__main__":
    sys.exit(main())
