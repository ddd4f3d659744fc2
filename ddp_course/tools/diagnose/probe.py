"""What `ddp_course.diagnose` runs inside every rank: say where it stands, twice a second.

`diagnose` copies this file as sitecustomize.py into a folder of its own and puts that in front of
PYTHONPATH, so Python runs it before the script, and the script needs no change. Only the standard
library at the top: it must work in any environment. A thread looks from inside because looking
from outside (py-spy, gdb) needs root on a Mac and in many containers.
"""

import atexit
import contextlib
import faulthandler
import importlib.machinery
import importlib.util
import json
import os
import signal
import sys
import threading
import time
import traceback

EVERY = 0.5  # seconds
VARIABLE = "DDP_COURSE_DIAGNOSE"


def frames(stack):
    """[[file, line, function, source], ...], outermost first."""
    return [[f.filename, f.lineno, f.name, f.line or ""] for f in stack]


def collectives():
    """What torch's flight recorder knows: counts by group, and the last call.

    Returns
    -------
    dict
        counts : {group: how many were called}; last : {"op", "seq", "group", "sizes", "finished"}
        or None. Without a process group, or with a torch that records nothing, empty.
    """
    if not getattr(sys.modules.get("torch.distributed"), "is_initialized", lambda: False)():
        return {}
    from torch._C import _distributed_c10d as c10d

    # NCCL has a recorder of its own (never run here: no GPU).
    nccl = "nccl" in sys.modules["torch.distributed"].get_backend()
    dump = c10d._dump_nccl_trace_json if nccl else c10d._dump_fr_trace_json
    found = json.loads(dump(includeCollectives=True, onlyActive=False))
    # The recorder keeps groups that were destroyed, and knows a new one from its first call on.
    alive = sys.modules["torch.distributed"].distributed_c10d._world.pg_names.values()
    status = found.get("pg_status", {})
    counts = {g: int(status.get(g, {}).get("last_enqueued_collective", 0)) for g in alive}
    calls = [e for e in found.get("entries", []) if not e.get("is_p2p")]
    # The oldest that is not finished is the one to wait for; else the last of all.
    open_calls = [e for e in calls if not e["retired"]]
    last = (open_calls or calls[-1:] or [None])[0]
    if last:
        last = {
            "op": last["profiling_name"], "seq": last["collective_seq_id"],
            "group": last["process_group"][0], "sizes": last["input_sizes"],
            "finished": last["retired"],
        }  # fmt: skip
    return {"counts": counts, "last": last}


class Watch:
    """Keeps rank-<RANK>-<pid>.json in the folder up to date: one dict, the state."""

    def __init__(self, folder):
        self.file = os.path.join(folder, f"rank-{os.environ['RANK']}-{os.getpid()}.json")
        self.pid, self.lock, self.over = os.getpid(), threading.Lock(), threading.Event()
        self.state = {
            "rank": int(os.environ["RANK"]), "pid": self.pid, "status": "running", "stack": [],
            "world_size": int(os.environ.get("WORLD_SIZE", 1)), "collectives": {}, "error": None,
        }  # fmt: skip

    def start(self):
        self.hook, sys.excepthook = sys.excepthook, self.on_error
        atexit.register(self.on_exit)
        self.look()
        threading.Thread(target=self.run, name="diagnose", daemon=True).start()

    def run(self):
        while not self.over.wait(EVERY):
            self.look()

    def look(self):
        frame = sys._current_frames().get(threading.main_thread().ident)
        if frame is not None:
            self.state["stack"] = frames(traceback.extract_stack(frame))
        self.count()
        self.write()

    def count(self):
        with contextlib.suppress(Exception):  # between two states of an import, of a group
            self.state["collectives"] = collectives()

    def write(self):
        if os.getpid() != self.pid:  # a fork of the rank
            return
        with self.lock, contextlib.suppress(OSError):
            draft = self.file + ".tmp"
            with open(draft, "w") as out:
                json.dump({**self.state, "time": time.time()}, out)
            os.replace(draft, self.file)

    def on_error(self, kind, error, tb):
        """The error that ends the script, and when: peers fail of it a moment later."""
        with contextlib.suppress(Exception):
            self.state["status"] = "raised"
            self.state["error"] = {
                "type": kind.__name__, "text": str(error), "at": time.time(),
                "stack": frames(traceback.extract_tb(tb)),
            }  # fmt: skip
            self.count()
            self.write()
        self.hook(kind, error, tb)

    def on_exit(self):
        self.over.set()
        if self.state["status"] == "running":
            self.state["status"] = "ended"
            self.write()


def main():
    folder = os.environ.get(VARIABLE)
    if not folder or "RANK" not in os.environ:
        return
    # The rank's own children (loader workers) are not ranks: they must not find this.
    del os.environ[VARIABLE]
    faulthandler.enable()  # the stack at a segfault or an abort
    if hasattr(faulthandler, "register"):
        # Works even while C code holds the interpreter's lock, when the thread can't.
        log = open(os.path.join(folder, f"fault-{os.getpid()}.txt"), "w")  # noqa: SIM115
        faulthandler.register(signal.SIGUSR2, file=log, all_threads=False)
    Watch(folder).start()


def the_next_sitecustomize():
    """Run the environment's own sitecustomize, which ours hides, and leave the path as it was."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [p for p in sys.path if os.path.abspath(p) != here]
    if "RANK" in os.environ:
        rest = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p != here]
        os.environ["PYTHONPATH"] = os.pathsep.join(rest)
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", sys.path)
    if spec:
        spec.loader.exec_module(importlib.util.module_from_spec(spec))


if __name__ == "sitecustomize":
    main()
    the_next_sitecustomize()
