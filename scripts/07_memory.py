"""The peak of torch's allocator in one step: float32, and autocast to bfloat16."""

import torch
import torch.nn as nn

from ddp_course import results


def mlp(width, layers):
    parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.GELU())]
    return nn.Sequential(*parts).cuda()


MODELS = {"activations weigh": (128, 12, 4096), "weights weigh": (1024, 4, 16)}  # and the batch


def measure(width, layers, batch, autocast):
    """MiB of parameters, held for backward after forward, and at the peak of the step."""
    model, x = mlp(width, layers), torch.randn(batch, width, device="cuda")
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    with torch.autocast("cuda", torch.bfloat16, enabled=autocast):
        loss = model(x).float().square().mean()
    held = torch.cuda.memory_allocated() - before
    loss.backward()
    found = {"parameters": sum(p.nbytes for p in model.parameters()), "held for backward": held}
    found["peak"] = torch.cuda.max_memory_allocated()
    return {name: nbytes / 2**20 for name, nbytes in found.items()}


if __name__ == "__main__":
    found = {}
    for name, sizes in MODELS.items():
        found[name] = {"fp32": measure(*sizes, False), "autocast": measure(*sizes, True)}
        peaks = {precision: f"{run['peak']:.1f} MiB" for precision, run in found[name].items()}
        print(f"{name}: peak {peaks}")
    results.save("07_memory", {"models": found}, "cuda")
