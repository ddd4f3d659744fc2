"""Train digits, and lose nothing when a rank dies: a restarted run ends in the same bits."""

import argparse
import os
import runpy
import signal
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.process_group import process_group
from ddp_course.tools import checkpoint, preemption
from ddp_course.tools.collectives import gather
from ddp_course.tools.errors import CourseError

cells = {}
for name in ("09_pieces.py", "09_job.py"):
    cells |= runpy.run_path(str(Path(__file__).with_name(name)))
Job, wrap, digest = cells["Job"], cells["wrap"], cells["digest"]


def settings(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64, help="images per step, on all ranks")
    parser.add_argument("--noise", type=float, default=0.2, help="dropout and augmentation")
    parser.add_argument("--float32", action="store_true", help="no autocast to float16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default=results.path("09_checkpoints").with_suffix(""))
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--kill-in-save", type=int, help="kill rank 0 in this save, once")
    parser.add_argument("--kill", help="RANK:STEP, that rank is killed before that step, once")
    return parser.parse_args(argv)


def accident(args, me, job):
    """The one that the command line asks for; not again after a restart."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)):
        return
    if args.kill == f"{me.rank}:{job.step}":
        os.kill(os.getpid(), signal.SIGKILL)
    if args.kill_in_save == job.step and me.rank == 0:
        os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)  # before the renaming


def run(args, me, accident=accident, name="09_train"):
    if args.batch % me.world_size:
        raise CourseError(f"--batch {args.batch} does not divide by {me.world_size} ranks")
    job = Job(args, me.rank, me.world_size, me.device)
    ddp = wrap(job.model, me.device)
    found = checkpoint.load(args.folder, fits=checkpoint.fits_model(job.model))
    if found:
        job.restore(found.state, found.mine)  # on every rank
    first = job.step

    def after_step():
        accident(args, me, job)
        stop = preemption.requested()  # a signal to one rank stops all of them, at this step
        if stop or job.step % args.every == 0 or job.step == job.total:
            checkpoint.save(args.folder, job.step, job.state(), checkpoint.rng_state(me.device))
        if stop:
            preemption.leave(job.step)

    preemption.listen()
    job.train(ddp, after_step)
    mine = {"first": first, "last": job.step, "digest": digest(job.model, job.average)}
    results.save(name, {"ranks": gather(mine)}, me.device)
    if me.rank == 0:
        print(f"steps {first} to {job.step}, weights {mine['digest']}")


@record
def main():
    with process_group() as me:
        run(settings(), me)


if __name__ == "__main__":
    main()
