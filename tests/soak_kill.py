"""Kill a rank at a random moment, again and again: every training must end in the same bits.

Not a part of the suite, it takes minutes:  python tests/soak_kill.py --count 25 --seed 0
With --signal TERM (or USR1) the rank gets that signal in the middle of the training: then no step
may be lost either, since all ranks save before they leave.
"""

import argparse
import json
import os
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil
from launch import ROOT

LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--max-restarts", "1"]
TRAINING = [ROOT / "scripts/09_train.py", "--every", "5"]
LIMIT_S = 180


def ranks_of(launch):
    """{rank: process} of a launch, as far as they have started."""
    found = {}
    for child in psutil.Process(launch.pid).children():
        try:
            environment = child.environ()
        except psutil.Error:
            continue
        if "RANK" in environment:
            found[int(environment["RANK"])] = child
    return found


def step_of_newest(folder):
    return max((int(p.name[5:14]) for p in Path(folder).glob("step-*.pt")), default=0)


def train(epochs, folder, runs, kill=None, number=signal.SIGKILL, after=0):
    """One training; kill is (rank, seconds after the ranks started, or after the checkpoint of
    step `after`). Its result, the newest checkpoint then, seconds, its log."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "DDP_COURSE_RUNS": str(runs)}
    with open(runs / "log", "w+") as log:
        training = [*TRAINING, "--epochs", epochs, "--folder", folder]
        command = [*LAUNCH, "--nproc-per-node", "2", *training]
        launch = subprocess.Popen(list(map(str, command)), env=env, stdout=log, stderr=log)
        while len(ranks := ranks_of(launch)) < 2 and launch.poll() is None:
            time.sleep(0.01)
        start, at = time.time(), None
        while kill and after and not step_of_newest(folder) >= after and launch.poll() is None:
            time.sleep(0.005)
        if kill:
            time.sleep(kill[1])
            at = step_of_newest(folder)
            killed = ranks[kill[0]].is_running() and launch.poll() is None
            if killed:
                ranks[kill[0]].send_signal(number)
            at = at if killed else "too late: it had ended"
        try:
            code = launch.wait(LIMIT_S)
        finally:
            if launch.poll() is None:
                launch.terminate()
        log.seek(0)
        result = json.loads((runs / "09_train.json").read_text()) if code == 0 else None
        return result, at, time.time() - start, log.read()


def step_of_leaving(log):
    found = re.search(r"told to stop: saved after step (\d+)", log)
    return int(found[1]) if found else None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--count", type=int, default=25)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--epochs", type=int, default=40, help="of 23 steps each")
    parser.add_argument("--signal", default="KILL", choices=("KILL", "TERM", "USR1"))
    args = parser.parse_args()
    number = signal.Signals[f"SIG{args.signal}"]
    dice, right = random.Random(args.seed), 0
    with tempfile.TemporaryDirectory() as temporary:
        temporary = Path(temporary)
        whole, _, seconds, log = train(args.epochs, temporary / "whole", temporary)
        assert whole, log
        digest = whole["ranks"][0]["digest"]
        print(f"without a signal: {digest}, {seconds:.1f} s", flush=True)
        for i in range(args.count):
            kill, after = (dice.randrange(2), dice.uniform(0, 0.8 * seconds)), 0
            if number != signal.SIGKILL:  # the training must not be over: so by step, not by clock
                after = dice.randint(1, int(0.9 * whole["ranks"][0]["last"]))
                kill = kill[0], dice.uniform(0, 0.05)
            found, at, _, log = train(
                args.epochs, temporary / str(i), temporary, kill, number, after
            )
            first = found and found["ranks"][0]["first"]
            same = bool(found) and all(r["digest"] == digest for r in found["ranks"])
            if number != signal.SIGKILL:
                same = same and first == step_of_leaving(log)  # it left in time, and lost nothing
            right += same
            print(
                f"{i + 1:3}: rank {kill[0]}, SIG{args.signal} after {kill[1]:5.2f} s, newest "
                f"checkpoint {at}, resumed at {first}: {'the same bits' if same else 'FAILED'}",
                flush=True,
            )
            if not same:
                print(log)
    print(f"{right} of {args.count} ended in the same bits")
    sys.exit(right != args.count)


if __name__ == "__main__":
    main()
