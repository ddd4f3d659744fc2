"""Lesson 14's training with many settings in one launch: capstone.py FOLDER, writes cases.json."""

import json
import runpy
import sys
from pathlib import Path

import torch.distributed as dist

from ddp_course import results
from ddp_course.process_group import process_group
from ddp_course.tools import checkpoint
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
    "odd batch": ["--folder", "e", "--batch", "63"],
    "large batch": ["--folder", "e", "--batch", "2000"],
    "jpegs": ["--folder", "f", "--epochs", "1", *JPEGS],
    "other model": ["--folder", "f", "--epochs", "1", *JPEGS, "--model", "cnn"],
}


def run(me, folder, words):
    args = training["settings"]([*words, "--root", str(folder / "jpegs")])
    args.folder = folder / args.folder
    try:
        training["train"](args, me)
    except CourseError as error:
        return {"error": str(error)}
    dist.barrier()
    found = results.load("14_train")
    found["files"] = sorted(p.name for p in args.folder.rglob("*") if p.is_file())
    state = checkpoint.load(args.folder).state["model"]
    return found | {"weight": next(iter(state.values())).flatten()[:8].tolist()}


def main(folder):
    with process_group() as me:
        found = {name: run(me, folder, words) for name, words in CASES.items()}
        if me.rank == 0:
            (folder / "cases.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
