"""A job that hangs and was started without the tool: looked at from outside, left as it is."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from ddp_course.tools.diagnose import attach, job, pyspy
from ddp_course.tools.errors import CourseError

WORKERS = Path(__file__).parent / "workers"
TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")
LOOPS = "def spins():\n    n = 0\n    while True:\n        n += 1\n        n -= 1\nspins()"
WAITS = "import time\ntime.sleep(300)"


@contextlib.contextmanager
def started(*words, **variables):
    """A process, ended with all below it when the test ends."""
    base = {k: v for k, v in os.environ.items() if k not in job.PLACE}
    env = {**base, "OMP_NUM_THREADS": "1", **variables}
    process = psutil.Popen(
        [sys.executable, *map(str, words)], env=env, stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        yield process
    finally:
        for one in [*process.children(recursive=True), process]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait(20)


@pytest.fixture
def py_spy():
    """Skips where py-spy isn't installed, or may not look at a process."""
    if shutil.which("py-spy") is None and not Path(sys.executable).with_name("py-spy").exists():
        pytest.skip(pyspy.INSTALL)
    with started("-c", WAITS) as process:
        time.sleep(0.3)
        try:
            pyspy.stack(process.pid)
        except pyspy.NotAllowed as error:
            pytest.skip(str(error))


def there(folder, ranks, seconds=60):
    """Wait until each rank has written that it comes to the hang."""
    end = time.monotonic() + seconds
    while not all((folder / f"there-{r}").exists() for r in range(ranks)):
        assert time.monotonic() < end, "the ranks didn't start"
        time.sleep(0.2)


def hung(pids, tries=10):
    """The report once nothing moves: on a busy machine the way into the hang takes a while."""
    for _ in range(tries):
        report = attach.report(pids, pause=1)
        if report.headline.startswith("HANG"):
            return report
    raise AssertionError(str(report))


def test_a_torchrun_that_hangs(py_spy, tmp_path):
    with started(*TORCHRUN, WORKERS / "attach_hang.py", tmp_path) as launch:
        there(tmp_path, 2)
        family = {launch.pid, *(p.pid for p in launch.children(recursive=True))}
        assert len(family) >= 5  # torchrun, two ranks, a loader's worker each

        for pids in ([launch.pid], attach.matching(str(tmp_path))):
            report = hung(pids)
            assert report.kind == "attached" and report.exit_code == 0
            assert report.culprits == [1] and "rank 0 waits" in report.why
            zero, one = report.ranks
            assert zero.call == "backward" and one.call is None
            assert one.place().endswith("in sleeps:  time.sleep(300)")
            assert zero.unknown == one.unknown == "stacks alone: no counts of collectives"
            assert "stacks alone" in str(report)

        # A rank that a signal has stopped explains more than the line it stands at.
        os.kill(zero.pid, signal.SIGSTOP)
        stopped = attach.report([launch.pid], pause=0.2)
        os.kill(zero.pid, signal.SIGCONT)
        assert stopped.culprits == [0] and "SIGCONT" in stopped.why

        assert family == {launch.pid, *(p.pid for p in launch.children(recursive=True))}
        assert all(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE for pid in family)


def test_ranks_that_mp_spawn_made_have_its_numbers(py_spy, tmp_path):
    with started(WORKERS / "attach_spawn.py", tmp_path) as launch:
        there(tmp_path, 3)
        report = hung([launch.pid])
        assert report.culprits == [1]
        assert [s.call for s in report.ranks] == ["wait", None, "wait"]
        assert any("mp.spawn's numbers" in note for note in report.notes)


def test_a_rank_that_moves_is_not_called_hanging(py_spy):
    with started("-c", WAITS, RANK="0") as zero, started("-c", LOOPS, RANK="1") as one:
        time.sleep(0.5)
        reports = [attach.report([zero.pid, one.pid], pause=0.1) for _ in range(5)]
        moved = [r for r in reports if r.headline.startswith("NO HANG SEEN: rank 1 moved")]
        # It may be met twice at the same line of its three.
        assert moved and all("it moved: before" in str(r) for r in moved)
        assert not any("ranks 0" in r.headline for r in reports)


