"""Is the data split, are the parameters in sync, are the gradients averaged?

`watch` looks on while a training loop runs, anybody's, on every rank: it reads gradients and
parameters in hooks, notes a few numbers, and talks to the other ranks only when the block ends,
through the store in which they met. So no collective of its own can pair up with one of the loop.
"""

import itertools
import json
import math
import statistics
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.utils.data import Subset

TOLERANCE = 0.01  # of a gradient's length: float16 hooks round, faults are larger
WAIT = timedelta(seconds=30)
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
    log, report = _Log(model, optimizer, scaler), Report()
    log.follow(loader, "train")
    log.follow(validation, "validation")
    try:
        yield report
    finally:
        log.stop()
    logs, missing = _exchange(log.found)
    _judge(report, logs, missing)


class _Log:
    """What one rank sees. Only numbers and names, ready for JSON."""

    def __init__(self, model, optimizer, scaler):
        self.module = getattr(model, "module", model)
        self.optimizer, self.scaler = optimizer, scaler
        self.names = {p: name for name, p in self.module.named_parameters()}
        self.local, self.hooked, self.handles, self.undo = {}, set(), [], []
        self.vector = None
        self.found = {
            "steps": [], "inputs": [], "draws": {"train": [], "validation": []}, "base": {},
            "before": self.fingerprints(), "seed": torch.initial_seed(), "state": {},
        }  # fmt: skip
        self.hook_gradients()
        self.handles += [
            self.module.register_forward_pre_hook(self.on_forward),
            optimizer.register_step_pre_hook(self.before_step),
            optimizer.register_step_post_hook(self.after_step),
        ]

    # -- gradients

    def projection(self, tensor):
        """A number that is linear in the tensor: of an average it is the average."""
        if tensor.is_sparse:
            tensor = tensor.to_dense()
        n = tensor.numel()
        if self.vector is None or len(self.vector) < n or self.vector.device != tensor.device:
            g = torch.Generator().manual_seed(20)
            size = max([n, *(p.numel() for p in self.names)])
            self.vector = torch.randn(size, generator=g, dtype=torch.float64).to(tensor.device)
        return torch.dot(tensor.detach().double().flatten(), self.vector[:n]).item()

    def hook_gradients(self):
        for p in self.names:
            if p.requires_grad and p not in self.hooked:  # also those unfrozen meanwhile
                self.hooked.add(p)
                self.handles.append(p.register_hook(lambda g, p=p: self.on_gradient(p, g)))

    def on_gradient(self, p, gradient):
        """What p.grad would be after this backward if there were no other ranks."""
        total = self.projection(gradient)
        length = gradient.detach().double().norm().item()
        if p.grad is not None:
            total += self.projection(p.grad)
            length = max(length, p.grad.detach().double().norm().item())
        self.local[self.names[p]] = [total, length]

    def before_step(self, optimizer, args, kwargs):
        given = {self.names[p]: self.projection(p.grad) for p in self.names if p.grad is not None}
        self.found["steps"].append({
            "local": self.local, "given": given,
            "lr": [group["lr"] for group in optimizer.param_groups],
            "scale": self.scaler.get_scale() if self.scaler else None,
        })  # fmt: skip
        self.local = {}

    # -- parameters

    def fingerprints(self):
        return {name: _bits(p) for name, p in self.module.named_parameters()}

    def after_step(self, optimizer, args, kwargs):
        self.found["steps"][-1]["after"] = self.fingerprints()

    # -- data

    def on_forward(self, module, inputs):
        self.hook_gradients()
        if module.training and inputs and torch.is_tensor(inputs[0]) and inputs[0].dim():
            self.found["inputs"].append([_bits(sample) for sample in inputs[0].detach()])

    def follow(self, loader, kind):
        """Note the indices that the loader's sampler gives out, an entry for each epoch."""
        if loader is None or getattr(loader, "_dataset_kind", None) == 1:  # iterable: no indices
            return
        attribute = "sampler" if loader.batch_sampler is None else "batch_sampler"
        real, epochs = getattr(loader, attribute), self.found["draws"][kind]
        base, positions = _base_of(loader.dataset)
        self.found["base"][kind] = [id(base), len(loader.dataset)]

        class Noting:
            def __iter__(self):
                epochs.append([])
                for drawn in real:
                    given = drawn if isinstance(drawn, (list, tuple)) else [drawn]
                    epochs[-1] += [
                        int(i) if positions is None else int(positions[i]) for i in given
                    ]
                    yield drawn

            def __len__(self):
                return len(real)

            def __getattr__(self, name):
                return getattr(real, name)

        object.__setattr__(loader, attribute, Noting())  # DataLoader forbids the plain way
        self.undo.append(lambda: object.__setattr__(loader, attribute, real))

    def stop(self):
        for handle in self.handles:
            handle.remove()
        for undo in self.undo:
            undo()
        for i, state in enumerate(self.optimizer.state.values()):
            for name, value in state.items():
                self.found["state"][f"{i}.{name}"] = _bits(torch.as_tensor(value))


def _bits(tensor):
    """A fingerprint of every bit, as an int."""
    tensor = tensor.detach().contiguous()
    if not tensor.numel():
        return 0
    whole = (
        tensor.view(torch.uint8).flatten() if tensor.dim() else tensor.reshape(1).view(torch.uint8)
    )
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


