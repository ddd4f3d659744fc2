"""Each CUDA kernel is computed by the CPU's of the same name, on the same memory.

Torch's dispatcher lets a Python function take the place of an operator's kernel for one kind of
device. Above it all is torch's own: autograd, autocast, dispatch, streams, the caching allocator.
"""

import contextlib
import warnings

import torch

from ddp_course.tools.rehearse import nccl, twins

# Kernels in name only: they allocate, look at addresses, or ask for settings.
LEFT = {"empty.memory_format", "empty_strided", "record_stream", "is_pinned", "_pin_memory"}
LEFT |= {"resize_", "set_", "set_.source_Storage", "set_.source_Storage_storage_offset"}
LEFT |= {"set_.source_Tensor", "_use_cudnn_ctc_loss", "_use_cudnn_ctc_loss.Tensor"}
LEFT |= {"_use_miopen_ctc_loss", "_use_miopen_ctc_loss.Tensor"}
COPYING = {"copy_", "_foreach_copy_"}  # from device to device
MIXING = COPYING | {"_ctc_loss", "_ctc_loss_backward"}  # lengths may be on the CPU
INDEXING = {"index", "index_put_", "_index_put_impl_", "_unsafe_index", "_unsafe_index_put"}
# These come in float32 to a CPU that is slow at half precision.
IN_FLOAT = {"mm", "addmm", "bmm", "baddbmm", "convolution", "convolution_backward"}
CPU = torch.device("cpu")
HALVES = (torch.float16, torch.bfloat16)
KEPT = []  # torch.library.Library: what it registered lasts as long as the object


def mapped(function, x):
    """Lists and tuples with the function applied to what is in them: torch's tree_map is slow."""
    if isinstance(x, (list, tuple)):
        return (list if isinstance(x, list) else tuple)([mapped(function, one) for one in x])
    return function(x)


def tensors_in(x):
    """All tensors in lists and tuples, as a list."""
    found = []
    mapped(lambda one: isinstance(one, torch.Tensor) and found.append(one), x)
    return found


def on_cpu(tensor):
    """A tensor of the CPU in the memory of one of the GPU."""
    if not tensor.is_cuda:
        return tensor
    whole, view = tensor.untyped_storage(), torch.empty(0, dtype=tensor.dtype)
    if not whole.nbytes():
        return view.as_strided(tensor.size(), tensor.stride(), tensor.storage_offset())
    same = torch._C._construct_storage_from_data_pointer(whole.data_ptr(), CPU, whole.nbytes())
    view.set_(same, tensor.storage_offset(), tensor.size(), tensor.stride())
    view.owner = whole  # alive as long as this is
    return view


def on_gpu(tensor, device):
    """A copy on the GPU, in memory of torch's allocator."""
    made = torch.empty_strided(tensor.size(), tensor.stride(), dtype=tensor.dtype, device=device)
    on_cpu(made).copy_(tensor)
    return made


def common_device(op, tensors):
    """As torch demands: one GPU. 0-dimensional tensors of the CPU and indices may come along."""
    name = op._schema.name.split("::")[1]
    if name in INDEXING:
        if not tensors[0].is_cuda:
            raise RuntimeError(
                "indices should be either on cpu or on the same device as the indexed tensor (cpu)"
            )
        tensors = [t for t in tensors if t.is_cuda]
    seen = dict.fromkeys(t.device for t in tensors if t.is_cuda or t.dim())
    if len(seen) > 1 and name not in MIXING:
        raise RuntimeError(
            "Expected all tensors to be on the same device, but found at least two devices, "
            f"{' and '.join(map(str, seen))}! (in {op})"
        )
    return next((t.device for t in tensors if t.is_cuda), None)


