"""Is the data split, are the parameters in sync, are the gradients averaged?

`watch` looks on while a training loop runs, anybody's, on every rank: it reads gradients and
parameters in hooks, notes a few numbers, and talks to the other ranks only when the block ends,
through the store in which they met. So no collective of its own can pair up with one of the loop.
"""

import functools
import itertools
import json
import math
import time
import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DistributedSampler, Subset

TOLERANCE = 0.01  # of a gradient's length: float16 hooks round, faults are larger
WAIT = timedelta(seconds=30)
CHUNK = 4 * 2**20  # the store takes 8 MiB at once
_numbers = itertools.count()


@dataclass
class Verdict:
    """An answer, and why.

    Attributes
    ----------
    answer : bool or None
        None: can't tell.
    evidence : list of str
    """

    answer: bool | None = None
    evidence: list = field(default_factory=list)

    def __str__(self):
        word = {True: "yes", False: "NO", None: "can't tell"}[self.answer]
        return "\n".join([word, *(f"    {line}" for line in self.evidence)])


@dataclass
class Report:
    """The three verdicts; filled when the block of `watch` ends.

    Attributes
    ----------
    split, in_sync, averaged : Verdict
    notes : list of str
        What is no fault by itself: seeds, a common factor of the gradients.
    """

    split: Verdict = field(default_factory=Verdict)
    in_sync: Verdict = field(default_factory=Verdict)
    averaged: Verdict = field(default_factory=Verdict)
    notes: list = field(default_factory=list)

    def __str__(self):
        lines = [
            f"data split:         {self.split}",
            f"parameters in sync: {self.in_sync}",
            f"gradients averaged: {self.averaged}",
        ]
        return "\n".join([*lines, *(f"note: {line}" for line in self.notes)])


@contextmanager
def watch(model, optimizer, loader=None, validation=None, scaler=None):
    """Watch a training loop; call it on every rank around the loop.

    Parameters
    ----------
    model : torch.nn.Module
        The DDP wrapper or what is in it.
    optimizer : torch.optim.Optimizer
    loader, validation : torch.utils.data.DataLoader, optional
        To see which samples are drawn. Without them the data is judged by what enters the model.
    scaler : torch.amp.GradScaler, optional

    Yields
    ------
    Report
        Empty until the block has ended. Costs: a dot product per gradient and a sum per
        parameter and step, memory for one vector as long as the largest parameter.
    """
    number, report = next(_numbers), Report()
    log = _Log(model, optimizer, scaler)
    log.start(loader, validation)
    try:
        yield report
    except BaseException as error:
        log.stop()
        _exchange(number, {"failed": f"the loop raised {type(error).__name__}"}, timedelta(0))
        raise
    log.stop()
    logs = _exchange(number, log.found, WAIT)
    try:
        _judge(report, logs)
    except Exception as error:  # as above
        _judge(report, [{"failed": f"the audit can't judge this loop ({error!r:.100})"}])


def _safely(method):
    """An error of the audit must not become one of the loop: it looks away, and says so."""

    @functools.wraps(method)
    def guarded(self, *args, **kwargs):
        if "failed" in self.found:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.found = {"failed": f"the audit can't follow this loop ({error!r:.100})"}

    return guarded


