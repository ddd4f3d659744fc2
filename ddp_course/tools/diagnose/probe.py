"""What `diagnose` runs inside every Python process of a launch: say where it stands.

It is copied as sitecustomize.py into a folder that comes first in PYTHONPATH, so Python runs it
before the script, and the script needs no change. Only the standard library at the top: it must
work in any environment. A thread looks from inside, twice a second, because looking from outside
(py-spy, gdb) needs root on a Mac and in many containers. It writes facts, one file a process; who
of them is a rank is decided from all files together (identify.py).
"""

import atexit
import contextlib
import faulthandler
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


def joined():
    """torch.distributed, if this process is in a process group; else None."""
    dist = sys.modules.get("torch.distributed")
    return dist if getattr(dist, "is_initialized", lambda: False)() else None


def collectives():
    """What torch's flight recorder knows: counts by group, and the last call.

    Returns
    -------
    dict
        counts : {group: how many were called}; last : {"op", "seq", "group", "sizes", "finished"}
        or None; unknown : why nothing is recorded. Without a process group, empty.
    """
    dist = joined()
    if dist is None:
        return {}
    from torch._C import _distributed_c10d as c10d

    # NCCL has a recorder of its own (never run here: no GPU).
    nccl = "nccl" in str(dist.get_backend())
    dump = getattr(c10d, "_dump_nccl_trace_json" if nccl else "_dump_fr_trace_json", None)
    if dump is None:
        version = ".".join(sys.modules["torch"].__version__.split(".")[:2])
        return {"unknown": f"can't tell on torch {version}: no flight recorder"}
    size = os.environ.get("TORCH_FR_BUFFER_SIZE", os.environ.get("TORCH_NCCL_TRACE_BUFFER_SIZE"))
    if size == "0":
        return {"unknown": "can't tell: the flight recorder is off (TORCH_FR_BUFFER_SIZE=0)"}
    found = json.loads(dump(includeCollectives=True, onlyActive=False))
    # The recorder keeps groups that were destroyed, and knows a new one from its first call on.
    alive = dist.distributed_c10d._world.pg_names.values()
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


def told(frame):
    """What the frames of the main thread say of this process: its part in the launch."""
    facts = {}
    while frame is not None:
        code = frame.f_code  # and f_locals of torch's frames only: reading them keeps values alive
        file, name = code.co_filename.replace(os.sep, "/"), code.co_name
        if name == "init_process_group" and file.endswith("torch/distributed/distributed_c10d.py"):
            facts |= asked(frame.f_locals)
        elif name == "_wrap" and file.endswith("torch/multiprocessing/spawn.py"):
            facts.setdefault("index", frame.f_locals.get("i"))
        elif name == "_bootstrap" and file.endswith("multiprocessing/process.py"):
            order = getattr(frame.f_locals.get("self"), "_identity", None)
            facts.setdefault("index", order[-1] - 1 if order else None)
            break  # what is above was the parent's, before the fork
        elif name == "start_processes" or file.endswith("torch/distributed/run.py"):
            facts["launcher"] = True
        frame = frame.f_back
    return facts


def asked(seen):
    """Rank, world size and address that init_process_group was given, or found in variables."""
    env = os.environ
    where = seen.get("init_method") or "env://"
    if seen.get("store") is not None and not seen.get("init_method"):
        where = None  # the caller's own store
    elif where.startswith("env://"):
        where = f"{env.get('MASTER_ADDR', '?')}:{env.get('MASTER_PORT', '?')}"
    facts = {"in_init": True, "endpoint": where}
    for key, word in (("rank", "RANK"), ("world_size", "WORLD_SIZE")):
        given = seen.get(key)
        if not isinstance(given, int) or given < 0:
            given = number(word)
        if given is not None:
            facts[key] = given
    return facts


def number(*names):
    """The first of these variables that is a number: torchrun's, Open MPI's, MPICH's."""
    return next((int(os.environ[n]) for n in names if os.environ.get(n, "").isdigit()), None)


def causes(error):
    """The errors behind an error, nearest first, each with the line that raised it."""
    found, seen = [], {id(error)}
    while error := error.__cause__ or (None if error.__suppress_context__ else error.__context__):
        if id(error) in seen or len(found) == 3:
            break
        seen.add(id(error))
        last = traceback.extract_tb(error.__traceback__)[-1:]
        where = f" at {last[0].filename}:{last[0].lineno}" if last else ""
        found.append(f"after {type(error).__name__}: {str(error).strip()[:300]}{where}")
    return found


def native_threads():
    """How many threads run beside Python's own (Linux): torch's pool, the autograd engine's."""
    try:
        return len(os.listdir("/proc/self/task")) - threading.active_count()
    except OSError:
        return 0


