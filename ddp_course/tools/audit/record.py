"""What one rank sees: gradients and parameters at each step, through hooks."""

import functools
import gc
import sys

import torch
from torch.nn.modules.batchnorm import _NormBase
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

from ddp_course.tools.audit import draws
from ddp_course.tools.audit.fingerprint import Projector, bits, flat, named_bits, to_list
from ddp_course.tools.audit.log import Backward, Gradient, Log, Step

BACKWARDS = 64  # noted of those between two steps


def safely(method):
    """An error of the audit must not become one of the loop: it looks away, and says so."""

    @functools.wraps(method)
    def guarded(self, *args, **kwargs):
        if self.log.failed:
            return
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.log.failed = f"the audit can't follow this loop ({error!r:.100})"

    return guarded


class Recorder:
    """Watches one model and its optimizer from `start` to `stop`.

    Attributes
    ----------
    log : Log
    ddp : DistributedDataParallel or None
        The wrapper, where the model has one.
    """

    def __init__(self, model, optimizer, scaler, rank):
        self.model, self.optimizer, self.scaler, self.ddp = model, optimizer, scaler, None
        self.log = Log(rank=rank, torch=torch.__version__, seed=torch.initial_seed())
        self.names, self.held, self.hooked, self.project = {}, set(), set(), Projector()
        self.handles, self.undo = [], []
        self.local, self.reduced = {}, {}  # this step's, by parameter: (projection, length); one
        self.begun = self.queued = False  # in a backward, and its end is awaited
        self.forwarded = False  # a training forward, and no backward since
        self.backwards, self.before = [], "step"  # Backward with tensors; what came last
        self.moved = {}  # parameter that had a gradient: was it ever other than 0?
        self.settings = None

    @safely
    def start(self, loader, validation):
        module, compiled, sharded = self.model, False, ("to_local", "_fsdp_wrapped_module")
        while True:
            compiled = compiled or getattr(module, "_compiled_call_impl", None) is not None
            if isinstance(module, DistributedDataParallel):
                self.ddp, module = module, module.module
            elif hasattr(module, "_orig_mod"):
                compiled, module = True, module._orig_mod
            else:
                break
        self.module = module
        self.names = {p: name for name, p in module.named_parameters()}
        if any(hasattr(x, name) for x in (*self.names, *module.modules()) for name in sharded):
            raise NotImplementedError("sharded parameters, on purpose not alike on all ranks")
        self.log.names = sorted(self.names.values())
        self.log.optimizer = type(self.optimizer).__name__
        self.scheduled = {id(s): s.last_epoch for s in self.schedulers()}
        self.look_for_parameters()
        if not compiled:  # a compiled module has no place for a new hook
            hook = module.register_forward_pre_hook(self.on_forward, with_kwargs=True)
            self.handles.append(hook)
        self.handles += [
            self.optimizer.register_step_pre_hook(self.before_step),
            self.optimizer.register_step_post_hook(self.after_step),
            register_optimizer_step_post_hook(self.after_any_step),
        ]
        self.log.given = draws.follow(self, loader, "train")
        draws.follow(self, validation, "validation")

    def look_for_parameters(self):
        """Also those that only the optimizer holds, and those that were unfrozen meanwhile."""
        held = [p for group in self.optimizer.param_groups for p in group["params"]]
        self.held = set(held)
        for at, p in enumerate(held):
            if p not in self.names:
                shape = " × ".join(map(str, p.shape)) or "one number"
                self.names[p] = f"parameter {at} of the optimizer ({shape}, not in this model)"
        for p in self.names:
            if p.requires_grad and p not in self.hooked:
                self.hooked.add(p)
                self.handles.append(p.register_post_accumulate_grad_hook(self.on_gradient))
                self.project.make_room(p.numel() * (1 + p.is_complex()))

    # -- gradients

    def measure(self, p):
        return self.project(p.grad), torch.linalg.vector_norm(flat(p.grad))

    def with_gradient(self):
        return [p for p in self.names if p.grad is not None]

    @safely
    def on_gradient(self, p):
        """p.grad as this backward leaves it if there are no other ranks: DDP reduces it next."""
        if not self.begun:  # what this backward doesn't touch stays as it is
            self.begun, self.forwarded = True, False
            self.local = {q: self.measure(q) for q in self.with_gradient() if q is not p}
            left = [length for q, (_, length) in self.local.items() if q in self.held]
            self.backwards.append([left, self.before, []])
        self.local[p] = self.measure(p)
        if self.ddp and not p.grad.is_sparse and p.grad.stride() != p.stride():
            self.log.strides[self.names[p]] = [list(p.grad.stride()), list(p.stride())]
        if not self.queued:
            self.queued = True
            queue = torch.autograd.Variable._execution_engine.queue_callback
            # DDP queues its own end of backward later than this, hence a callback's callback.
            queue(lambda: queue(self.after_backward))

    @safely
    def after_backward(self):
        """p.grad as DDP has reduced it, before anybody can clip it."""
        self.queued, self.before = False, ""
        self.reduced = {p: self.project(p.grad) for p in self.with_gradient()}
        self.backwards[-1][2] = list(self.reduced.values())

    @safely
    def before_step(self, optimizer, args, kwargs):
        self.closure = any(map(callable, [*args[1:], *kwargs.values()]))
        found_inf = getattr(optimizer, "found_inf", None)  # a fused one skips the step itself
        self.skipped = found_inf is not None and bool(found_inf)
        if self.skipped:
            self.forget()
            return
        self.look_for_parameters()
        self.log.states.append(self.fingerprint())
        self.log.buffers.append(named_bits(self.module.named_buffers()))
        if not self.closure:  # else backward is yet to come
            self.note_step()

    @safely
    def after_step(self, optimizer, args, kwargs):
        if self.closure and not self.skipped:
            self.note_step()

    @safely
    def after_any_step(self, optimizer, args, kwargs):
        if optimizer is not self.optimizer and self.before == "":
            self.begun, self.before = False, "another"

    def note_step(self):
        groups, rows = self.optimizer.param_groups, {}
        for p in self.with_gradient():
            if p in self.held:  # another optimizer's may be reduced later
                given = self.project(p.grad)
                zero = torch.zeros_like(given)
                # Without a local one DDP may have brought that of other ranks.
                local = self.local.get(p, (zero, zero))
                rows[p] = [*local, self.reduced.get(p, given), given]
        numbers = to_list([x for row in rows.values() for x in row])
        gradients = {
            self.names[p]: Gradient(*numbers[4 * i : 4 * i + 4])
            if p in self.local or p in self.reduced
            else Gradient(None, *numbers[4 * i + 1 : 4 * i + 4])
            for i, p in enumerate(rows)
        }
        for p, gradient in zip(rows, gradients.values()):
            self.moved[p] = self.moved.get(p) or bool(gradient.given or gradient.length)
        settings = _settings(groups)
        same, self.settings = settings == self.settings, settings
        self.log.steps.append(
            Step(
                gradients,
                None if same else settings,
                self.scaler.get_scale() if self.scaler else None,
                [_backward(*b) for b in self.backwards[-BACKWARDS:]],
            )
        )
        self.forget()

    def forget(self):
        self.local, self.reduced, self.backwards = {}, {}, []
        self.begun, self.queued, self.forwarded, self.before = False, False, False, "step"

    # -- what else there is

    def fingerprint(self):
        return named_bits((name, p) for p, name in self.names.items())

    @safely
    def on_forward(self, module, args, kwargs):
        self.look_for_parameters()
        self.begun = self.queued = False
        tensors = [x for x in (*args, *kwargs.values()) if torch.is_tensor(x) and x.dim()]
        self.forwarded = module.training and torch.is_grad_enabled()
        if self.forwarded and not self.log.inputs:
            self.ddp = self.ddp or _wrapper_above(module)
        if self.forwarded and tensors:
            self.log.inputs.append(bits(tensors[0]).tolist())

    def schedulers(self):
        """The schedules of this optimizer, also those inside of another library's wrapper."""
        if not hasattr(self.optimizer.step, "_wrapped_by_lr_sched"):  # a schedule leaves this mark
            return []
        # Who refers to the optimizer: a schedule, or (once somebody has looked at it) its __dict__.
        found = gc.get_referrers(self.optimizer)
        found += [x for d in found if isinstance(d, dict) and "last_epoch" in d
                  for x in gc.get_referrers(d)]  # fmt: skip
        return list({id(x): x for x in found if issubclass(type(x), LRScheduler)}.values())

    def stop(self):
        for handle in self.handles:
            handle.remove()
        for undo in self.undo:
            undo()
        self.finish()

    @safely
    def finish(self):
        log, held = self.log, self.optimizer.param_groups
        log.states.append(self.fingerprint())
        log.buffers.append(named_bits(self.module.named_buffers()))
        log.owners = _owners(self.module)
        log.wrapped, log.broadcast = bool(self.ddp), self.ddp and self.ddp.broadcast_buffers
        log.settings = _settings(held)
        log.schedules = [
            [type(s).__name__, float(s.last_epoch - self.scheduled.get(id(s), 0))]
            for s in self.schedulers()
        ]
        asked = [p for group in held for p in group["params"] if p.requires_grad]
        log.without = [self.names[p] for p in asked if p not in self.moved]
        log.zeros = [self.names[p] for p in asked if self.moved.get(p) is False]
        state = {
            f"{self.names[p]}.{key}": value
            for p, values in self.optimizer.state.items()
            for key, value in values.items()
            if p in self.names
        }
        tensors = {name: value for name, value in state.items() if torch.is_tensor(value)}
        numbers = {k: v for k, v in state.items() if isinstance(v, int)}  # not LBFGS's loss
        log.state = named_bits(tensors.items()) | numbers


