"""Train an image classifier in one process or in many, on one machine or on several.

    python scripts/14_train.py
    torchrun --standalone --nproc-per-node 2 scripts/14_train.py --data cifar10 --model resnet18

Interrupted? The same line again, without --fresh, goes on at the last checkpoint; or give torchrun
--max-restarts (on several nodes lesson 11 says how).
"""

import argparse
import hashlib
import math
import os
import time
from contextlib import nullcontext
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler
from tqdm import tqdm

from ddp_course import data, models, results
from ddp_course.process_group import process_group
from ddp_course.tools import checkpoint, preemption
from ddp_course.tools.collectives import all_or_none, gather
from ddp_course.tools.errors import CourseError
from ddp_course.tools.launched import world_of_one

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def at_least(least, kind=int):
    def number(text):
        if kind(text) < least:
            raise argparse.ArgumentTypeError(f"type {least} or more")
        return kind(text)

    return number


def settings(argv=None):
    p = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--data", default="digits", choices=data.NAMES, help="what to learn")
    p.add_argument("--root", default=results.ROOT / "data", help="downloads, or the folder")
    p.add_argument("--model", default="cnn", choices=("cnn", "resnet18"), help="what learns it")
    p.add_argument("--epochs", type=at_least(1), default=20, help="rounds over the training images")
    p.add_argument("--batch", type=at_least(1), default=64, help="images a step, on all ranks")
    p.add_argument("--accumulate", type=at_least(1), default=1, help="micro-batches (lesson 06)")
    p.add_argument("--lr", type=float, default=0.01, help="highest learning rate")
    p.add_argument("--warmup", type=at_least(0), default=20, help="steps to reach it (lesson 08)")
    p.add_argument("--weight-decay", type=float, default=0.01, help="AdamW's")
    p.add_argument(
        "--clip", type=at_least(1e-6, float), default=2.0, help="largest norm of the gradient"
    )
    p.add_argument("--shift", type=at_least(0), default=1, help="pixels to move an image at random")
    p.add_argument("--precision", default="auto", choices=("auto", *PRECISIONS), help="lesson 07")
    p.add_argument("--workers", type=at_least(0), default=0, help="loader processes of each rank")
    p.add_argument("--seed", type=int, default=0, help="of weights, order and shifts")
    p.add_argument("--folder", default=results.path("14_train").with_suffix(""), help="to save in")
    p.add_argument(
        "--every", type=at_least(1), default=100, help="steps between checkpoints (lesson 09)"
    )
    p.add_argument("--fresh", action="store_true", help="begin anew: delete its checkpoints")
    return p.parse_args(argv)


class Share(Sampler):
    """This rank's images of each global batch; the batches don't depend on the number of ranks."""

    def __init__(self, size, batch, me, seed):
        self.size, self.batch, self.me, self.seed = size, batch, me, seed
        self.steps = size // batch  # whole batches; other images are left over in each epoch
        self.start = 0  # the step to go on at

    def __iter__(self):
        epoch, first = divmod(self.start, self.steps)
        g = torch.Generator().manual_seed(self.seed + epoch)
        order = torch.randperm(self.size, generator=g)[: self.steps * self.batch].tolist()
        return iter(order[first * self.batch + self.me.rank :: self.me.world_size])


