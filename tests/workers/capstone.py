"""Lesson 14's training with many settings in one launch: capstone.py FOLDER, writes cases.json."""

import json
import multiprocessing
import os
import runpy
import signal
import sys
import threading
from pathlib import Path

import torch.distributed as dist

from ddp_course import results
from ddp_course.process_group import process_group
from ddp_course.tools import checkpoint, preemption
from ddp_course.tools.errors import CourseError

training = runpy.run_path(str(Path(__file__).resolve().parents[2] / "scripts/14_train.py"))
JPEGS = ["--data", "folder", "--model", "resnet18", "--batch", "4", "--shift", "2"]
CASES = {  # in this order: some go on in the folder of another
    "plain": ["--folder", "a", "--epochs", "2"],
    "again": ["--folder", "a", "--epochs", "2"],
    "longer": ["--folder", "a", "--epochs", "3"],
    "fresh": ["--folder", "a", "--epochs", "1", "--fresh"],
    "accumulate": ["--folder", "b", "--epochs", "2", "--accumulate", "4"],
    "fp16": ["--folder", "c", "--epochs", "2", "--precision", "fp16"],
    "workers": ["--folder", "d", "--epochs", "1", "--workers", "1"],
    "signalled": ["--folder", "g", "--epochs", "2", "--workers", "1"],
    "after the signal": ["--folder", "g", "--epochs", "2"],
    "odd batch": ["--folder", "e", "--batch", "63"],
    "large batch": ["--folder", "e", "--batch", "2000"],
    "jpegs": ["--folder", "f", "--epochs", "1", *JPEGS],
    "other model": ["--folder", "f", "--epochs", "1", *JPEGS, "--model", "cnn"],
}


def signal_in_mid_training(me):
    """To rank 1 and its loader's workers, from a thread, once training has begun."""
    one_step = training["Training"].one_step

    def and_send(job, *batches):
        done = one_step(job, *batches)
        if job.step == 30 and me.rank == 1:
            for process in [*multiprocessing.active_children(), multiprocessing.current_process()]:
                threading.Timer(0.0, os.kill, (process.pid, signal.SIGTERM)).start()
        return done

    training["Training"].one_step = and_send
    return lambda: setattr(training["Training"], "one_step", one_step)


def run(me, folder, name, words):
    undo = signal_in_mid_training(me) if name == "signalled" else lambda: None
    args = training["settings"]([*words, "--root", str(folder / "jpegs")])
    args.folder = folder / args.folder
    try:
        training["train"](args, me)
    except CourseError as error:
        return {"error": str(error)}
    except SystemExit as end:
        preemption._received.clear()  # as in a new process
        return {"code": end.code, "step": checkpoint.load(args.folder).step}
    finally:
        undo()
    dist.barrier()
    found = results.load("14_train")
    found["files"] = sorted(p.name for p in args.folder.rglob("*") if p.is_file())
    state = checkpoint.load(args.folder).state["model"]
    return found | {"weight": next(iter(state.values())).flatten()[:8].tolist()}


def main(folder):
    with process_group() as me:
        found = {name: run(me, folder, name, words) for name, words in CASES.items()}
        if me.rank == 0:
            (folder / "cases.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
