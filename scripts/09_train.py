"""Train digits, and lose nothing when a rank dies: a restarted run ends in the same bits."""

import argparse
import hashlib
import os
import signal

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader, Sampler

from ddp_course import data, results
from ddp_course.process_group import process_group
from ddp_course.tools import checkpoint, preemption
from ddp_course.tools.collectives import gather
from ddp_course.tools.errors import CourseError


def settings(argv=None):
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=4)
    parser.add_argument("--batch", type=int, default=64, help="images per step, on all ranks")
    parser.add_argument("--noise", type=float, default=0.2, help="dropout and augmentation")
    parser.add_argument("--float32", action="store_true", help="no autocast to float16")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--folder", default=results.path("09_checkpoints").with_suffix(""))
    parser.add_argument("--every", type=int, default=10, help="steps between checkpoints")
    parser.add_argument("--kill", help="RANK:STEP, that rank is killed before that step, once")
    parser.add_argument("--kill-in-save", type=int, help="kill rank 0 in this save, once")
    return parser.parse_args(argv)


class ResumableSampler(Sampler):
    """DistributedSampler, but an epoch can start after the `drawn` samples that are done."""

    def __init__(self, size, rank, world_size, seed):
        self.size, self.rank, self.world_size, self.seed = size, rank, world_size, seed
        self.epoch = self.drawn = 0

    def __iter__(self):
        g = torch.Generator().manual_seed(self.seed + self.epoch)
        order = torch.randperm(self.size, generator=g).tolist()
        order += order[: -len(order) % self.world_size]  # padding, before the cut: lesson 04
        return iter(order[self.drawn :][self.rank :: self.world_size])


class Job:
    """All that changes while we train. state() and restore() mirror each other."""

    PARTS = ("model", "average", "optimizer", "schedule", "scaler")

    def __init__(self, args, rank, world_size, device):
        if args.batch % world_size:
            raise CourseError(f"--batch {args.batch} does not divide by {world_size} ranks")
        torch.manual_seed(args.seed)
        self.args, self.rank, self.device = args, rank, device
        self.images = data.load("digits")
        self.sampler = ResumableSampler(len(self.images.train), rank, world_size, args.seed)
        own = torch.Generator()  # an iterator draws from it, in each epoch *and* each resume
        self.loader = DataLoader(
            self.images.train, args.batch // world_size, sampler=self.sampler, generator=own
        )
        hidden = [nn.Linear(64, 128), nn.ReLU(), nn.Dropout(args.noise)]
        self.model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(128, 10)).to(device)
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.total = args.epochs * -(-len(self.images.train) // args.batch)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, self.total)
        # Grows every 5 steps, not 2,000, so that this short training sees it move.
        self.scaler = torch.amp.GradScaler(device.type, init_scale=2.0**14, growth_interval=5)
        self.step = 0
        torch.manual_seed(args.seed + 1000 + rank)  # from here on: noise, different on each rank

    def state(self):
        """What is equal on all ranks."""
        state = {name: getattr(self, name).state_dict() for name in self.PARTS}
        state["position"] = {"epoch": self.sampler.epoch, "drawn": self.sampler.drawn}
        return state | {"step": self.step, "settings": self.settings()}

    def settings(self):
        return {name: getattr(self.args, name) for name in ("epochs", "batch", "noise", "seed")}

    def restore(self, state, own=None):
        if state.get("settings", self.settings()) != self.settings():
            raise CourseError(f"the checkpoint is of {state['settings']}: type these, or --folder")
        for name in self.PARTS:
            if name in state:
                getattr(self, name).load_state_dict(state[name])
        vars(self.sampler).update(state.get("position", {}))
        self.step = state.get("step", 0)
        if own is not None:
            checkpoint.set_rng_state(own, self.device)
        else:  # saved by another number of ranks: new noise, and not that of the first steps again
            torch.manual_seed(self.args.seed + 1000 * (self.step + 1) + self.rank)

    def train(self, ddp, after_step=lambda: None, until=None):
        while self.sampler.epoch < self.args.epochs:
            for pixels, labels in self.loader:
                if self.step == until:
                    return
                self.one_step(ddp, pixels.to(self.device), labels.to(self.device))
                self.sampler.drawn += self.args.batch
                self.step += 1
                after_step()
            self.sampler.epoch, self.sampler.drawn = self.sampler.epoch + 1, 0

    def one_step(self, ddp, pixels, labels):
        pixels = pixels + self.args.noise * torch.randn_like(pixels)
        with torch.amp.autocast(self.device.type, torch.float16, enabled=not self.args.float32):
            out = ddp(pixels)
        loss = F.cross_entropy(out.float(), labels)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.average.update_parameters(self.model)

    def digest(self):
        """A fingerprint of every bit of the weights and their average."""
        both = [*self.model.parameters(), *self.average.parameters()]
        return hashlib.sha256(b"".join(p.detach().cpu().numpy() for p in both)).hexdigest()[:16]


def wrap(job, device):
    """DDP, past its first backward: it then lays its buckets out anew, and from three ranks on
    another layout sums in another order. A resumed run would make one step in the first one."""
    ddp = DDP(job.model)
    job.model.eval()  # no dropout, so no random number is drawn
    ddp(torch.zeros(2, 1, 8, 8, device=device)).sum().backward()
    job.model.train()
    job.optimizer.zero_grad()
    return ddp


def planted(args, me, job):
    """The accident that the command line asks for; not again after a restart."""
    if int(os.environ.get("TORCHELASTIC_RESTART_COUNT", 0)):
        return
    if args.kill and args.kill == f"{me.rank}:{job.step}":
        os.kill(os.getpid(), signal.SIGKILL)
    if args.kill_in_save == job.step and me.rank == 0:
        os.fsync = lambda handle: os.kill(os.getpid(), signal.SIGKILL)  # before the renaming


def run(args, me, accident=planted, name="09_train"):
    job = Job(args, me.rank, me.world_size, me.device)
    ddp = wrap(job, me.device)
    found = checkpoint.load(args.folder, fits=checkpoint.fits_model(job.model))
    if found:
        job.restore(found.state, found.mine)  # on every rank
        if me.rank == 0:
            print(f"resumed at step {found.step}, epoch {job.sampler.epoch}")
    first = job.step

    def after_step():
        accident(args, me, job)
        stop = preemption.requested()  # a signal to one rank stops all of them, at this step
        if stop or job.step % args.every == 0 or job.step == job.total:
            own = checkpoint.rng_state(me.device)
            checkpoint.save(args.folder, job.step, job.state(), own)
        if stop:
            preemption.leave(job.step)

    preemption.listen()
    job.train(ddp, after_step)
    if me.rank == 0:
        print(f"steps {first} to {job.step}, weights {job.digest()}")
    mine = {"first": first, "last": job.step, "digest": job.digest()}
    results.save(name, {"ranks": gather(mine)}, me.device)


@record
def main():
    args = settings()
    with process_group() as me:
        run(args, me)


if __name__ == "__main__":
    main()
