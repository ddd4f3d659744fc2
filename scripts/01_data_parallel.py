"""The real nn.DataParallel on all GPUs: what it moves, and what each GPU holds."""

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import comm

from ddp_course import results
from ddp_course.models import SmallCNN

BATCH, STEPS = 128, 3
moved, phase = {}, "forward"


def watch(name, crossing):
    """Enter into the ledger the bytes that each call of comm.<name> takes from GPU to GPU."""
    real = getattr(comm, name)

    def watched(first, *args, **kwargs):
        out = real(first, *args, **kwargs)
        key = f"{name}, {phase}"
        moved[key] = moved.get(key, 0) + sum(t.nbytes for t in crossing(first, out))
        return out

    setattr(comm, name, watched)


def flat(groups):
    return [t for group in groups for t in group]


watch("scatter", lambda batch, out: [t for t in out if t.device != batch.device])
watch("broadcast_coalesced", lambda tensors, out: flat(out[1:]))  # GPU 0 keeps the originals
watch("gather", lambda tensors, out: tensors[1:])
watch("reduce_add_coalesced", lambda groups, out: flat(groups[1:]))


def train(batch_on):
    """Bytes moved per step, and the peak of each GPU's allocator, after a few steps."""
    global phase
    torch.manual_seed(0)
    model = nn.DataParallel(SmallCNN().cuda())
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    moved.clear()
    for gpu in model.device_ids:
        torch.cuda.reset_peak_memory_stats(gpu)
    for _ in range(STEPS):
        images = torch.randn(BATCH, 1, 8, 8, device=batch_on)
        labels = torch.randint(0, 10, (BATCH,), device="cuda:0")
        phase = "forward"
        loss = F.cross_entropy(model(images), labels)
        phase = "backward"
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    peaks = [torch.cuda.max_memory_allocated(gpu) for gpu in model.device_ids]
    return {"moved": {k: v // STEPS for k, v in moved.items()}, "peaks": peaks}


if __name__ == "__main__":
    found = {"gpu": train("cuda:0"), "cpu": train("cpu")}
    found["gpus"] = torch.cuda.device_count()
    results.save("01_data_parallel", found, "cuda:0")
    peaks = [f"{p / 1024:.0f}" for p in found["gpu"]["peaks"]]
    print("peak of torch's allocator by GPU, KiB:", *peaks)