class Watch:
    """Keeps process-<pid>.json in the folder up to date: one dict, the state."""

    def __init__(self, folder):
        self.folder, self.native = folder, 0
        self.hook, sys.excepthook = sys.excepthook, self.on_error
        atexit.register(self.on_exit)
        os.register_at_fork(
            before=self.before_fork, after_in_parent=self.after_fork, after_in_child=self.in_child
        )
        self.begin()

    def begin(self, **facts):
        """Watch this process, be it new or a fork."""
        env = os.environ
        self.pid, self.lock, self.over = os.getpid(), threading.RLock(), threading.Event()
        self.file = os.path.join(self.folder, f"process-{self.pid}.json")
        self.state = {
            "pid": self.pid, "ppid": os.getppid(), "rank": None, "joined": False, "index": None,
            "env_rank": number("RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK"), "torch": False,
            "world_size": number("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
            "attempt": int(env.get("TORCHELASTIC_RESTART_COUNT") or 0), "endpoint": None,
            "torchruns_store": env.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            "launcher": False, "child": "--multiprocessing-fork" in sys.orig_argv, "notes": [],
            "status": "running", "stack": [], "collectives": {}, "error": None,
            "start": time.time(), **facts,
        }  # fmt: skip
        self.listen()
        if self.state["child"]:  # it ends without Python's hooks, but not without this one
            from multiprocessing import util

            util.register_after_fork(self, Watch.at_bootstrap)  # a forked one forgets finalizers
            self.at_bootstrap()
        self.look()
        threading.Thread(target=self.run, name="diagnose", daemon=True).start()

    def listen(self):
        """Stacks that Python's own thread can't give: at a fatal error, and under C code."""
        log = open(os.path.join(self.folder, f"fault-{self.pid}.txt"), "w")  # noqa: SIM115
        faulthandler.enable(file=log)
        if hasattr(faulthandler, "register"):
            # Works even while C code holds the interpreter's lock.
            faulthandler.register(signal.SIGUSR2, file=log, all_threads=False)
            # Where it stood when the launcher ended it because of another rank.
            if signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
                faulthandler.register(signal.SIGTERM, file=log, all_threads=False, chain=True)

    def run(self):
        while not self.over.wait(EVERY):
            self.look()

    def look(self):
        with self.lock, contextlib.suppress(Exception):  # between two states of an import
            frame = sys._current_frames().get(threading.main_thread().ident)
            if frame is not None:
                self.state["stack"] = frames(traceback.extract_stack(frame))
                self.state |= {"in_init": False, "launcher": False, **told(frame)}
            self.state["torch"] = "torch" in sys.modules
            self.count()
        self.write()

    def count(self):
        with contextlib.suppress(Exception):  # between two states of a group
            if dist := joined():
                self.state |= {
                    "joined": True, "rank": dist.get_rank(), "world_size": dist.get_world_size()
                }  # fmt: skip
            self.state["collectives"] = collectives()

    def write(self):
        if os.getpid() != self.pid:  # a fork that is nobody's rank
            return
        with self.lock, contextlib.suppress(OSError):
            draft = self.file + ".tmp"
            with open(draft, "w") as out:
                json.dump({**self.state, "time": time.time()}, out)
            os.replace(draft, self.file)

    def on_error(self, kind, error, tb):
        self.failed(error, tb)
        self.hook(kind, error, tb)

    def failed(self, error, tb):
        """The error that ends the script, and when: peers fail of it a moment later."""
        if os.getpid() != self.pid:
            return
        with contextlib.suppress(Exception):
            text = "\n".join([str(error), *getattr(error, "__notes__", [])])
            self.state["error"] = {
                "type": type(error).__name__, "text": text, "at": time.time(),
                "stack": frames(traceback.extract_tb(tb)), "causes": causes(error),
                # What torch.multiprocessing says of a child of its own.
                "pid": getattr(error, "pid", None), "code": getattr(error, "exit_code", None),
            }  # fmt: skip
            self.state["status"] = "raised"
            self.count()
            self.write()

    def on_exit(self):
        self.over.set()
        error = getattr(sys, "last_value", None)
        if self.state["status"] == "running" and error is not None:  # another hook than ours ran
            self.failed(error, error.__traceback__)
        if self.state["status"] == "running":
            self.state["status"] = "ended"
            self.write()

    def at_bootstrap(self):
        """In a child of multiprocessing, before its function runs."""
        from multiprocessing import util

        util.Finalize(None, self.at_child_end, exitpriority=-1000)

    def at_child_end(self):
        """multiprocessing catches what its function raises; here it is still under way."""
        if os.getpid() != self.pid:
            return
        error = sys.exc_info()[1]
        if isinstance(error, SystemExit):  # torch's spawn leaves so, after an error
            error = error.__context__
        if isinstance(error, Exception):
            self.failed(error, error.__traceback__)
        self.on_exit()

    def before_fork(self):
        self.lock.acquire()  # the child must not find it, or a half-written file, in our hands
        self.native = native_threads() if "torch" in sys.modules else 0

    def after_fork(self):
        self.lock.release()

    def in_child(self):
        """A fork of a rank is a loader's worker or the like; any other may become a rank."""
        self.lock = threading.RLock()
        if self.pid is None or self.state["joined"] or joined():
            self.pid = None  # never write again, and leave the parent's file of stacks alone
            with contextlib.suppress(Exception):
                faulthandler.enable()
                for sign in (signal.SIGUSR2, signal.SIGTERM):
                    faulthandler.unregister(sign)
            return
        self.begin(child=True, native_threads=self.native)


def parent_is_rank(folder):
    """Whether the parent is in a process group: then this is a helper of its, and no rank."""
    parent = os.path.join(folder, f"process-{os.getppid()}.json")
    with contextlib.suppress(OSError, ValueError), open(parent) as file:
        return json.load(file)["joined"]
    return False


if __name__ == "sitecustomize":
    from ddp_course_first_of_all import run_the_next

    folder = os.environ.get(VARIABLE)
    if folder and os.path.isdir(folder) and not parent_is_rank(folder):
        with contextlib.suppress(OSError):
            Watch(folder)
    run_the_next(__file__)