def _exchange(found):
    """All ranks' logs, None for one that does not come, and the ranks that are missing."""
    if not (dist.is_available() and dist.is_initialized()):
        return [found], []
    rank, world_size = dist.get_rank(), dist.get_world_size()
    store = dist.PrefixStore(f"audit {next(_numbers)}", dist.distributed_c10d._get_default_store())
    store.set(str(rank), json.dumps(found))
    logs, missing = [], []
    for other in range(world_size):
        try:
            store.wait([str(other)], WAIT)
            logs.append(json.loads(store.get(str(other))))
        except (dist.DistStoreError, RuntimeError):
            missing.append(other)
    # Nobody leaves, and takes the store along, before all have read.
    store.set(f"{rank} has read", "")
    for other in set(range(world_size)) - set(missing):
        try:
            store.wait([f"{other} has read"], WAIT)
        except (dist.DistStoreError, RuntimeError):
            break
    return logs, missing


def _judge(report, logs, missing):
    if missing:
        for verdict in (report.split, report.in_sync, report.averaged):
            verdict.evidence.append(f"no word from rank {', '.join(map(str, missing))}")
        return
    if len(logs) < 2:
        for verdict in (report.split, report.in_sync, report.averaged):
            verdict.evidence.append("there is one rank only")
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
    states = [[log["before"], *(s["after"] for s in log["steps"] if "after" in s)] for log in logs]
    since = _first_difference(states)
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
    seen, faults, factors = 0, {}, []
    for step, rows in enumerate(zip(*(log["steps"] for log in logs))):
        cases, odd = _cases(rows)
        for kind, name in odd:
            faults.setdefault(kind, {}).setdefault(name, step)
        factor = _common_factor(cases.values())
        for name, case in cases.items():
            if not case.is_average(factor):
                own = "each rank's own, never averaged"
                kind = own if case.is_own() else "changed after the averaging, or never averaged"
                faults.setdefault(kind, {}).setdefault(name, step)
        seen += len(cases)
        factors += [factor] * bool(cases)
    for kind, since in faults.items():
        first = min(since.values())
        verdict.evidence.append(f"{kind}, since step {first}: {_some(since, first)}")
    if faults or not seen:
        verdict.answer = False if faults else None
        if not faults:
            verdict.evidence.append("local gradients were alike on all ranks: nothing to see")
        return
    usual = statistics.median(factors)
    verdict.answer = abs(usual - n) > TOLERANCE * n
    if not verdict.answer:
        verdict.evidence.append(f"they are the sum over ranks, {n} times the average")
        return
    verdict.evidence.append(f"equal to the average of the local ones, {seen} times looked at")
    if abs(usual - 1) > TOLERANCE:
        report.notes.append(f"gradients came to the step times {usual:.3g}: clipped or unscaled?")


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

    def is_own(self):
        near = TOLERANCE * self.length
        return all(abs(g - x) <= near for g, x in zip(self.given, self.local))


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
    clear = [c for c in cases if abs(c.mean) > 0.3 * c.length]
    candidates = [1.0, *(c.given[0] / c.mean for c in clear)]
    return max(candidates, key=lambda f: sum(c.is_average(f) for c in cases))


def _judge_data(report, logs):
    verdict = report.split
    train = [log["draws"]["train"] for log in logs]
    if all(any(epochs) for epochs in train):
        _judge_indices(verdict, train, logs[0]["base"]["train"][1])
        if any(log["draws"]["validation"] for log in logs):
            _judge_leakage(verdict, logs)
        return
    batches = [[bits for batch in log["inputs"] for bits in batch] for log in logs]
    if not all(batches):
        verdict.evidence.append("no samples were seen on some rank")
        return
    common = set(batches[0]).intersection(*batches[1:])
    if common:
        verdict.answer = False
        verdict.evidence.append(
            f"{len(common)} of {len(set(batches[0]))} samples of rank 0 entered the model on "
            "every other rank too"
        )
    else:
        verdict.evidence.append(
            "no sample entered the model on all ranks; pass loader= to see more"
        )


def _judge_indices(verdict, train, size):
    epochs = list(zip(*train))
    counts = {tuple(len(draws) for draws in epoch) for epoch in epochs}
    verdict.answer = True
    if any(len(set(count)) > 1 for count in counts):
        verdict.answer = False
        verdict.evidence.append(f"ranks draw unequal numbers: {sorted(counts)[0]}")
    for at, epoch in enumerate(epochs):
        every = [i for draws in epoch for i in draws]
        extra = len(every) - len(set(every))
        padding = -size % len(epoch)
        if extra > padding:
            verdict.answer = False
            verdict.evidence.append(f"epoch {at}: {extra} draws more than samples drawn (overlap)")
            break
        if extra:
            verdict.evidence.append(f"epoch {at}: {extra} samples twice, as padding")
        left = size - len(set(every))
        if left >= len(epoch):
            verdict.evidence.append(f"epoch {at}: {left} of {size} samples not drawn")
        if at == 0 and not extra and not left:
            verdict.evidence.append(f"each of {size} samples on one rank, once an epoch")
    if len(epochs) > 1 and len(epochs[0][0]) > 2 and epochs[0] == epochs[1]:
        verdict.answer = False
        verdict.evidence.append("the order of epoch 1 is that of epoch 0: set_epoch?")


def _judge_leakage(verdict, logs):
    for log in logs:
        if log["base"]["train"][0] != log["base"]["validation"][0]:
            verdict.evidence.append("validation is another data set: leakage can't be seen")
            return
    seen = {
        kind: {i for log in logs for epoch in log["draws"][kind] for i in epoch}
        for kind in ("train", "validation")
    }
    if both := seen["train"] & seen["validation"]:
        verdict.answer = False
        verdict.evidence.append(f"{len(both)} samples are in training and in validation")
