"""Train an image classifier in one process or in many, on one machine or on several.

    python scripts/14_train.py
    torchrun --standalone --nproc-per-node 2 scripts/14_train.py --data cifar10 --model resnet18

Interrupted? Type the same line again, or give torchrun --max-restarts: it goes on where it was.
"""

import argparse
import hashlib
import math
import os
import time
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, Sampler
from tqdm import tqdm

from ddp_course import checkpoint, data, models, results
from ddp_course.hardware import CourseError
from ddp_course.process_group import everywhere, process_group

PRECISIONS = {"fp32": None, "bf16": torch.bfloat16, "fp16": torch.float16}


def settings(argv=None):
    p = argparse.ArgumentParser(formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    p.add_argument("--data", default="digits", choices=data.NAMES, help="what to learn")
    p.add_argument("--root", default=results.ROOT / "data", help="downloads, or the folder")
    p.add_argument("--model", default="cnn", choices=("cnn", "resnet18"), help="what learns it")
    p.add_argument("--epochs", type=int, default=20, help="rounds over the training images")
    p.add_argument("--batch", type=int, default=64, help="images a step, all ranks together")
    p.add_argument("--accumulate", type=int, default=1, help="micro-batches a step (lesson 06)")
    p.add_argument("--lr", type=float, default=0.01, help="highest learning rate")
    p.add_argument("--warmup", type=int, default=20, help="steps until it is reached (lesson 08)")
    p.add_argument("--weight-decay", type=float, default=0.01, help="AdamW's")
    p.add_argument("--clip", type=float, default=2.0, help="largest norm of the gradient")
    p.add_argument("--shift", type=int, default=1, help="pixels to move an image at random")
    p.add_argument("--precision", default="auto", choices=("auto", *PRECISIONS), help="lesson 07")
    p.add_argument("--workers", type=int, default=0, help="loader processes of each rank")
    p.add_argument("--seed", type=int, default=0, help="of weights, order and shifts")
    p.add_argument("--folder", default=results.path("14_train").with_suffix(""), help="to save in")
    p.add_argument("--every", type=int, default=100, help="steps between checkpoints (lesson 09)")
    p.add_argument("--fresh", action="store_true", help="delete its checkpoints and events first")
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
        torch.manual_seed(args.seed)
        shape, classes = self.images.shape, self.images.classes
        cnn = args.model == "cnn"
        model = models.SmallCNN(shape, classes) if cnn else models.resnet18_small(shape[0], classes)
        if self.cuda and me.world_size > 1:  # on the CPU BatchNorm sees its own rank's images only
            model = nn.SyncBatchNorm.convert_sync_batchnorm(model)
        self.model = model.to(me.device)
        auto = "fp32" if not self.cuda else "bf16" if torch.cuda.is_bf16_supported() else "fp16"
        self.precision = auto if args.precision == "auto" else args.precision
        self.scaler = torch.amp.GradScaler(me.device.type, enabled=self.precision == "fp16")
        weights = self.model.parameters()
        self.optimizer = torch.optim.AdamW(weights, args.lr, weight_decay=args.weight_decay)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)
        self.step = 0

    def loader(self, images, size, sampler):
        own = torch.Generator()  # each iterator draws a seed: not from the global generator
        more = {"num_workers": self.args.workers, "pin_memory": self.cuda, "generator": own}
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
            pixels, labels = self.shifted(pixels, i).to(self.me.device), labels.to(self.me.device)
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
            right = (out.argmax(1) == labels).sum().item()
            loss = F.cross_entropy(out, labels, reduction="sum").item()
            sums += torch.tensor([right, loss, len(labels)], device=self.me.device)
        self.model.train()
        dist.all_reduce(sums)
        return (sums[0] / sums[2]).item(), (sums[1] / sums[2]).item()

    PARTS = ("model", "optimizer", "schedule", "scaler")

    def save(self):
        keep = ("data", "model", "epochs", "batch", "lr", "warmup", "seed", "shift")
        state = {name: getattr(self, name).state_dict() for name in self.PARTS}
        state["settings"] = {name: getattr(self.args, name) for name in keep}
        checkpoint.save(self.args.folder, self.step, state)

    def clear(self):
        for pattern in ("step-*.pt", "events.out.tfevents.*"):
            for path in Path(self.args.folder).glob(pattern):
                path.unlink(missing_ok=True)  # another node may be faster

    def resume(self):
        """Go on where the newest checkpoint is, if there is one: on every rank."""
        if self.args.fresh and os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") == "0":
            everywhere(self.clear, first_of_node=True)
        found = checkpoint.load(self.args.folder, fits=checkpoint.fits_model(self.model))
        for name, value in (found.state["settings"] if found else {}).items():
            if value != getattr(self.args, name):
                raise CourseError(
                    f"the checkpoint in {self.args.folder} was trained with --{name} {value}: "
                    "type that, or name another --folder, or --fresh to begin anew"
                )
        if found:
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
            self.events = SummaryWriter(job.args.folder, purge_step=job.step + 1)

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
    ddp = DDP(job.model, device_ids=[me.device] if job.cuda else None)
    job.model.eval()  # one backward for nothing: after it DDP lays out its buckets (lesson 09)
    ddp(torch.zeros(1, *job.images.shape, device=me.device)).sum().backward()
    job.model.train()
    job.resume()
    log, first, busy, scores, speed = Log(job), job.step, 0.0, None, None
    if first:
        log.say(f"goes on after step {first} of {job.total}")
    size, steps = args.batch // me.world_size // args.accumulate, job.sampler.steps
    while job.step < job.total:
        began, losses, job.sampler.start = time.perf_counter(), [], job.step
        batches = iter(job.loader(job.images.train, size, job.sampler))
        for _ in range(job.step % steps, steps):  # what is left of this epoch
            rate = job.schedule.get_last_lr()[0]
            loss, norm = job.one_step(ddp, batches)
            losses.append(loss)
            log.bar.update()
            if job.step % 10 == 0:
                log.curves(job.step, train_rate=rate, train_gradient=norm)
            if job.step % args.every == 0 or job.step == job.total:
                job.save()
        busy += time.perf_counter() - began
        loss = torch.stack(losses).mean() / me.world_size
        dist.all_reduce(loss)
        speed, scores = (job.step - first) * args.batch / busy, job.evaluate()
        epoch, names = job.step // steps, ("test_accuracy", "test_loss")
        log.curves(job.step, train_loss=loss, **dict(zip(names, scores)), speed_images=speed)
        text = f"epoch {epoch}: loss {loss:.4f}, test accuracy {scores[0]:.4f}"
        log.say(f"{text}, {speed:.0f} images/s")
    report(job, log, first, scores or job.evaluate(), speed)


def report(job, log, first, scores, speed):
    weights = [p.detach().cpu().contiguous() for p in job.model.parameters()]
    digest = hashlib.sha256(b"".join(bytes(p.numpy()) for p in weights)).hexdigest()[:16]
    log.say(f"steps {first} to {job.step} on {job.me.world_size} ranks in {job.precision}")
    log.say(f"accuracy {scores[0]:.4f} on {len(job.images.test)} test images, weights {digest}")
    log.close()
    found = {"first": first, "steps": job.step, "accuracy": scores[0], "loss": scores[1]}
    found |= {"images_per_s": speed, "precision": job.precision, "digests": results.gather(digest)}
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
    with process_group() as me:
        train(args, me)


if __name__ == "__main__":
    main()
