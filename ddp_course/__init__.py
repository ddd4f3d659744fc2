"""What the lessons share; ``%load_ext ddp_course`` prepares a notebook."""

import os
import sys
import sysconfig

__version__ = "0.1.0"

# IPython gives an interrupted `!command` 0.2 s and then kills it. torchrun killed
# that way leaves its ranks running; left alone, it ends them, at the latest after 30 s.
INTERRUPT_GRACE_S = 40.0


def load_ipython_extension(shell):
    """Prepare a notebook to launch ranks, and print one line about the machine.

    - a ``!command`` that fails raises, so that Run All stops there;
    - ``torchrun`` is the one installed beside this kernel's Python;
    - ``OMP_NUM_THREADS`` is the cores divided by the ranks, unless it is set;
    - an interrupted ``!torchrun`` gets the time to end its ranks;
    - figures have the course's style.

    Raises
    ------
    IPython.core.error.UsageError
        The environment variables wish for what the machine can't give, or this kernel's Python
        lacks a package that the course needs.
    """
    from IPython.core.error import UsageError

    from ddp_course import hardware
    from ddp_course.tools.errors import CourseError

    try:
        from ddp_course import plots

        plan = hardware.plan()
    except CourseError as error:
        raise UsageError(str(error)) from None
    except ModuleNotFoundError as error:  # of torch, in plan(); of matplotlib, in plots
        raise UsageError(
            f"{error.msg} in this kernel's Python, {sys.executable}: choose the kernel of the "
            "course's .venv, or type  "
            '%pip install -e "..[course]"  in a cell and restart the kernel'
        ) from None
    shell.system_raise_on_error = True
    scripts = sysconfig.get_path("scripts")
    if os.environ.get("PATH", "").split(os.pathsep)[0] != scripts:
        os.environ["PATH"] = scripts + os.pathsep + os.environ.get("PATH", "")
    os.environ.setdefault("OMP_NUM_THREADS", str(plan.threads))
    _be_patient_on_interrupt()
    plots.style()
    print(plan)


def _be_patient_on_interrupt():
    try:
        from IPython.utils._process_posix import ProcessHandler
    except ImportError:  # Windows has another handler
        return
    ProcessHandler.terminate_timeout = INTERRUPT_GRACE_S
