"""Which collectives the loop calls itself: torch.distributed's functions, wrapped for a while."""

import functools
import inspect
import os
import sys
import threading

import torch
import torch.distributed as dist

from ddp_course.tools.audit.log import Call

# The argument whose elements every rank has as many of: not the lists that the root alone gives.
COUNTED = {
    "all_reduce": "tensor", "broadcast": "tensor", "reduce": "tensor", "gather": "tensor",
    "scatter": "tensor", "all_gather": "tensor", "all_gather_into_tensor": "input_tensor",
    "reduce_scatter": "input_list", "reduce_scatter_tensor": "input",
    "all_to_all": "input_tensor_list", "all_to_all_single": "input",
    "all_reduce_coalesced": "tensors", "all_gather_object": None, "gather_object": None,
    "broadcast_object_list": None, "scatter_object_list": None, "barrier": None,
    "monitored_barrier": None,
}  # fmt: skip
TOOLS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
TORCH = os.path.dirname(os.path.abspath(torch.__file__)) + os.sep
# Differentiable collectives: torch's own file, but it is the loop that calls them.
FOR_THE_LOOP = os.path.join(TORCH, "distributed", "nn", "functional.py")

_lock, _listeners, _real = threading.Lock(), [], {}


class Calls:
    """Notes in a recorder's log each collective that is called between `start` and `stop`."""

    def __init__(self, recorder):
        self.recorder, self.numbers = recorder, {}

    def start(self):
        with _lock:
            _listeners.append(self)
            if not _real:
                for kind in COUNTED:
                    if hasattr(dist, kind):
                        _real[kind] = getattr(dist, kind)
                        setattr(dist, kind, _wrapped(kind, _real[kind]))

    def stop(self):
        with _lock:
            _listeners.remove(self)
            if not _listeners:
                for kind, function in _real.items():
                    setattr(dist, kind, function)
                _real.clear()

    def note(self, call, ranks, graph):
        log, number = self.recorder.log, len(self.numbers)
        number = self.numbers.setdefault(call, number)
        if number == len(log.calls):
            log.calls.append(call)
        log.sequence.append(number)
        log.groups.setdefault(call.group, ranks)
        # Before a backward it is meant for it; after it the loss is only to be printed.
        if graph and self.recorder.forwarded and call.site not in log.graphs:
            log.graphs.append(call.site)


def _wrapped(kind, real):
    signature = inspect.signature(real)

    @functools.wraps(real)
    def call(*args, **kwargs):
        if not torch.compiler.is_compiling():
            _note(kind, signature, args, kwargs)
        return real(*args, **kwargs)

    return call


def _note(kind, signature, args, kwargs):
    try:
        site = _site(sys._getframe(2))
        if site is None:
            return
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        given = bound.arguments
        group = given.get("group") or dist.group.WORLD
        ranks = list(dist.get_process_group_ranks(group))
        call = Call(site, kind, *_size(kind, given), _how(given, group), group.group_name)
        tensor = given.get("tensor") if kind == "all_reduce" else None
        graph = tensor is not None and tensor.requires_grad and torch.is_grad_enabled()
        for listener in list(_listeners):
            listener.note(call, ranks, graph)
    except Exception:  # wrong arguments, or no member of the group: torch says it better
        return


def _site(frame):
    """Where the loop called; None if torch called for itself, as DDP does."""
    caller = frame.f_code.co_filename
    if caller.startswith(TORCH) and caller != FOR_THE_LOOP:
        return None
    while frame is not None:
        name = frame.f_code.co_filename
        if not name.startswith((TORCH, TOOLS, "<frozen")):
            return f"{os.path.basename(name)}:{frame.f_lineno}"
        frame = frame.f_back
    return "backward"  # of a differentiable collective, in a thread of autograd


def _size(kind, given):
    """dtype and number of elements."""
    tensors = given.get(COUNTED[kind])
    if tensors is None:
        return "", None
    tensors = [tensors] if torch.is_tensor(tensors) else list(tensors)
    dtype = str(tensors[0].dtype).removeprefix("torch.") if tensors else ""
    parts = given.get("tensor_list") or ()
    uneven = kind == "all_to_all" or given.get("input_split_sizes") is not None
    uneven = uneven or given.get("output_split_sizes") is not None
    if uneven or len({part.numel() for part in parts}) > 1:
        return dtype, None
    return dtype, sum(t.numel() for t in tensors)


def _how(given, group):
    """The root, as a rank of the default group, or the operation."""
    for name, word in (("src", "from"), ("dst", "to")):
        if name in given:
            root, in_group = given[name], given.get(f"group_{name}")
            if root is None and in_group is not None:
                root = dist.get_global_rank(group, in_group)
            return f"{word} {root or 0}"
    return str(given.get("op") or "").removeprefix("RedOpType.")
