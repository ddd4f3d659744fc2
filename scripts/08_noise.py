"""Seeds: what dropout keeps on each rank, and whether a run can be repeated to the bit."""

import hashlib
import runpy
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import data, results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

cells = runpy.run_path(str(Path(__file__).with_name("08_model.py")))
mlp, weights = cells["mlp"], cells["weights"]


def noise(me, seed):
    """Which of eight units dropout keeps, and how far four images are shifted, after seeding."""
    torch.manual_seed(seed)
    kept = F.dropout(torch.ones(8, device=me.device), 0.5).bool().int().tolist()
    return {"kept": kept, "shifts": torch.randint(-2, 3, (4,)).tolist()}


def trained_bits(me, train, seed, steps=6):
    """A digest of the weights after a few steps with dropout: equal digests, equal bits."""
    model = mlp(me.device, dropout=0.3)
    ddp = DDP(model)
    torch.manual_seed(seed + me.rank)  # dropout differs from rank to rank, and can be repeated
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(steps):
        first = (step * me.world_size + me.rank) * 16
        x, y = (t.to(me.device) for t in train[torch.arange(first, first + 16) % len(train)])
        optimizer.zero_grad()
        F.cross_entropy(ddp(x), y).backward()
        optimizer.step()
    bits = b"".join(p.numpy().tobytes() for p in weights(model).values())
    return hashlib.sha256(bits).hexdigest()[:8]


@record
def main():
    torch.set_num_threads(1)
    with process_group() as me:
        if me.device.type == "cuda":  # CUBLAS_WORKSPACE_CONFIG=:4096:8 goes with it
            torch.use_deterministic_algorithms(True, warn_only=True)
        train = data.load("digits").train
        mine = {"same seed": noise(me, 7), "seed + rank": noise(me, 7 + me.rank)}
        mine["bits"] = {
            "run": trained_bits(me, train, seed=1),
            "same again": trained_bits(me, train, seed=1),
            "other dropout seed": trained_bits(me, train, seed=2),
        }
        results.save("08_noise", {"ranks": gather(mine)}, me.device)


if __name__ == "__main__":
    main()