def kernel(op, work):
    """The function that stands for a CUDA kernel: move the arguments, work, move the results."""
    draws = torch.Tag.nondeterministic_seeded in op.tags

    def run(*args, **kwargs):
        tensors = tensors_in((args, list(kwargs.values())))
        device = kwargs.get("device") or common_device(op, tensors)
        given = {}

        def move(x):
            if isinstance(x, torch.Tensor):
                cpu = on_cpu(x)
                given[id(cpu)] = x, cpu
                return cpu
            return CPU if isinstance(x, torch.device) else x

        def back(x):
            if not isinstance(x, torch.Tensor):
                return x
            return given[id(x)][0] if id(x) in given else on_gpu(x, device)

        args, kwargs = mapped(move, args), {k: mapped(move, x) for k, x in kwargs.items()}
        try:
            with drawing(kwargs, device) if draws else contextlib.nullcontext():
                out = work(*args, **kwargs)
        except NotImplementedError as error:
            raise NotImplementedError(missing(op, error)) from None
        for gpu, cpu in given.values():
            if gpu.size() != cpu.size():  # an out= that was too small
                gpu.resize_(cpu.size())
                on_cpu(gpu).copy_(cpu)
        return mapped(back, out)

    return run


def missing(op, error):
    """What to do about an operator that the CPU doesn't have."""
    return (
        f"rehearse: a pretended GPU computes by the CPU's kernels, and {op} has none there "
        f"({str(error).splitlines()[0][:120]}). Put another operator in its place for the "
        "rehearsal, or try this part on a GPU"
    )


def in_float(work):
    """Halves are computed in float32 and rounded once, which GPUs do as well, inside a kernel."""

    def run(*args, **kwargs):
        dtypes = {a.dtype for a in args if isinstance(a, torch.Tensor)}
        if not dtypes & set(HALVES):
            return work(*args, **kwargs)
        half = (dtypes & set(HALVES)).pop()
        if len(dtypes) > 1:
            return work(*args, **kwargs)  # torch's own error
        out = work(*(a.float() if isinstance(a, torch.Tensor) else a for a in args), **kwargs)
        return mapped(lambda x: x.to(half) if isinstance(x, torch.Tensor) else x, out)

    return run


@contextlib.contextmanager
def drawing(kwargs, device):
    """Random numbers of the GPU's generator, which is torch's own: a seed and an offset."""
    own, cpu = kwargs.pop("generator", None), torch.default_generator
    own = own or torch.cuda.default_generators[device.index or 0]
    before, offset = cpu.get_state(), own.get_offset()
    cpu.manual_seed((own.initial_seed() * 1_000_003 + offset) % 2**63)
    own.set_offset(offset + 4)
    try:
        yield
    finally:
        cpu.set_state(before)


def stand_in(op, name):
    """What takes the place of an operator's CUDA kernel; None if that stays."""
    if any(r.alias_info and not r.alias_info.is_write for r in op._schema.returns):
        return None  # views have no kernel
    work = twins.TWINS.get(name, op)
    return kernel(op, in_float(work) if name in IN_FLOAT else work)


def register():
    """Put the CPU's kernels in the place of all CUDA kernels; runs when CUDA is first used."""
    torch.backends.cudnn.enabled = False  # or RNNs ask for operators that only cuDNN has
    torch.backends.cuda.enable_cudnn_sdp(False)
    of_cuda = set(torch._C._dispatch_get_registrations_for_dispatch_key("CUDA"))
    of_cuda |= {"aten::copy_", "aten::convolution"}
    libraries = {space: torch.library.Library(space, "IMPL") for space in ("aten", "c10d")}
    KEPT.extend(libraries.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that there is a kernel already
        for full in of_cuda - {"c10d::check_for_nan"}:
            space, name = full.split("::")
            if space not in libraries or name in LEFT:
                continue
            packet, _, overload = name.partition(".")
            op = getattr(getattr(getattr(torch.ops, space), packet), overload or "default")
            made = nccl.collective(op) if space == "c10d" else stand_in(op, name)
            if made:
                libraries[space].impl(name, made, "CUDA")