class Training:
    def __init__(self, args, me):
        self.args, self.me, self.cuda = args, me, me.device.type == "cuda"
        self.images = data.load(args.data, args.root)
        pieces, most = me.world_size * args.accumulate, len(self.images.train)
        if args.batch % pieces or not 0 < args.batch <= most:
            raise CourseError(
                f"--batch {args.batch} does not do: a multiple of {pieces} (ranks × --accumulate), "
                f"at most {most} (training images)"
            )
        self.sampler = Share(most, args.batch, me, args.seed)
        self.total = args.epochs * self.sampler.steps
        self.micro_batch = args.batch // pieces  # of this rank
        torch.manual_seed(args.seed)
        shape, classes = self.images.shape, self.images.classes
        cnn = args.model == "cnn"
        model = models.SmallCNN(shape, classes) if cnn else models.resnet18_small(shape[0], classes)
        if self.cuda and me.world_size > 1:  # on the CPU BatchNorm sees its own rank's images only
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        self.model = model.to(me.device)
        bf16 = self.cuda and torch.cuda.is_bf16_supported(including_emulation=False)
        auto = "bf16" if bf16 else "fp16" if self.cuda else "fp32"
        self.precision = auto if args.precision == "auto" else args.precision
        self.scaler = torch.amp.GradScaler(me.device.type, enabled=self.precision == "fp16")
        weights = self.model.parameters()
        self.optimizer = torch.optim.AdamW(weights, args.lr, weight_decay=args.weight_decay)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)
        self.step = 0

    def loader(self, images, size, sampler):
        own = torch.Generator()  # each iterator draws a seed: not from the global generator
        more = {"num_workers": self.args.workers, "worker_init_fn": preemption.deafen}
        more |= {"pin_memory": self.cuda, "generator": own}
        return DataLoader(images, size, sampler=sampler, **more)

    def rate(self, step):
        """The factor on the learning rate: warm-up, then half a cosine."""
        cosine = 0.5 * (1 + math.cos(math.pi * step / self.total))
        return min(1, (step + 1) / (self.args.warmup + 1)) * cosine

    def autocast(self):
        dtype = PRECISIONS[self.precision]
        return torch.amp.autocast(self.me.device.type, dtype, enabled=dtype is not None)

    def shifted(self, pixels, micro):
        """Each image moved a little. How far depends on seed, step and place in the global batch:
        the same on any number of ranks, and no generator's state to keep in a checkpoint."""
        by, (n, _, h, w) = self.args.shift, pixels.shape
        g = torch.Generator().manual_seed(1_000_003 * (self.args.seed + 1) + self.step)
        moves = torch.randint(0, 2 * by + 1, (self.args.batch, 2), generator=g).tolist()
        mine = moves[self.me.rank :: self.me.world_size][micro * n :]
        wide = F.pad(pixels, [by] * 4)
        return torch.stack([x[:, i : i + h, j : j + w] for x, (i, j) in zip(wide, mine)])

    def one_step(self, ddp, batches):
        """One step of the optimizer; this rank's mean loss and the norm of the mean gradient."""
        self.optimizer.zero_grad()
        k, total = self.args.accumulate, 0.0
        for i in range(k):
            pixels, labels = next(batches)
            pixels = self.shifted(pixels.to(self.me.device, non_blocking=True), i)
            labels = labels.to(self.me.device, non_blocking=True)
            with nullcontext() if i == k - 1 else ddp.no_sync():
                with self.autocast():
                    loss = F.cross_entropy(ddp(pixels).float(), labels) / k
                self.scaler.scale(loss).backward()
            total += loss.detach()
        self.scaler.unscale_(self.optimizer)  # clip what will be applied
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), self.args.clip)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.step += 1
        return total, norm

    @torch.no_grad()
    def evaluate(self):
        """Accuracy and loss on the test images: each counts once, on whichever rank."""
        for buffer in self.model.buffers():  # rank 0's are in the checkpoint: judge that model
            dist.broadcast(buffer, 0)
        self.model.eval()
        sums = torch.zeros(3, dtype=torch.float64, device=self.me.device)
        mine = range(self.me.rank, len(self.images.test), self.me.world_size)
        for pixels, labels in self.loader(self.images.test, 256, mine):
            labels = labels.to(self.me.device)
            with self.autocast():
                out = self.model(pixels.to(self.me.device)).float()
            sums[0] += (out.argmax(1) == labels).sum()  # no .item(): a GPU would be waited for
            sums[1] += F.cross_entropy(out, labels, reduction="sum")
            sums[2] += len(labels)
        self.model.train()
        dist.all_reduce(sums)
        return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()

    PARTS = ("model", "optimizer", "schedule", "scaler")

    def save(self):
        state = {name: getattr(self, name).state_dict() for name in self.PARTS}
        state["settings"] = self.settings()
        checkpoint.save(self.args.folder, self.step, state)

    def settings(self):
        """What must be the same when training goes on. Ranks and --accumulate may change."""
        names = ["data", "model", "epochs", "batch", "lr", "warmup", "weight_decay"]
        names += ["clip", "shift", "seed"]
        options = {f"--{name.replace('_', '-')}": getattr(self.args, name) for name in names}
        return options | {"--precision": self.precision, "images": len(self.images.train)}

    def make_folder(self):
        folder, restarts = Path(self.args.folder), os.environ.get("TORCHELASTIC_MAX_RESTARTS", "0")
        if self.args.fresh and restarts != "0" and os.environ["GROUP_WORLD_SIZE"] != "1":
            raise CourseError(  # each node counts its own restarts: one may think it is the first
                "--fresh with restarts on several nodes could delete this job's own checkpoints: "
                "leave it out and name a new --folder"
            )
        try:
            (folder / "events").mkdir(parents=True, exist_ok=True)
            if self.args.fresh and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
                old = [*folder.glob(f"step-{'?' * 9}-{'?' * 16}.pt"), *folder.glob("events/*")]
                for path in old:
                    path.unlink(missing_ok=True)  # another node may be faster
        except OSError as error:
            raise CourseError(f"--folder {folder}: {error.strerror}; name another") from None

    def resume(self):
        """Go on where the newest checkpoint is, if there is one: on every rank."""
        all_or_none(self.make_folder, first_of_node=True)
        found = checkpoint.load(self.args.folder)
        if not found:
            return
        was = found.state.get("settings", {})
        for name, value in self.settings().items():
            if was.get(name) != value:
                raise CourseError(
                    f"the checkpoint in {self.args.folder} has {name} {was.get(name)}, not {value}:"
                    " type that, or name another --folder, or --fresh to begin anew"
                )
        for name in self.PARTS:
            getattr(self, name).load_state_dict(found.state[name])
        self.step = found.step


