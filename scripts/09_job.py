"""All that changes while digits are trained; state() and restore() mirror each other."""

import runpy
from pathlib import Path

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from torch.utils.data import DataLoader

from ddp_course import data
from ddp_course.tools import checkpoint
from ddp_course.tools.errors import CourseError

Sampler = runpy.run_path(str(Path(__file__).with_name("09_pieces.py")))["ResumableSampler"]


class Job:
    PARTS = ("model", "average", "optimizer", "schedule", "scaler")

    def __init__(self, args, rank, world_size, device):
        torch.manual_seed(args.seed)
        self.args, self.rank, self.device, self.step = args, rank, device, 0
        self.settings = {name: getattr(args, name) for name in ("epochs", "batch", "noise", "seed")}
        images = data.load("digits").train
        self.sampler = Sampler(len(images), rank, world_size, args.seed)
        own = torch.Generator()  # an iterator draws from it, in each epoch *and* each resume
        batch = args.batch // world_size
        self.loader = DataLoader(images, batch, sampler=self.sampler, generator=own)
        hidden = [nn.Linear(64, 128), nn.ReLU(), nn.Dropout(args.noise)]
        self.model = nn.Sequential(nn.Flatten(), *hidden, nn.Linear(128, 10)).to(device)
        self.average = AveragedModel(self.model, multi_avg_fn=get_ema_multi_avg_fn(0.98))
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9)
        self.total = args.epochs * -(-len(images) // args.batch)
        self.schedule = torch.optim.lr_scheduler.CosineAnnealingLR(self.optimizer, self.total)
        # Grows every 5 steps, not 2,000, so that this short training sees it move.
        self.scaler = torch.amp.GradScaler(device.type, init_scale=2.0**14, growth_interval=5)
        torch.manual_seed(args.seed + 1000 + rank)  # from here on: noise, different on each rank

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
        self.loss = F.cross_entropy(out.float(), labels)
        self.optimizer.zero_grad()
        self.scaler.scale(self.loss).backward()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.schedule.step()
        self.average.update_parameters(self.model)

    def state(self):  # what is equal on all ranks
        state = {name: getattr(self, name).state_dict() for name in self.PARTS}
        state["position"] = {"epoch": self.sampler.epoch, "drawn": self.sampler.drawn}
        return state | {"step": self.step, "settings": self.settings}

    def restore(self, state, own=None):  # own: this rank's generators
        if state.get("settings", self.settings) != self.settings:
            raise CourseError(f"the checkpoint is of {state['settings']}: type these, or --folder")
        for name in self.PARTS:
            if name in state:
                getattr(self, name).load_state_dict(state[name])
        vars(self.sampler).update(state.get("position", {}))
        self.step = state.get("step", 0)
        if own is not None:
            checkpoint.set_rng_state(own, self.device)
        else:  # saved by other ranks: new noise, and not that of the first steps again
            torch.manual_seed(self.args.seed + 1000 * (self.step + 1) + self.rank)
