"""nccl is gloo underneath, on the same memory; it refuses what nccl would refuse.

Not so here: gloo blocks the process in wait(), nccl only the stream; a rank that never comes ends
in gloo's exception after the timeout, not in nccl's watchdog.
"""

import ctypes
import os

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d as c10d
from torch.distributed.distributed_c10d import Backend, _create_gloo_process_group

from ddp_course.tools.rehearse import kernels, memory

BATCHES = []  # of calls, for each coalescing manager that is open
STORES = {}  # of groups that haven't talked yet: there each rank says which GPU it uses


def replace():
    """Let "nccl" make gloo groups, and DataParallel copy without nccl."""
    Backend._ensure_backend_registered("nccl")
    Backend._plugins["NCCL"] = Backend._plugins["NCCL"]._replace(creator_fn=made)
    dist.ProcessGroupGloo.perform_nocolor_split = lambda *_: None
    dist.ProcessGroup._start_coalescing = lambda group, device: BATCHES.append([])
    dist.ProcessGroup._end_coalescing = end_coalescing
    c10d._dump_nccl_trace_json = c10d._dump_fr_trace_json  # gloo's recorder, for `diagnose`
    torch._C._broadcast_coalesced = copies
    torch.cuda.nccl.is_available = lambda tensors: False


def made(options, nccl_options):
    """What torch calls for a group with the backend nccl."""
    memory.note_rank(options.group_rank)
    STORES[options.group_id] = options.store
    return _create_gloo_process_group(options, None)


def copies(tensors, devices, buffer_size):
    """What torch's C++ does through nccl, for DataParallel."""
    return [[t if t.get_device() == d else t.to(d) for t in tensors] for d in devices]


def gpu_of(device):
    """Which GPU of which machine: a second torchrun on this machine stands for another one."""
    number = ctypes.CDLL(None).pretended_gpu(device.index)  # CUDA_VISIBLE_DEVICES is heeded
    return f"GPU {number} of node {os.environ.get('GROUP_RANK', '0')}"


def one_rank_per_gpu(group, device):
    """nccl refuses two ranks on one GPU, when they first talk."""
    if group.bound_device_id not in (None, device):
        raise dist.DistBackendError(
            "Attempt to perform collective on tensor not on device passed to init_process_group"
        )
    store = STORES.pop(group.group_name, None)
    if store is None:
        return
    store.set(f"gpu/{group.rank()}", gpu_of(device))
    taken = [store.get(f"gpu/{r}").decode() for r in range(group.size())]
    if len(set(taken)) < len(taken):
        twice = next(gpu for gpu in taken if taken.count(gpu) > 1)
        ranks = [str(r) for r, gpu in enumerate(taken) if gpu == twice]
        raise dist.DistBackendError(
            f"Duplicate GPU detected : rank {' and rank '.join(ranks)} both on {twice}"
        )


def collective(op):
    """The kernel of a collective: gloo gets tensors of the CPU, in a double of the group."""
    names = [a.name for a in op._schema.arguments]
    async_at = names.index("async_op") if "async_op" in names else None  # True is left out
    flat = "_base_" in str(op)  # nccl doesn't look at the shape

    def run(*args):
        device = kernels.common_device(op, kernels.tensors_in(args))
        given = {}

        def move(x):
            if isinstance(x, torch.Tensor):
                cpu = kernels.on_cpu(x).view(-1) if flat else kernels.on_cpu(x)
                given[id(cpu)] = x, cpu
                return cpu
            if isinstance(x, torch.ScriptObject) and "ProcessGroup" in str(x._type()):
                real = dist.ProcessGroup.unbox(x)
                if "barrier" not in str(op):
                    one_rank_per_gpu(real, device)
                return double(real, device).boxed()
            return x

        def back(x):
            if id(x) in given:
                return given[id(x)][0]
            if isinstance(x, torch.ScriptObject):
                work = dist.Work.unbox(x)
                if BATCHES:
                    BATCHES[-1].append(work)
                if later:
                    return with_future(work, kernels.tensors_in(args[:1])).boxed()
            return x

        later = async_at is not None and (len(args) <= async_at or args[async_at])
        return kernels.mapped(back, op(*kernels.mapped(move, args)))

    return run


def double(group, device):
    """A group for the CPU that has the gloo which this group has for its GPUs."""
    made = dist.ProcessGroup(group.rank(), group.size())
    gloo = group._get_backend(device)
    made._register_backend(torch.device("cpu"), dist.ProcessGroup.BackendType.GLOO, gloo)
    return made


def with_future(work, tensors):
    """gloo's future holds what gloo was given; hooks want tensors of the GPU."""
    ended = torch.futures.Future(devices=[tensors[0].device])
    try:
        gloos = work.get_future()
    except RuntimeError:  # some of gloo's have none
        work.wait()
        ended.set_result(tensors)
        return c10d._create_work_from_future(ended)

    def value(_):
        gloos.wait()  # raises what gloo has raised
        return tensors

    future = ended.then(value)
    gloos.add_done_callback(lambda _: ended.set_result(None))
    return c10d._create_work_from_future(future)


def end_coalescing(group, device):
    """gloo has no batches: each call was made at once, and the batch is done when all are."""
    for work in BATCHES.pop():
        work.wait()
    done = torch.futures.Future(devices=[device])
    done.set_result([])
    return c10d._create_work_from_future(done)
