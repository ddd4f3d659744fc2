"""Faults that only GPUs have: what each says."""

import multiprocessing

import torch
import torch.nn as nn

from ddp_course import results


def error_of(work, *args):
    try:
        work(*args)
        return None
    except Exception as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0][:90]}"


def invalid_device():
    torch.ones(1, device=f"cuda:{torch.cuda.device_count()}")


def mixed_devices():
    nn.Linear(2, 2).cuda()(torch.ones(1, 2))


def labels_on_the_cpu():
    nn.functional.cross_entropy(torch.ones(2, 3, device="cuda"), torch.tensor([0, 1]))


def numpy_without_cpu():
    torch.ones(1, device="cuda").numpy()


def out_of_memory():
    total = torch.cuda.get_device_properties(0).total_memory
    torch.empty(total + 2**20, dtype=torch.uint8, device="cuda")


def in_a_fork(pipe):
    pipe.send(error_of(lambda: torch.ones(1).cuda()))


def forked():
    """A process that was forked after its parent had used CUDA, as a loader's worker may be."""
    ours, theirs = multiprocessing.Pipe()
    child = multiprocessing.get_context("fork").Process(target=in_a_fork, args=(theirs,))
    child.start()
    said = ours.recv() if ours.poll(60) else "nothing for a minute"
    child.join(10)
    return said


if __name__ == "__main__":
    cases = (invalid_device, mixed_devices, labels_on_the_cpu, numpy_without_cpu, out_of_memory)
    torch.ones(1, device="cuda")  # CUDA is in use from here on
    found = {case.__name__: error_of(case) for case in cases}
    found["used_in_a_fork"] = forked()
    results.save("12_gpu_only", {"said": found}, "cuda")
    for case, said in found.items():
        print(f"{case:18} {said}")