class _Log:
    """What one rank sees. Only numbers and names, ready for JSON."""

    def __init__(self, model, optimizer, scaler):
        self.module = model.module if isinstance(model, DistributedDataParallel) else model
        self.optimizer, self.scaler = optimizer, scaler
        self.names = {p: name for name, p in self.module.named_parameters()}
        self.local, self.hooked, self.handles, self.undo = {}, set(), [], []
        self.vector = None
        self.found = {
            "steps": [], "inputs": [], "draws": {"train": [], "validation": []}, "base": {},
            "seed": torch.initial_seed(), "names": sorted(self.names.values()),
        }  # fmt: skip

    @_safely
    def start(self, loader, validation):
        self.hook_gradients()
        self.handles += [
            self.module.register_forward_pre_hook(self.on_forward),
            self.optimizer.register_step_pre_hook(self.before_step),
            self.optimizer.register_step_post_hook(self.after_step),
        ]
        self.follow(loader, "train")
        self.follow(validation, "validation")

    # -- gradients

    def projection(self, tensor):
        """A number that is linear in the tensor: of an average it is the average."""
        tensor = tensor.to_dense() if tensor.is_sparse else tensor
        tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
        n = tensor.numel()
        if self.vector is None or len(self.vector) < n or self.vector.device != tensor.device:
            g = torch.Generator().manual_seed(20)
            size = max([n, *(p.numel() * (1 + p.is_complex()) for p in self.names)])
            self.vector = torch.randn(size, generator=g, dtype=torch.float64).to(tensor.device)
        return torch.dot(tensor.detach().double().flatten(), self.vector[:n]).item()

    def hook_gradients(self):
        for p in self.names:
            if p.requires_grad and p not in self.hooked:  # also those unfrozen meanwhile
                self.hooked.add(p)
                self.handles.append(p.register_hook(lambda g, p=p: self.on_gradient(p, g)))

    @_safely
    def on_gradient(self, p, gradient):
        """What p.grad would be after this backward if there were no other ranks."""
        total = self.projection(gradient)
        length = _length(gradient)
        if p.grad is not None:
            total += self.projection(p.grad)
            length = max(length, _length(p.grad))
        self.local[self.names[p]] = [total, length]

    @_safely
    def before_step(self, optimizer, args, kwargs):
        self.found.setdefault("before", self.fingerprints())
        given = {self.names[p]: self.projection(p.grad) for p in self.names if p.grad is not None}
        self.found["steps"].append({
            "local": self.local, "given": given,
            "lr": [float(group.get("lr", 0)) for group in optimizer.param_groups],
            "scale": self.scaler.get_scale() if self.scaler else None,
        })  # fmt: skip
        self.local = {}

    # -- parameters

    def fingerprints(self):
        return {name: _bits(p) for name, p in self.module.named_parameters()}

    @_safely
    def after_step(self, optimizer, args, kwargs):
        self.found["steps"][-1]["after"] = self.fingerprints()

    # -- data

    @_safely
    def on_forward(self, module, inputs):
        self.hook_gradients()
        if module.training and inputs and torch.is_tensor(inputs[0]) and inputs[0].dim():
            self.found["inputs"].append([_bits(sample) for sample in inputs[0].detach()])

    def follow(self, loader, kind):
        """Note the indices that the loader's sampler gives out, an entry for each epoch."""
        if loader is None or getattr(loader, "_dataset_kind", None) == 1:  # iterable: no indices
            return
        attribute = "sampler" if loader.batch_sampler is None else "batch_sampler"
        log, real, epochs = self, getattr(loader, attribute), self.found["draws"][kind]
        base, positions = _base_of(loader.dataset)
        distributed = isinstance(loader.sampler, DistributedSampler)
        self.found["base"][kind] = {
            "id": id(base), "size": len(loader.dataset), "distributed": distributed,
            "shuffles": distributed and loader.sampler.shuffle,
        }  # fmt: skip

        class Noting:
            def __iter__(self):
                epochs.append([])
                for drawn in real:
                    log.note_draw(epochs[-1], drawn, positions)
                    yield drawn

            def __len__(self):
                return len(real)

            def __getattr__(self, name):
                return getattr(real, name)

            def __setattr__(self, name, value):  # such as batch_sampler.epoch = 3
                setattr(real, name, value)

        object.__setattr__(loader, attribute, Noting())  # DataLoader forbids the plain way
        self.undo.append(lambda: object.__setattr__(loader, attribute, real))

    @_safely
    def note_draw(self, epoch, drawn, positions):
        given = drawn if isinstance(drawn, (list, tuple)) else [drawn]
        epoch += [int(i) if positions is None else int(positions[i]) for i in given]

    def stop(self):
        for handle in self.handles:
            handle.remove()
        for undo in self.undo:
            undo()
        self.finish()

    @_safely
    def finish(self):
        state = self.found["state"] = {}
        for i, values in enumerate(self.optimizer.state.values()):
            for name, value in values.items():
                if torch.is_tensor(value):
                    state[f"{i}.{name}"] = _bits(value)
        self.found["end"] = self.fingerprints()


def _length(tensor):
    tensor = tensor.detach().to_dense() if tensor.is_sparse else tensor.detach()
    return torch.linalg.vector_norm(tensor.double() if not tensor.is_complex() else tensor).item()


