"""torchrun as it is, but torch is imported once: its ranks are forks of it, not new Pythons.

torchrun starts a Python for itself and one for each rank, and in each the imports take longer than
most scripts of the course. With this folder on PYTHONPATH a rank begins as a copy of a torchrun
that has imported torch. Its arguments, environment, session and signals are made those of a new
process, and it ends as an interpreter ends; torchrun itself is not changed. test_forked_ranks.py
compares; DDP_COURSE_COLD=1 pytest  starts every rank as a reader's.

The copies are not made by torchrun itself: its store's thread talks to the ranks that are there
already, and a process forked just then finds the locks that this thread holds locked for ever
(seen: glibc's, for name resolution). A nursery makes them, forked off before there is a store.
"""

import os
import sys

IS_TORCHRUN = os.path.basename(sys.argv[0]) == "torchrun" or (
    sys.orig_argv[1:3] == ["-m", "torch.distributed.run"]
)
THREADS = os.environ.get("OMP_NUM_THREADS")
HAS_GPU = os.path.exists("/proc/driver/nvidia")  # CUDA does not survive a fork


def import_what_is_used():
    """By the words of the scripts that torchrun was given; what is missed here, each imports."""
    files = [pathlib.Path(word) for word in sys.argv if word.endswith(".py")]
    text = "\n".join(file.read_text() for file in files if file.is_file())
    # 14_killed.py runs 14_train.py
    named = [file for file in SCRIPTS.glob("*.py") if file.name in text]
    text += "\n".join(file.read_text() for file in named)
    if re.search(r"DDP\(|optim\.|grade", text):
        import torch._dynamo  # noqa: F401  every optimizer's and DDP's constructor imports it
    if re.search(r"ddp_course import .*\bdata\b|grade", text):
        import sklearn.datasets
        import sklearn.model_selection  # noqa: F401  for the digits


def get_rendezvous_handler(parameters):
    """In the place of torchrun's own, which starts the store; there are no ranks yet."""
    global nursery
    sys.stdout.flush()
    sys.stderr.flush()
    nursery, inside = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # orphans of the nursery become its children
    if os.fork() == 0:
        nursery.close()
        be_nursery(inside)
    inside.close()
    gc.enable()
    return real_get_rendezvous_handler(parameters)


def be_nursery(asked):
    """Fork a rank for each message, as long as torchrun lives; doesn't return."""
    os.setsid()  # a Ctrl-C is not meant for this process
    import_what_is_used()
    gc.freeze()
    gc.enable()
    while True:
        message, files, *_ = socket.recv_fds(asked, 1 << 20, 2)
        if not message:
            os._exit(0)
        child = os.fork()
        if child == 0:
            middle = os.getpid()
            if os.fork():
                os._exit(0)
            while os.getppid() == middle:  # then torchrun is the parent
                time.sleep(0.0005)
            asked.send(str(os.getpid()).encode())
            args, env, handled, replaced = json.loads(message)
            for number, file in zip(replaced, files, strict=True):
                os.dup2(file, number)
            # A greenlet's stack begins here: none of torchrun's frames below the script's.
            greenlet.greenlet(become).switch(args, env, handled)
        os.waitpid(child, 0)
        for file in files:
            os.close(file)


def start(args, env, stdout, stderr, start_new_session):
    """In the place of subprocess.Popen."""
    if args[1] == "-u" and (args[2] == "-m" or os.path.isfile(args[2])):
        return Fork(args, env, stdout, stderr)
    usual = {"stdout": stdout, "stderr": stderr, "start_new_session": start_new_session}
    return subprocess.Popen(args, env=env, **usual)  # not Python, or no such script


class Fork:
    """What torchrun needs of a subprocess.Popen."""

    def __init__(self, args, env, stdout, stderr):
        self.returncode = None
        replaced = {number: file.fileno() for number, file in ((1, stdout), (2, stderr)) if file}
        # A new process starts without the handlers of its parent.
        handled = [int(n) for n in signal.valid_signals() if callable(signal.getsignal(n))]
        message = json.dumps([list(args), env, handled, list(replaced)]).encode()
        socket.send_fds(nursery, [message], list(replaced.values()))
        self.pid = int(nursery.recv(64))

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


def become(args, env, handled):
    """Be what `python -u script ...` or `python -u -m module ...` would be; doesn't return."""
    os.setsid()
    os.closerange(3, 1024)  # the nursery's
    for number in handled:
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
    import json
    import pathlib
    import re
    import runpy
    import signal
    import socket
    import subprocess
    import threading
    import time

    import greenlet

    PR_SET_CHILD_SUBREAPER = 36  # <linux/prctl.h>
    SCRIPTS = pathlib.Path(__file__).resolve().parents[2] / "scripts"

    gc.disable()  # all that is imported stays: looking for garbage takes a third of the time
    import torch
    from torch.distributed.elastic.multiprocessing.subprocess_handler import subprocess_handler
    from torch.distributed.elastic.rendezvous import registry

    subprocess_handler.Popen = start
    real_get_rendezvous_handler = registry.get_rendezvous_handler
    registry.get_rendezvous_handler = get_rendezvous_handler
