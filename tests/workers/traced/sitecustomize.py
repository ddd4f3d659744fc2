"""In each Python process of a rehearsal: which of the wanted lines ran? Python imports it at start.

Written at once, line by line: a process may be killed, or end by os._exit. A forked process goes on
tracing, as its parent's main thread did.
"""

import json
import os
import sys
import threading


def start(wanted, folder):
    """Note each of {file: lines} once, in a file of this process."""
    with open(wanted) as text:
        left = {file: set(lines) for file, lines in json.load(text).items()}

    def on_call(frame, event, arg):
        return on_line if left.get(frame.f_code.co_filename) else None

    def on_line(frame, event, arg):
        name, line = frame.f_code.co_filename, frame.f_lineno
        if event == "line" and line in left[name]:
            left[name].discard(line)
            with open(os.path.join(folder, str(os.getpid())), "a") as seen:
                seen.write(f"{line} {name}\n")
        return on_line

    threading.settrace(on_call)
    sys.settrace(on_call)


if "TRACED_LINES" in os.environ:
    start(os.environ["TRACED_LINES"], os.environ["TRACED_SEEN"])