class Log:
    """What rank 0 shows: a bar, TensorBoard's events, lines; the other ranks are silent."""

    def __init__(self, job):
        self.on = job.me.rank == 0
        quiet = None if self.on else True  # None: no bar where the output goes to a file
        self.bar = tqdm(total=job.total, initial=job.step, disable=quiet, unit="step")
        if self.on:
            from torch.utils.tensorboard import SummaryWriter

            # Steps that a killed run wrote and this one makes again are dropped from the curves.
            self.events = SummaryWriter(Path(job.args.folder, "events"), purge_step=job.step + 1)

    def curves(self, step, **points):
        for name, value in points.items() if self.on else ():
            self.events.add_scalar(name.replace("_", "/", 1), float(value), step)

    def say(self, text):
        if self.on:
            tqdm.write(text)

    def close(self):
        self.bar.close()
        if self.on:
            self.events.close()


def train(args, me):
    job = Training(args, me)
    ddp = DDP(job.model)
    job.model.eval()  # one backward for nothing: after it DDP lays out its buckets (lesson 09)
    ddp(torch.zeros(1, *job.images.shape, device=me.device)).sum().backward()
    job.model.train()
    job.resume()
    log, first, scores, speed = Log(job), job.step, None, None
    if first:
        log.say(f"goes on after step {first} of {job.total}")
    steps = job.sampler.steps
    preemption.listen()
    while job.step < job.total:
        began, losses, job.sampler.start = time.perf_counter(), [], job.step
        batches = iter(job.loader(job.images.train, job.micro_batch, job.sampler))
        for _ in range(job.step % steps, steps):  # what is left of this epoch
            rate = job.schedule.get_last_lr()[0]
            loss, norm = job.one_step(ddp, batches)
            losses.append(loss)
            log.bar.update()
            if job.step % 10 == 0:
                log.curves(job.step, train_rate=rate, train_gradient=norm)
            stop = preemption.requested()  # a signal to one rank stops all of them, at this step
            if stop or job.step % args.every == 0 or job.step == job.total:
                job.save()
            if stop:
                log.close()
                preemption.leave(job.step)
        loss = torch.stack(losses).mean() / me.world_size
        dist.all_reduce(loss)
        loss = loss.item()  # a GPU has done its work only now: so the clock stops after it
        speed = len(losses) * args.batch / (time.perf_counter() - began)
        scores = job.evaluate()
        found = {"train_loss": loss, "test_accuracy": scores[0], "test_loss": scores[1]}
        log.curves(job.step, speed_images=speed, **found)
        text = f"epoch {job.step // steps}: loss {loss:.4f}, test accuracy {scores[0]:.4f}"
        log.say(f"{text}, {speed:.0f} images/s")
    report(job, log, first, scores or job.evaluate(), speed)


def report(job, log, first, scores, speed):
    weights = [p.detach().cpu().contiguous() for p in job.model.parameters()]
    digest = hashlib.sha256(b"".join(bytes(p.numpy()) for p in weights)).hexdigest()[:16]
    log.say(f"steps {first} to {job.step} on {job.me.world_size} ranks in {job.precision}")
    log.say(f"accuracy {scores[0]:.4f} on {len(job.images.test)} test images, weights {digest}")
    log.close()
    found = {"first": first, "steps": job.step, "accuracy": scores[0], "loss": scores[1]}
    found |= {"images_per_s": speed, "precision": job.precision, "digests": gather(digest)}
    results.save("14_train", found, job.me.device)


def alone():
    """Started without torchrun: a group of one, so that nothing else needs a second way."""
    if "RANK" not in os.environ:
        one = {"RANK": 0, "LOCAL_RANK": 0, "WORLD_SIZE": 1, "LOCAL_WORLD_SIZE": 1}
        os.environ.update({name: str(n) for name, n in one.items()})
        os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="0")


@record
def main():
    args = settings()
    alone()
    with process_group(timeout=timedelta(minutes=10)) as me:
        if words := world_of_one(me.world_size):
            raise CourseError(words)
        train(args, me)


if __name__ == "__main__":
    main()
