"""In a process that has imported torch: make its GPUs pretended ones."""

import os
import sys

TORCH = "DDP_COURSE_REHEARSE_TORCH"  # the version that the library was built for


def start():
    """Replace nccl now, and the kernels when CUDA is first used: many processes never use it.

    Raises
    ------
    SystemExit
        With code 2, after one line: this isn't the torch that `rehearse` was started with.
    """
    import torch

    if torch.__version__ != os.environ[TORCH]:
        leave(
            f"rehearse runs in the environment of torch {os.environ[TORCH]}, and {sys.executable} "
            f"has {torch.__version__}: start it with  {sys.executable} -m ddp_course.tools.rehearse"
        )
    from ddp_course.tools.rehearse import kernels, memory, nccl

    torch.cuda._device_count_nvml = lambda: -1  # a real driver knows nothing of these GPUs
    torch.cuda._lazy_call(kernels.register)
    torch.cuda._lazy_call(memory.report_at_exit)
    nccl.replace()


def leave(line):
    """One line for the person who typed the command, instead of a traceback."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()
    raise SystemExit(2)
