"""A signal to one rank stops all of them at one step, and nothing of the training is lost."""

import os
import random
import re
import signal
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from launching import elastic, torchrun

from ddp_course.tools import preemption
from ddp_course.tools.collectives import leave_group

WORKERS = Path(__file__).with_name("workers")
sys.path.insert(0, str(WORKERS))  # also in the ranks, which get this process's path

import preempted  # noqa: E402


def signal_later(seconds, number):
    threading.Timer(seconds, os.kill, (os.getpid(), number)).start()


def in_many_lives(folder, cases):
    """{case: (steps of leaving, exit codes, digest)}; a case is (rank, signal, seed) or None."""
    dist.init_process_group("gloo")
    found = {}
    for i, case in enumerate(cases):
        codes, leaving, sent = [], [], []

        def after_step(step, case=case, leaving=leaving, sent=sent):
            leaving[:] = [step]
            time.sleep(0.002)  # so that a signal has a time to come at
            if case and not sent and dist.get_rank() == case[0]:
                sent.append(step)
                delay = random.Random(case[2]).uniform(0, 0.05)
                signal_later(delay, case[1])

        while len(codes) < 5:
            try:
                first, digest = preempted.train(folder / str(i), after_step)
                break
            except SystemExit as end:
                codes.append((end.code, leaving[0]))
                preemption._received.clear()  # as in a new process
        found[i] = {"first": first, "digest": digest, "left": codes}
    leave_group()
    return found


def test_all_stop_at_one_step_and_go_on_there(tmp_path):
    numbers = (signal.SIGTERM, signal.SIGUSR1)
    cases = [None] + [(i % 2, numbers[i // 2], i) for i in range(4)]
    ranks = elastic(in_many_lives, tmp_path, cases)
    whole = ranks[0][0]
    assert whole["left"] == []
    for i, case in enumerate(cases[1:], 1):
        one, other = ranks[0][i], ranks[1][i]
        assert one["left"] == other["left"], case
        ((code, step),) = one["left"]
        assert code == 75 and 0 < step <= preempted.STEPS
        assert one["first"] == other["first"] == step, "a step was lost or done twice"
        assert one["digest"] == other["digest"] == whole["digest"], case


def wait_in_a_collective():
    """The signal comes while this rank waits for the other one."""
    dist.init_process_group("gloo")
    preemption.listen()
    number = torch.ones(1)
    if dist.get_rank() == 0:
        signal_later(0.2, signal.SIGTERM)
    else:
        time.sleep(1.0)
    began = time.monotonic()
    dist.all_reduce(number)
    found = number.item(), time.monotonic() - began, preemption.requested()
    leave_group()
    return found


def test_a_collective_is_finished_first():
    zero, one = elastic(wait_in_a_collective)
    assert zero[0] == one[0] == 2.0
    assert zero[1] > 0.4  # it was waiting when the signal came
    assert zero[2] is one[2] is True


def test_without_a_group():
    handlers = {number: signal.getsignal(number) for number in preemption.SIGNALS}
    try:
        preemption.listen()
        assert not preemption.requested()
        signal.raise_signal(signal.SIGUSR1)
        assert preemption.requested()
    finally:
        preemption._received.clear()
        for number, handler in handlers.items():
            signal.signal(number, handler)


def told(done, text):
    return sorted(set(re.findall(text, done.stdout)))


def test_under_torchrun(tmp_path):
    """One rank: torchrun restarts, and it goes on. The whole container: torchrun ends with 1."""
    script = WORKERS / "preempted.py"
    more = {
        "flags": ("--standalone", "--max-restarts", "1"),
        # Else a restarted rank may call one that has gone (lesson 09).
        "env": {"TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1"},
    }
    rank = torchrun(script, tmp_path / "rank", "rank", **more)
    assert rank.returncode == 0, rank.stdout
    assert "told to stop: saved after step 17" in rank.stdout
    assert told(rank, r"exitcode: (\d+)") == ["75"]
    assert len(told(rank, r"from step 17, weights (\w+)")) == 1  # equal on both ranks

    every = torchrun(script, tmp_path / "all", "all", **more)
    assert every.returncode == 1, every.stdout
    (left,) = told(every, r"told to stop: saved after step (\d+)")
    assert "weights" not in every.stdout, "it was started again"
    assert list((tmp_path / "all").glob(f"step-{int(left):09}-*.pt"))