def _bits(tensor):
    """A fingerprint of every bit, as an int."""
    tensor = tensor.detach().contiguous()
    if not tensor.numel():
        return 0
    whole = tensor.flatten().view(torch.uint8)
    n = -(-len(whole) // 8) * 8
    padded = torch.zeros(n, dtype=torch.uint8, device=whole.device)
    padded[: len(whole)] = whole
    words = padded.view(torch.int64)
    # Odd weights, all arithmetic modulo 2**64: another word or order, another sum.
    weights = torch.arange(1, 2 * len(words), 2, device=words.device) * 0x9E3779B97F4A7C1
    return int((words * weights).sum())


def _base_of(dataset):
    """The data set under Subsets, and where our samples are in it."""
    positions = None
    while isinstance(dataset, Subset):
        inner = [int(i) for i in dataset.indices]
        positions = inner if positions is None else [inner[i] for i in positions]
        dataset = dataset.dataset
    return dataset, positions


def _exchange(number, found, wait):
    """The ranks' logs, {"failed": why} for one that does not come within the time."""
    if not (dist.is_available() and dist.is_initialized()):
        return [found]
    rank, world_size = dist.get_rank(), dist.get_world_size()
    end, logs = time.monotonic() + wait.total_seconds(), []
    try:
        store = dist.PrefixStore(f"audit {number}", dist.distributed_c10d._get_default_store())
        packed = zlib.compress(json.dumps(found).encode())
        parts = [packed[i : i + CHUNK] for i in range(0, len(packed), CHUNK)]
        for i, part in enumerate(parts):
            store.set(f"{rank} part {i}", part)
        store.set(str(rank), str(len(parts)))
    except Exception as error:
        return [{"failed": f"rank {rank} could not send its log ({error!r:.80})"}]
    for other in range(world_size):
        left = timedelta(seconds=max(0.01, end - time.monotonic()))
        try:
            store.wait([str(other)], left)
            count = int(store.get(str(other)))
            packed = b"".join(store.get(f"{other} part {i}") for i in range(count))
            logs.append(json.loads(zlib.decompress(packed)))
        except Exception:
            logs.append({"failed": f"no word from rank {other}"})
    return logs


def _judge(report, logs):
    reasons = [log["failed"] for log in logs if "failed" in log]
    if not reasons and len({json.dumps(log["names"]) for log in logs}) > 1:
        reasons = ["the ranks watched different models"]
    if not reasons and len(logs) < 2:
        reasons = ["there is one rank only"]
    if reasons:
        for verdict in (report.split, report.in_sync, report.averaged):
            verdict.evidence += dict.fromkeys(reasons)
        return
    _judge_sync(report, logs)
    _judge_gradients(report, logs)
    _judge_data(report, logs)
    if len({log["seed"] for log in logs}) == 1:
        report.notes.append("all ranks have one seed: the same dropout and augmentation on each")


def _first_difference(per_rank):
    """{name: first position at which the ranks' dicts of that position differ in it}."""
    since = {}
    for at, dicts in enumerate(zip(*per_rank)):
        for name in dict.fromkeys(n for d in dicts for n in d):
            if len({d.get(name) for d in dicts}) > 1:
                since.setdefault(name, at)
    return since


def _judge_sync(report, logs):
    verdict = report.in_sync
    steps = [len(log["steps"]) for log in logs]
    if len(set(steps)) > 1:
        verdict.answer = False
        verdict.evidence.append(f"optimizer steps by rank: {steps}")
    if not all(steps):
        verdict.evidence.append("the optimizer made no step")
        return
    states = [[log["before"], *(s["after"] for s in log["steps"] if "after" in s)] for log in logs]
    since = _first_difference(states)
    if not since and _first_difference([[log["end"]] for log in logs]):
        verdict.answer = False
        verdict.evidence.append("parameters differ at the end, though not after the last step")
    if since:
        verdict.answer = False
        first = min(since.values())
        when = "before the first step" if first == 0 else f"since step {first - 1}"
        verdict.evidence.append(f"parameters differ {when}: {_some(since, first)}")
    for what in ("lr", "scale"):
        rows = [[{what: json.dumps(s[what])} for s in log["steps"]] for log in logs]
        if since_step := _first_difference(rows):
            verdict.answer = False
            values = [log["steps"][since_step[what]][what] for log in logs]
            name = {"lr": "learning rates", "scale": "scaler scales"}[what]
            verdict.evidence.append(f"{name} differ at step {since_step[what]}: {values}")
    if different := _first_difference([[log["state"]] for log in logs]):
        verdict.answer = False
        verdict.evidence.append(f"optimizer state differs at the end: {_some(different, 0)}")
    if verdict.answer is None and min(steps):
        verdict.answer = True
        verdict.evidence.append(f"every bit equal before and after each of {steps[0]} steps")


def _some(since, first):
    names = [name for name, at in since.items() if at == first]
    more = f" and {len(names) - 3} more" if len(names) > 3 else ""
    return ", ".join(names[:3]) + more


def _judge_gradients(report, logs):
    """Each given gradient against the ranks' local ones: mean, sum, own, or none of these.

    Clipping and unscaling multiply all by one factor, so a common factor is allowed, and told.
    """
    verdict, n = report.averaged, len(logs)
    if len({len(log["steps"]) for log in logs}) > 1:
        verdict.evidence.append("ranks made unequal numbers of steps, which can't be paired")
        return
    seen, faults, factors, doubts = 0, {}, [], {}
    for step, rows in enumerate(zip(*(log["steps"] for log in logs))):
        cases, odd = _cases(rows)
        for kind, name in odd:
            (faults if "some ranks" in kind else doubts).setdefault(kind, {}).setdefault(name, step)
        factor = _common_factor(cases.values())
        for name, case in cases.items():
            if case.is_average(factor):
                continue
            kind, sure = case.what()
            (faults if sure else doubts).setdefault(kind, {}).setdefault(name, step)
        seen += len(cases)
        if cases:
            factors.append(factor * (rows[0]["scale"] or 1.0))
    ended_equal = not _first_difference([[log["end"]] for log in logs])
    for kind, since in [*faults.items(), *doubts.items()]:
        first = min(since.values())
        verdict.evidence.append(f"{kind}, since step {first}: {_some(since, first)}")
    if faults and ended_equal:
        verdict.evidence.append("and yet the parameters are equal: does step() average by itself?")
        return
    if faults or doubts or not seen:
        verdict.answer = False if faults else None
        if not seen and not faults and not doubts:
            verdict.evidence.append("local gradients were alike on all ranks: nothing to see")
        return
    summed = sum(abs(f - n) < TOLERANCE * n for f in factors)
    if summed:
        verdict.answer = False
        verdict.evidence.append(
            f"in {summed} of {len(factors)} steps they are the sum over ranks, {n} times the "
            "average (right only if the loss is divided by what all ranks have together)"
        )
        return
    odd = [f for f in factors if f > 1 + TOLERANCE]
    if odd:
        verdict.evidence.append(f"the average times {odd[0]:.3g}: who multiplied?")
        return
    verdict.answer = True
    verdict.evidence.append(f"equal to the average of the local ones, {seen} times looked at")
    if min(factors) < 1 - TOLERANCE:
        report.notes.append(
            f"gradients came to the step times {min(factors):.3g}: clipped? (A sum can hide in it)"
        )


@dataclass
class _Case:
    """One parameter's gradient at one step: projections by rank, local and as given to the step."""

    local: list
    given: list
    length: float

    @property
    def mean(self):
        return math.fsum(self.local) / len(self.local)

    def is_average(self, factor):
        near = TOLERANCE * self.length * abs(factor)
        return all(abs(g - factor * self.mean) <= near for g in self.given)

    def what(self):
        """What it is if not the average, and whether that is a fault for sure."""
        near = TOLERANCE * self.length
        if all(abs(g - x) <= near for g, x in zip(self.given, self.local)):
            return "each rank's own, never averaged", True
        if all(abs(g - self.given[0]) <= near * 1e-6 for g in self.given):
            return "not the average, but alike on all ranks (clipped each by itself?)", False
        return "neither the average nor alike on all ranks", True


def _cases(rows):
    """{name: _Case} where the ranks' local gradients differ enough to tell, and what is odd."""
    cases, odd = {}, []
    for name in dict.fromkeys(name for row in rows for name in row["given"]):
        given = [row["given"].get(name) for row in rows]
        if None in given:
            odd.append(("a gradient on some ranks only", name))
            continue
        # A rank where the parameter was not used has nothing to add.
        local = [row["local"].get(name, (0.0, 0.0)) for row in rows]
        case = _Case([x for x, _ in local], given, max(length for _, length in local))
        if not all(map(math.isfinite, [*case.local, *given, case.length])):
            odd.append(("not finite", name))
        elif max(abs(x - case.mean) for x in case.local) > 5 * TOLERANCE * case.length:
            cases[name] = case
    return cases, odd


def _common_factor(cases):
    """The factor that makes most gradients averages; 1 if it does as well as any other."""
    cases = list(cases)
    ratios = sorted(c.given[0] / c.mean for c in cases if abs(c.mean) > 0.3 * c.length)
    some = [ratios[len(ratios) * i // 8] for i in range(8)] if ratios else []
    return max([1.0, *some], key=lambda f: sum(c.is_average(f) for c in cases))


def _judge_data(report, logs):
    verdict = report.split
    train = [log["draws"]["train"] for log in logs]
    if not all(any(epochs) for epochs in train):
        _judge_inputs(verdict, logs)
        if verdict.answer is None:
            verdict.evidence.append("pass loader= to see more")
        return
    base = logs[0]["base"]["train"]
    _judge_indices(verdict, train, base)
    if verdict.answer is False and not base["distributed"]:
        # Each rank may have a part of the data for itself: do equal samples enter the model?
        seen = [{bits for batch in log["inputs"] for bits in batch} for log in logs]
        if len(set.intersection(*seen)) < len(seen[0]) / 2:
            verdict.answer = None
            verdict.evidence.append("but other samples entered the model: data cut up beforehand?")
    if any(log["draws"]["validation"] for log in logs):
        _judge_leakage(verdict, logs)
    sizes = [log["base"]["train"]["size"] for log in logs]
    if len(set(sizes)) > 1:
        verdict.evidence.append(f"sizes of the data by rank: {sizes}")


def _judge_inputs(verdict, logs):
    """Without indices: are the batches that enter the model at the same step the same ones?"""
    steps = list(zip(*(log["inputs"] for log in logs)))
    if not steps:
        verdict.evidence.append("no samples were seen on some rank")
        return
    alike = sum(len(set.intersection(*map(set, step))) > len(step[0]) / 2 for step in steps)
    own = logs[0]["inputs"]
    if len(own) > 1 and all(batch == own[0] for batch in own):
        verdict.evidence.append("the first input is the same at every step, so it tells nothing")
    elif alike > len(steps) / 2:
        verdict.answer = False
        verdict.evidence.append(f"the same samples on all ranks in {alike} of {len(steps)} steps")
    else:
        verdict.evidence.append("ranks have other samples at the same step")


def _judge_indices(verdict, train, base):
    size, epochs = base["size"], list(zip(*train))
    verdict.answer = True
    for at, epoch in enumerate(epochs):
        counts = [len(draws) for draws in epoch]
        if len(set(counts)) > 1:
            verdict.answer = False
            verdict.evidence.append(f"epoch {at}: draws by rank {counts}")
            break
        if not base["distributed"] and any(len(set(draws)) < len(draws) for draws in epoch):
            verdict.answer = None
            verdict.evidence.append("drawn with replacement, so overlap tells nothing")
            return
        every = [i for draws in epoch for i in draws]
        extra, left = len(every) - len(set(every)), size - len(set(every))
        if extra > -size % len(epoch):
            verdict.answer = False
            verdict.evidence.append(f"epoch {at}: {extra} draws more than samples drawn (overlap)")
            break
        if extra:
            verdict.evidence.append(f"epoch {at}: {extra} drawn twice, as padding")
        if left > size / 4 and at < len(epochs) - 1:
            verdict.answer = None
            verdict.evidence.append(f"epoch {at}: {left} of {size} samples were not drawn")
        if at == 0 and not extra and not left:
            verdict.evidence.append(f"each of {size} samples on one rank, once an epoch")
    again = [
        at
        for at, (a, b) in enumerate(zip(train[0], train[0][1:]))
        if min(len(a), len(b)) > 2 and all(x == y for x, y in zip(a, b))
    ]
    if again and base["shuffles"]:
        verdict.answer = False
        verdict.evidence.append(f"epoch {again[0] + 1} has the order of the one before: set_epoch?")


def _judge_leakage(verdict, logs):
    for log in logs:
        if log["base"]["train"]["id"] != log["base"]["validation"]["id"]:
            verdict.evidence.append("validation is another data set: leakage can't be seen")
            return
    seen = {
        kind: {i for log in logs for epoch in log["draws"][kind] for i in epoch}
        for kind in ("train", "validation")
    }
    if both := seen["train"] & seen["validation"]:
        verdict.answer = False
        verdict.evidence.append(f"{len(both)} samples are in training and in validation")
