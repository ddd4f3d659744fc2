"""Stop in time when the scheduler takes a machine away: all ranks save and leave after one step.

In a training loop::

    preemption.listen()                      # where the training loop begins
    for batch in loader:
        ...                                  # one step, on every rank
        if preemption.requested():           # a signal came to this rank or to another one
            checkpoint.save(...)
            preemption.leave(step)           # exit code 75

A signal's handler only takes a note, so a rank that waits in a collective finishes it first. From
`listen` on SIGTERM doesn't end a process any more: one that never reaches `requested` again (stuck
in a CUDA call, say, when torchrun ends the rest of a failed job) is there until SIGKILL. Before
`listen` a signal ends it at once, and the newest checkpoint is the one before. One that comes while
Python shuts down, after the training, ends it with -15: torchrun restarts that for nothing.

Who sends what. "Tried" is on torch 2.4 and 2.14, one node; "documented" was not run.

- SIGTERM to torchrun (Kubernetes sends it to a container's first process, `kill` to a pid): tried.
  torchrun passes it on to its ranks, gives them 30 s, then SIGKILL, and exits with 1 itself. It
  doesn't restart them. A step and a save must fit in those 30 s; newer versions of torch read
  another number of seconds from TORCH_ELASTIC_SHUTDOWN_TIMEOUT, and Kubernetes' own limit is
  terminationGracePeriodSeconds (documented), 30 s as well if nothing is set.
- A signal to one rank: tried. All ranks exit with 75. torchrun takes that for a failure: with
  restarts left it starts the script again at once, which goes on at the step that was saved;
  with none left it exits with 1. So a scheduler that starts torchrun sees 1, and one that starts
  the ranks sees 75 (EX_TEMPFAIL: try again). 0 would mean that the training is complete.
  A script that joins by a bare init_process_group needs TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 for
  any restart: lesson 09, "Why a restart can hang".
- SIGUSR1 to torchrun: tried. It does not handle that signal and dies of it, and its ranks go on
  without it. Newer versions pass it on with --signals-to-handle SIGTERM,SIGINT,SIGHUP,SIGUSR1.
- Slurm (documented): SIGTERM comes to all processes of a step, SIGKILL KillWait seconds later;
  `--signal=B:USR1@120` comes to the batch shell alone, 120 s before the time is up. A torchrun must
  not get that SIGUSR1, so the shell translates it, and asks for the job to be queued again, since
  the exit code of torchrun can't tell this end from a failure::

      trap 'kill -TERM $!; wait; scontrol requeue "$SLURM_JOB_ID"' USR1
      srun ... torchrun ... &
      wait

  Slurm's own preemption needs no scontrol: it queues jobs with --requeue again by itself.
"""

import os
import signal
import sys
import threading

import torch
import torch.distributed as dist

from ddp_course.tools.collectives import cpu_group, get_rank, together

EXIT_CODE = 75
SIGNALS = (signal.SIGTERM, signal.SIGUSR1)
_received = []


def listen():
    """From here on SIGTERM and SIGUSR1 leave a note for `requested`; call it in the main thread."""
    for number in SIGNALS:
        signal.signal(number, lambda number, frame: _received.append(number))


def requested():
    """Whether a signal came to any rank: the same answer on all, which must all call it.

    One all-reduce of one byte, on gloo, so that no GPU is waited for.
    """
    stop = torch.tensor([bool(_received)], dtype=torch.uint8)
    if together():
        dist.all_reduce(stop, dist.ReduceOp.MAX, cpu_group())
    return bool(stop)


def leave(step):
    """End this process with exit code 75, after a line from rank 0."""
    if get_rank() == 0:
        sys.stderr.write(f"told to stop: saved after step {step}, leaves with {EXIT_CODE}\n")
    raise SystemExit(EXIT_CODE)


def deafen(worker):
    """A DataLoader's worker_init_fn: its workers obey the rank's signals only.

    torchrun signals a rank's whole process group, Slurm every process. Workers would end, and with
    them the rank, before it could save.
    """
    if hasattr(signal, "sigwaitinfo"):  # not on macOS
        signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
        threading.Thread(target=_wait_for_the_rank, daemon=True).start()


def _wait_for_the_rank():
    while signal.sigwaitinfo(SIGNALS).si_pid != os.getppid():
        pass
    os._exit(0)  # DataLoader is done with this worker
