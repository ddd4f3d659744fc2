"""Run scripts on pretended GPUs, one after the other; test_on_pretended_gpus.py starts it.

    python -m ddp_course.tools.rehearse --gpus 4 -- python tests/workers/pretended.py FOLDER

FOLDER/cases.json holds the cases; for each comes FOLDER/<case>.json, and in .txt what its rank 0
printed. Ranks are forks of a process that has imported torch and has not looked for GPUs, so a
launch costs a second; what starts its processes itself is a command.
"""

import contextlib
import json
import multiprocessing
import os
import runpy
import subprocess
import sys
import threading
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tools"))
import launching  # noqa: E402

launching.PRELOAD += ["sklearn.datasets", "torchvision"]  # what scripts import before they start
TIMEOUT = 150


def run_script(path, args, said, traced):
    """As `python path args`, in this rank; what rank 0 prints goes to a file."""
    if not traced:  # it would cost a third
        sys.settrace(None)
        threading.settrace(None)
    multiprocessing.set_start_method(None, force=True)  # a loader's workers start as usual
    sys.argv, sys.path[0] = [path, *args], os.path.dirname(path)
    printed = said if os.environ["RANK"] == "0" else os.devnull
    with open(printed, "w") as out, contextlib.redirect_stdout(out):
        runpy.run_path(path, run_name="__main__")


def run(case, printed):
    """(Did it end well?, what it printed if it didn't)"""
    if "command" in case:
        kept = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        env = {**os.environ, **case["env"]}
        done = subprocess.run(case["command"], env=env, timeout=TIMEOUT, **kept)
        return done.returncode == 0, done.stdout
    try:
        how = {name: case[name] for name in ("ranks", "env", "restarts")}
        args = case["script"], case["args"], printed, case["traced"]
        launching.elastic(run_script, *args, timeout=TIMEOUT, **how)
    except Exception as error:
        return False, str(error)
    return True, ""


def main(folder):
    for name, case in json.loads((folder / "cases.json").read_text()).items():
        start = time.monotonic()
        well, said = run(case, str(folder / f"{name}.txt"))
        found = {"well": well, "said": said, "seconds": time.monotonic() - start}
        (folder / f"{name}.json").write_text(json.dumps(found))
        print(f"{name}: {'ran' if well else 'FAILED'} in {found['seconds']:.1f} s", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
