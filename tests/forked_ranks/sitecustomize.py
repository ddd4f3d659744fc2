"""torchrun as it is, but torch is imported once: its ranks are forks of it, not new Pythons.

torchrun starts a Python for itself and one for each rank, and in each the imports take longer than
most scripts of the course. With this folder on PYTHONPATH a rank begins as a copy of a torchrun
that has imported torch. Its arguments, environment, session and signals are made those of a new
process, and it ends as an interpreter ends; torchrun itself is not changed. test_forked_ranks.py
compares; DDP_COURSE_COLD=1 pytest  starts every rank as a reader's.
"""

import os
import sys

IS_TORCHRUN = os.path.basename(sys.argv[0]) == "torchrun" or (
    sys.orig_argv[1:3] == ["-m", "torch.distributed.run"]
)
THREADS = os.environ.get("OMP_NUM_THREADS")
HAS_GPU = os.path.exists("/proc/driver/nvidia")  # CUDA does not survive a fork


def import_what_is_used(args):
    """Once for all ranks, by the words of their scripts; what is missed here, each imports."""
    gc.disable()  # all that is imported stays: looking for garbage takes a third of the time
    files = [pathlib.Path(word) for word in args if word.endswith(".py")]
    text = "\n".join(file.read_text() for file in files if file.is_file())
    # 14_killed.py runs 14_train.py
    named = [file for file in SCRIPTS.glob("*.py") if file.name in text]
    text += "\n".join(file.read_text() for file in named)
    if re.search(r"DDP\(|optim\.|grade", text):
        import torch._dynamo  # noqa: F401  every optimizer's and DDP's constructor imports it
    if re.search(r"ddp_course import .*\bdata\b|grade", text):
        import sklearn.datasets
        import sklearn.model_selection  # noqa: F401  for the digits
    gc.freeze()
    gc.enable()


def start(args, env, stdout, stderr, start_new_session):
    """In the place of subprocess.Popen."""
    if args[1] == "-u" and (args[2] == "-m" or os.path.isfile(args[2])):
        return Fork(args, env, stdout, stderr)
    usual = {"stdout": stdout, "stderr": stderr, "start_new_session": start_new_session}
    return subprocess.Popen(args, env=env, **usual)  # not Python, or no such script


class Fork:
    """What torchrun needs of a subprocess.Popen."""

    def __init__(self, args, env, stdout, stderr):
        sys.stdout.flush()
        sys.stderr.flush()
        self.returncode = None
        import_what_is_used(args)
        self.pid = os.fork()
        if self.pid == 0:
            for number, file in ((1, stdout), (2, stderr)):
                if file:
                    os.dup2(file.fileno(), number)
            # A greenlet's stack begins here: none of torchrun's frames below the script's.
            greenlet.greenlet(become).switch(args, env)

    def poll(self):
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout):
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                raise subprocess.TimeoutExpired("a rank", timeout)
            time.sleep(0.01)


def unbuffered(file):
    raw = io.FileIO(file.fileno(), "w", closefd=False)
    return io.TextIOWrapper(raw, file.encoding, file.errors, write_through=True)


def start_as_python_does(env):
    """Run the first sitecustomize: that of ddp_course.diagnose, if it watches this launch."""
    path = env.get("PYTHONPATH", "").split(os.pathsep)
    spec = importlib.machinery.PathFinder.find_spec("sitecustomize", path)
    spec.loader.exec_module(importlib.util.module_from_spec(spec))


def become(args, env):
    """Be what `python -u script ...` or `python -u -m module ...` would be; doesn't return."""
    os.setsid()
    os.closerange(3, 1024)  # torchrun's sockets
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):  # torchrun's own
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    if env.get("OMP_NUM_THREADS") != THREADS:  # torchrun's choice, made after torch read it
        torch.set_num_threads(int(env["OMP_NUM_THREADS"]))
    os.environ.clear()
    os.environ.update(env)
    sys.orig_argv = list(args)
    is_module = args[2] == "-m"
    sys.argv = list(args[2 + is_module :])
    sys.path[0] = os.getcwd() if is_module else os.path.dirname(os.path.abspath(args[2]))
    sys.stdout, sys.stderr = unbuffered(sys.stdout), unbuffered(sys.stderr)  # python -u
    code = 0
    try:
        start_as_python_does(env)
        if is_module:
            runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(sys.argv[0], run_name="__main__")
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
    except BaseException as error:
        code, tb = 1, error.__traceback__
        while tb.tb_next and tb.tb_frame.f_code.co_filename in (__file__, "<frozen runpy>"):
            tb = tb.tb_next
        sys.excepthook(type(error), error.with_traceback(tb), tb)
        if isinstance(error, KeyboardInterrupt):  # an interpreter ends, then dies of the signal
            threading._shutdown()
            atexit._run_exitfuncs()
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
    ctypes.pythonapi.Py_Exit(code)


if IS_TORCHRUN and sys.platform == "linux" and not HAS_GPU and "RANK" not in os.environ:
    import atexit
    import ctypes
    import gc
    import importlib.machinery
    import importlib.util
    import io
    import pathlib
    import re
    import runpy
    import signal
    import subprocess
    import threading
    import time

    import greenlet

    SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"

    gc.disable()
    import torch
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler

    subprocess_handler.Popen = start
