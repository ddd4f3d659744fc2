"""What a rank sees of itself, and how it ends; run by test_forked_ranks.py."""

import atexit
import json
import os
import pickle
import signal
import sys
import threading
import traceback
from pathlib import Path

SHOWN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "TORCHELASTIC_RESTART_COUNT")


class Mine:
    pass


def main():
    handlers = {int(n): str(signal.getsignal(n)) for n in signal.valid_signals()}
    out = (sys.stdout, sys.stderr)
    facts = {
        "name": __name__,
        "file": __file__,
        "arguments": sys.argv,
        "started as": sys.orig_argv[1:],
        "path": sys.path[0],
        "folder": os.getcwd(),
        "environment": {name: os.environ.get(name) for name in SHOWN},
        "leads its session": os.getsid(0) == os.getpid(),
        "handlers": handlers,
        "threads": [thread.name for thread in threading.enumerate()],
        "open files": len(os.listdir("/proc/self/fd")),
        "torch on the stack": any("torch" in f.filename for f in traceback.extract_stack()),
        "pickled": type(pickle.loads(pickle.dumps(Mine()))) is Mine,
        "output": [[f.encoding, f.errors, f.write_through, type(f.buffer).__name__] for f in out],
    }
    print("began as", Path("/proc/self/cmdline").read_text().split("\0"))
    print(json.dumps(facts, indent=1))
    atexit.register(print, "atexit was here")
    threading.Timer(0.3, print, ["a thread was waited for"]).start()
    attempt = os.environ["TORCHELASTIC_RESTART_COUNT"]
    if attempt == "0":
        sys.exit("no licence on this node")
    elif attempt == "1":
        os.kill(os.getpid(), signal.SIGINT)
    raise ValueError("the end")


if __name__ == "__main__":
    main()
