"""Run a GPU script, unchanged, on a machine without GPUs: on pretended ones.

    python -m ddp_course.tools.rehearse --gpus 4 [--memory 16GiB] -- torchrun ... train.py

Rehearse before you go to the cluster: devices that are mixed up, a collective that gets a tensor of
the CPU, `device_ids` of another rank, what doesn't fit into memory, a branch that never ran. It
ends with the peak memory of torch's allocator, by GPU and rank. Needs Linux, a C compiler (once)
and torch's CUDA build. Exit code: the command's; 128 + n if signal n ended it; 2 if it can't be
run here, after one line that says what is missing.

How it works:

- `gpus.c`, preloaded, takes the place of CUDA's runtime. A GPU's memory is this machine's; streams
  and events do at once what they are asked for. So torch's own code runs: dispatcher, autograd,
  autocast, caching allocator, generators, DDP's reducer, DataParallel.
- `hook` runs in every Python process, and `pretend` right after it has imported torch.
- `kernels` registers a Python function for each operator that has a CUDA kernel. It calls the CPU's
  kernel on the same memory, and copies new results into memory of torch's allocator.
- `twins` has the few operators that only GPUs have: SyncBatchNorm's, fused attention, LSTM and GRU.
- `nccl` makes a gloo group for each nccl group, and raises where nccl would.
- `memory` notes what each process needed. All processes share each GPU's memory by a ledger.

It can't show: time; races, as there is no asynchrony (a missing `synchronize`, a stream that should
have waited, `non_blocking` copies that are read too early); nccl's asynchrony and its watchdog;
rounding of a GPU's kernels, TF32, settings of cuBLAS and cuDNN; the memory that a CUDA context
(some 500 MB a process), nccl and a kernel's workspace take; `torch.compile`, which is left out
(the model runs as it is); CUDA graphs, Triton, CUDA extensions and sparse tensors, which raise.

It leans on these internals of torch, and tries all of them once with each torch (`build.TRIAL`):
`torch.cuda._lazy_call`, `_dispatch_get_registrations_for_dispatch_key`, `torch.library` in the
place of existing kernels, `_construct_storage_from_data_pointer`, the plugins of
`distributed_c10d.Backend`, the operators of `c10d` with `ProcessGroup.unbox`, and
`_broadcast_coalesced`. Seen to work with torch 2.14.1.
"""

import signal
import subprocess
import sys
import tempfile
import threading

from ddp_course.tools import processes
from ddp_course.tools.errors import CourseError
from ddp_course.tools.rehearse import build, memory

__all__ = ["missing", "run"]

CANT = "time, races, a missing synchronize, nccl's asynchrony, the rounding of a GPU's kernels"


def missing():
    """Say what keeps this machine from pretending: for code that goes on without, in that case.

    The first call with each torch builds the library and tries it (some ten seconds), later ones
    look whether that is done.

    Returns
    -------
    str or None
        One line, such as "rehearse needs a C compiler, once: ..."; None if nothing is missing.
    """
    try:
        build.library()
    except CourseError as error:
        return str(error)
    return None


def run(command, gpus=2, memory_bytes=16 * 2**30):
    """Run a command that sees pretended GPUs; prints a line before and a table after it.

    Called in the main thread, it ends the command on SIGTERM, too.

    Parameters
    ----------
    command : list of str
    gpus : int
    memory_bytes : int
        Of each GPU. Whoever asks for more gets torch.OutOfMemoryError.

    Returns
    -------
    int
        The command's exit code; 128 + n if signal n ended it.

    Raises
    ------
    CourseError
        Something is missing here: a C compiler, torch's CUDA build or its headers, Linux.
    """
    library, version = build.library()
    with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
        env = build.environment(library, version, folder, gpus, memory_bytes)
        say(
            f"rehearse: {gpus} pretended GPU{'s' * (gpus > 1)} of {memory.words(memory_bytes)}: "
            "torch's own CUDA code, on this machine's memory; kernels by the CPU, nccl by gloo. "
            f"It can't show {CANT}."
        )
        code = follow(subprocess.Popen(command, env=env))
        say(memory.table(memory.rows(folder), memory_bytes))
    return code


def follow(process):
    """Wait for the command; whatever ends this function ends the command, too."""
    in_main = threading.current_thread() is threading.main_thread()
    if in_main:
        before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        code = process.wait()
        return code if code >= 0 else 128 - code
    except KeyboardInterrupt:  # the command got it, too
        processes.wait(process, 35)
        return 128 + signal.SIGINT
    finally:
        processes.end_trees([process], 35)
        if in_main:
            signal.signal(signal.SIGTERM, before)


def say(text):
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()