def _wrapper_above(module):
    """The DDP that calls this module, if it was built inside of the block."""
    frame = sys._getframe(1)
    while frame is not None:
        caller = frame.f_locals.get("self")
        if isinstance(caller, DistributedDataParallel) and caller.module is module:
            return caller
        frame = frame.f_back
    return None


def _backward(left, after, totals):
    numbers = to_list([*left, *totals])
    lengths = numbers[: len(left)]
    return Backward(sum(x * x for x in lengths) ** 0.5, after, sum(numbers[len(left) :]))


def _settings(groups):
    """The scalars of each group of parameters, as JSON can hold them."""

    def plain(value):
        if torch.is_tensor(value):
            return value.tolist() if value.numel() < 8 else None
        if isinstance(value, (list, tuple)):
            return [plain(x) for x in value]
        return value if isinstance(value, (bool, int, float, str)) else None

    return [
        {k: plain(v) for k, v in group.items() if k not in ("params", "param_names")}
        | {"number of parameters": len(group["params"])}
        for group in groups
    ]


def _owners(module):
    """Of each buffer: its module's class, is it a norm's, is it saved, has it floats?"""
    return {
        f"{path}.{name}".lstrip("."): [
            type(m).__name__,
            isinstance(m, _NormBase),
            name not in m._non_persistent_buffers_set,
            buffer.is_floating_point(),
        ]
        for path, m in module.named_modules()
        for name, buffer in m.named_buffers(recurse=False)
    }
