"""Launches that hang or die: diagnose names the rank and the line, and leaves nothing running."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
import torch

from ddp_course.tools import diagnose

ROOT = Path(__file__).resolve().parents[2]
WORKERS = Path(__file__).parent / "workers"
STUCK, SPAWNED = WORKERS / "diagnose_stuck.py", WORKERS / "diagnose_spawned.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
AFTER = 5.0  # seconds
# gloo has a flight recorder from here on; before, the stacks alone decide.
RECORDED = tuple(map(int, torch.__version__.split(".")[:2])) >= (2, 8)


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return str(s.getsockname()[1])


def in_shells(case, *ranks):
    port = f"export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1 MASTER_PORT={free_port()};"
    each = " ".join(f"RANK={rank} {sys.executable} {SPAWNED} {case} 0 &" for rank in ranks)
    return ["bash", "-c", f"{port} {each} wait"]


def under_torchrun(case):
    return [*TORCHRUN, str(STUCK), case]


def spawned(case):
    return [sys.executable, str(SPAWNED), case, free_port()]


COMMANDS = {
    "one_waits": spawned, "one_raises": spawned, "after_threads": spawned,
    "by_variables": lambda case: in_shells(case, 0, 1), "alone": lambda case: in_shells(case, 0),
    "package": lambda case: [*TORCHRUN, "-m", "mine.train", "wait_for_data"],
}  # fmt: skip
CASES = [
    "deep_in_c", "one_less", "leaves", "bad_sample_in_worker", "killed", "says_and_exits", "late",
    "other_sizes", "never_used", *COMMANDS,
]  # fmt: skip


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """{case: its Report}, two launches at a time, each waiting for the other's cores."""
    installed = tmp_path_factory.mktemp("env") / "site-packages"
    shutil.copytree(WORKERS, installed / "mine")
    (installed / "mine/diagnose_stuck.py").rename(installed / "mine/train.py")

    def report(case):
        return diagnose.run(COMMANDS.get(case, under_torchrun)(case), AFTER)

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(ROOT), str(installed)]))
        patch.setenv("OMP_NUM_THREADS", "1")
        return dict(zip(CASES, pool.map(report, CASES)))


def names(report, rank, function, source):
    """Is the rank's innermost line that one?"""
    state = next(s for s in report.ranks if s.rank == rank)
    return state.lines[-1][2] == function and source in state.lines[-1][3]


@pytest.mark.parametrize(
    "case, function, source",
    [
        ("package", "wait_for_data", "queue.Queue().get()"),
        ("one_waits", "one_waits", "queue.Queue().get()"),
        ("by_variables", "by_variables", "queue.Queue().get()"),
    ],
)
def test_a_rank_that_hangs_alone(reports, case, function, source):
    report = reports[case]
    assert (report.kind, report.exit_code, report.culprits) == ("hang", 124, [1]), str(report)
    assert names(report, 1, function, source), str(report)
    waits = report.ranks[0]
    assert "no collective called" not in str(waits.describe())
    assert waits.call in ("backward", "barrier", "all_reduce"), str(report)
    if RECORDED:
        assert re.search(r"called \d collectives, rank 0 is in number \d", report.why), report.why
    else:
        assert report.why == f"did not come to {waits.call}, where rank 0 waits"
        assert waits.counted().startswith("can't tell on torch 2.4: no flight recorder")


def test_a_rank_whose_thread_can_not_write(reports):
    """C code holds Python's lock, so what it last wrote is old: only its stack is asked for."""
    report = reports["deep_in_c"]
    assert (report.kind, report.culprits) == ("hang", [1]), str(report)
    assert names(report, 1, "deep_in_c", "ctypes.PyDLL(None).pause()"), str(report)
    assert report.why == f"did not come to {report.ranks[0].call}, where rank 0 waits"
    assert report.ranks[1].counted().startswith("can't tell: no word for")


def test_an_installed_package_is_named_with_its_line(reports):
    assert f"site-packages{os.sep}mine{os.sep}train.py:" in reports["package"].ranks[1].place()


def test_one_collective_less(reports):
    report = reports["one_less"]
    assert report.kind == "hang" and names(report, 1, "one_less", "dist.barrier()")
    if RECORDED:
        assert report.culprits == [1] and report.why.startswith("called 0 collectives")
    else:
        assert report.culprits == [0, 1]
        assert report.why.endswith("rank 0 in all_reduce; rank 1 in barrier")


def test_a_rank_that_is_alone(reports):
    report = reports["alone"]
    assert report.kind == "hang" and report.culprits == [1], str(report)
    address = re.search(r"init_process_group at 127\.0\.0\.1:\d+$", report.why)
    assert address and "DID NOT ARRIVE: rank 1: not seen here" in str(report), str(report)