def test_a_rank_that_ends_meanwhile_is_a_note(py_spy):
    ends = "import time\ntime.sleep(1.5)"
    with started("-c", WAITS, RANK="0") as zero, started("-c", ends, RANK="1") as one:
        time.sleep(0.5)
        report = attach.report([zero.pid, one.pid], pause=2.5)
        assert [s.rank for s in report.ranks] == [0]
        assert f"rank 1, pid {one.pid}, ended while it was looked at" in report.notes


def test_processes_without_a_rank_are_called_by_pid(py_spy):
    torch = f"import torch\n{WAITS}"
    with started("-c", torch) as a, started("-c", torch) as b:
        end = time.monotonic() + 60
        while not (job.has_loaded(a.pid, "libtorch") and job.has_loaded(b.pid, "libtorch")):
            assert time.monotonic() < end
            time.sleep(0.2)
        report = hung([a.pid, b.pid])
        first, second = sorted([a.pid, b.pid])
        assert [s.pid for s in report.ranks] == [first, second]
        assert f"rank unknown, pid {first}: called rank 0 here, by order of pid" in report.notes


def test_the_world_is_larger_than_what_is_seen(py_spy):
    with started("-c", WAITS, RANK="1", WORLD_SIZE="3") as one:
        time.sleep(0.5)
        assert "ranks 0, 2 can't be seen from here" in str(attach.report([one.pid], pause=0.1))


def test_processes_that_are_no_ranks(py_spy):
    sleeper = subprocess.Popen(["sleep", "60"])
    try:
        with pytest.raises(CourseError, match=f"pid {sleeper.pid} is no Python process"):
            attach.report([sleeper.pid], pause=0)
    finally:
        sleeper.kill()
        sleeper.wait()
    with pytest.raises(CourseError, match=f"there is no process {sleeper.pid}"):
        attach.report([sleeper.pid], pause=0)
    with started("-c", WAITS) as process:
        time.sleep(0.5)
        with pytest.raises(CourseError, match=f"no rank among .* {process.pid}: none has loaded"):
            attach.report([process.pid], pause=0)


def test_a_right_that_is_missing_is_named(py_spy, tmp_path, monkeypatch):
    if os.geteuid() != 0 or shutil.which("setpriv") is None:
        pytest.skip("needs root and setpriv, to give rights up")
    weak = tmp_path / "py-spy"
    drop = "setpriv --reuid=65534 --regid=65534 --clear-groups"
    weak.write_text(f'#!/bin/sh\nexec {drop} {pyspy.find()} "$@"\n')
    weak.chmod(0o755)
    monkeypatch.setattr(pyspy, "find", lambda: str(weak))
    with started("-c", WAITS, RANK="0") as process:
        time.sleep(0.5)
        with pytest.raises(CourseError, match=f"no right to read process {process.pid}: ") as error:
            attach.report([process.pid], pause=0)
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "owner, user, capabilities, scope, words",
    [
        (1000, 1000, 0, 1, "ptrace_scope is 1: run this with sudo"),
        (0, 1000, 0, 0, "belongs to another user"),
        (0, 0, 0xA80425FB, 1, "--cap-add SYS_PTRACE"),  # Docker's default rights
        (1000, 0, 1 << 19, 3, "forbids it to everybody"),
        (1000, 1000, 0, 0, "run this with sudo"),
    ],
)
def test_which_right_is_missing(owner, user, capabilities, scope, words):
    assert words in pyspy.right(owner, user, capabilities, scope)


def test_without_py_spy_one_line_says_what_to_install(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(CourseError) as error:
        attach.report([os.getpid()])
    assert str(error.value) == pyspy.INSTALL and 'pip install "ddp_course[attach]"' in pyspy.INSTALL


def test_a_text_that_no_command_line_has():
    with pytest.raises(CourseError, match="no process has 'nobody-is-called-so'"):
        attach.matching("nobody-is-called-so")


def test_matching_never_finds_the_one_who_asks():
    asks = "import sys\nfrom ddp_course.tools.diagnose import attach\nprint(attach.matching('x-y'))"
    shell = f'{sys.executable} -c "$ASKS" x-y; true'
    done = subprocess.run(
        ["sh", "-c", shell], env={**os.environ, "ASKS": asks}, capture_output=True, text=True
    )
    assert "no process has 'x-y' in its command line" in done.stderr, done.stdout