def test_forks_of_a_process_that_had_threads(reports):
    report = reports["after_threads"]
    assert report.kind == "hang" and report.culprits == [0, 1], str(report)
    assert "fork after threaded work" in report.why and len(report.ranks) == 2
    assert names(report, 0, "work_in_threads", "torch.rand"), str(report)


@pytest.mark.parametrize(
    "case, what, details",
    [
        ("one_raises", "KeyError: 'label'", ""),
        ("bad_sample_in_worker", "KeyError: Caught KeyError", "in __getitem__\nreturn {}"),
        ("killed", "killed by SIGKILL", ""),
    ],
)
def test_the_first_cause(reports, case, what, details):
    report = reports[case]
    assert (report.kind, report.exit_code, report.culprits) == ("crash", 1, [1]), str(report)
    assert report.errors[0].what.startswith(what), str(report)
    assert details in "\n".join(report.errors[0].details)
    assert all(e.of_a_peer for e in report.errors[1:])


def test_the_names_of_unused_parameters(reports):
    report = reports["never_used"]
    first = report.errors[0]
    assert first.what.startswith("RuntimeError: Expected to have finished reduction")
    told = next(x for x in first.details if "did not receive grad for rank" in x)
    assert "adapter.weight" in told and "adapter.bias" in told
    assert told in str(report) and names(report, first.rank, "backward", ".backward()")


def test_both_sides_of_a_size_mismatch(reports):
    report = reports["other_sizes"]
    assert report.kind == "crash" and "killed by SIGABRT" in report.headline, str(report)
    assert str(report).count("in other_sizes:  dist.all_reduce(torch.ones(4 + rank))") == 2
    assert {s.call for s in report.ranks} == {"all_reduce"}, str(report)


@pytest.mark.parametrize("case", ["leaves", "says_and_exits"])
def test_a_rank_that_leaves(reports, case):
    """Its peer fails while it is at its exit, and torchrun may end it before it has a code."""
    report = reports[case]
    assert (report.kind, report.exit_code, report.culprits) == ("crash", 1, [1]), str(report)
    assert report.why == "ended while others still needed it" or (
        case == "says_and_exits" and "rank 1: exit code 7" in report.headline
    )
    assert case == "leaves" or "| no licence on this node" in str(report)


def test_a_rank_that_is_late(reports):
    report = reports["late"]
    assert report.kind == "crash" and report.culprits == [1], str(report)
    assert report.headline == "FAILED: rank 0 waited in vain"
    assert names(report, 1, "late", "queue.Queue().get()"), str(report)


def test_nothing_is_left_running(reports):
    assert len(reports) == len(CASES)
    lines = [" ".join(p.info["cmdline"] or ()) for p in psutil.process_iter(["cmdline"])]
    mine = [x for x in lines if f"{STUCK} " in x or f"{SPAWNED} " in x]
    assert not [x for x in mine if "/pytest" not in x]


def command_line(*words, **kwargs):
    words = [sys.executable, "-m", "ddp_course.tools.diagnose", *words]
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        words, env=env, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        preexec_fn=heed_ctrl_c, **kwargs,
    )  # fmt: skip


def heed_ctrl_c():
    """A shell's background job ignores SIGINT, and so do those it starts: then not this one."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_a_launch_that_is_fine_by_the_command_line_from_elsewhere(tmp_path):
    done = command_line("--after", "60", "--", *TORCHRUN, str(STUCK), "fine", cwd=tmp_path)
    said, _ = done.communicate(timeout=120)
    assert done.returncode == 0 and "=" * 70 not in said, said


@pytest.mark.parametrize("sign, code", [(signal.SIGTERM, 143), (signal.SIGINT, 130)])
def test_a_signal_ends_the_launch_and_nothing_else(tmp_path, sign, code):
    mark = "import time; time.sleep(99)"
    other = subprocess.Popen([sys.executable, "-c", mark])
    launch = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {mark!r}, 'mine'])"
    watched = command_line("--", sys.executable, "-c", launch, start_new_session=True)
    try:
        end = time.monotonic() + 30
        while len(psutil.Process(watched.pid).children(recursive=True)) < 2:
            assert time.monotonic() < end and watched.poll() is None
            time.sleep(0.1)
        children = psutil.Process(watched.pid).children(recursive=True)
        if sign == signal.SIGINT:
            os.killpg(watched.pid, sign)  # as a terminal does
        else:
            watched.send_signal(sign)
        said, _ = watched.communicate(timeout=60)
        assert watched.returncode == code, said
        assert not any(p.is_running() for p in children) and other.poll() is None
    finally:
        other.kill()
        other.wait()
