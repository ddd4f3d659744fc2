"""Lesson 01: wrong answers, each with what the check must say, and other right ones."""

import math
from itertools import count

import torch

from wrong_answers import right, wrong


def sizes(module):
    """Bytes of parameters, of buffers, and of gradients."""
    parameters = sum(p.nbytes for p in module.parameters())
    gradients = sum(p.nbytes for p in module.parameters() if p.requires_grad)
    return parameters, sum(b.nbytes for b in module.buffers()), gradients


@wrong("step_bytes", "Return two numbers")
def one_number(module, n):
    return 2 * (n - 1) * sizes(module)[0]


@wrong("step_bytes", "Look at DP: how many copies leave or arrive")
def by_n(module, n):
    parameters, buffers, gradients = sizes(module)
    return n * (parameters + buffers + gradients), 2 * (n - 1) / n * gradients


@wrong("step_bytes", "Look at DDP: how many copies leave or arrive")
def one_phase_of_the_ring(module, n):
    parameters, buffers, gradients = sizes(module)
    return (n - 1) * (parameters + buffers + gradients), (n - 1) / n * gradients


@wrong("step_bytes", "a frozen layer has no gradient")
def frozen_forgotten(module, n):
    parameters, buffers, _ = sizes(module)
    return (n - 1) * (2 * parameters + buffers), 2 * (n - 1) / n * parameters


@wrong("step_bytes", "a frozen layer has no gradient")
def frozen_stays_at_home(module, n):
    _, buffers, gradients = sizes(module)
    return (n - 1) * (2 * gradients + buffers), 2 * (n - 1) / n * gradients


@wrong("step_bytes", "how many bytes has one parameter here?")
def always_four_bytes(module, n):
    parameters = 4 * sum(p.numel() for p in module.parameters())
    gradients = 4 * sum(p.numel() for p in module.parameters() if p.requires_grad)
    buffers = sizes(module)[1]
    return (n - 1) * (parameters + buffers + gradients), 2 * (n - 1) / n * gradients


@wrong("step_bytes", "what does this module hold besides parameters")
def buffers_forgotten(module, n):
    parameters, _, gradients = sizes(module)
    return (n - 1) * (parameters + gradients), 2 * (n - 1) / n * gradients


@wrong("step_bytes", "How often does it travel?")
def by_the_state_dict(module, n):
    whole = sum(t.nbytes for t in module.state_dict().values())
    gradients = sizes(module)[2]
    return (n - 1) * (whole + gradients), 2 * (n - 1) / n * gradients


@wrong("step_bytes", "Look at DP: how many copies leave or arrive")
def swapped(module, n):
    parameters, buffers, gradients = sizes(module)
    return 2 * (n - 1) / n * gradients, (n - 1) * (parameters + buffers + gradients)


@right("step_bytes")
def as_a_list(module, n):
    parameters, buffers, gradients = sizes(module)
    return [(n - 1) * parameters + (n - 1) * buffers + (n - 1) * gradients,
            2 * gradients - 2 * gradients / n]  # fmt: skip


@right("step_bytes")
def by_loops(module, n):
    through, sent = 0, 0.0
    for t in [*module.parameters(), *module.buffers()]:
        for _ in range(1, n):
            through += t.numel() * t.element_size()
            if t.requires_grad:
                through += t.nbytes
        sent += 2 * (n - 1) / n * t.nbytes * t.requires_grad
    return through, sent


@right("step_bytes")
def as_a_tensor(module, n):
    parameters, buffers, gradients = sizes(module)
    dp = (n - 1) * (parameters + buffers + gradients)
    return torch.tensor([dp, 2 * (n - 1) / n * gradients], dtype=torch.float64)


@right("step_bytes")
def by_named(module, n):
    everything = dict(module.named_parameters()) | dict(module.named_buffers())
    trains = [p for p in everything.values() if p.requires_grad]
    out, back = (sum(t.nbytes for t in group) for group in (everything.values(), trains))
    return (out + back) * (n - 1), back * (n - 1) * 2 / n


@right("step_bytes")
def two_halves_of_the_ring(module, n):
    parameters, buffers, gradients = sizes(module)
    chunk = gradients / n
    return (parameters + buffers + gradients) * (n - 1), chunk * (n - 1) + chunk * (n - 1)


@wrong("most_gpus", "Do you count GPU 0 itself?")
def others_only(model_bytes, seconds, link):
    return int(seconds * link // (2 * model_bytes))


@wrong("most_gpus", "bytes take longer than")
def one_way(model_bytes, seconds, link):
    return 1 + int(seconds * link // model_bytes)


@wrong("most_gpus", "bytes take longer than")
def rounded_up(model_bytes, seconds, link):
    return 1 + math.ceil(seconds * link / (2 * model_bytes))


@wrong("most_gpus", "bytes take longer than")
def bits_for_bytes(model_bytes, seconds, link):
    return 1 + int(8 * seconds * link // (2 * model_bytes))


@wrong("most_gpus", "Each further GPU adds the model once")
def nothing_returned(model_bytes, seconds, link):
    pass


@wrong("most_gpus", "Each further GPU adds the model once")
def both_ways_twice(model_bytes, seconds, link):
    return 1 + int(seconds * link // (4 * model_bytes))


@wrong("most_gpus", "bytes take longer than")
def as_a_ring(model_bytes, seconds, link):
    return 10_000 if 2 * model_bytes <= seconds * link else 1


@right("most_gpus")
def by_division(model_bytes, seconds, link):
    return math.floor(seconds * link / (2 * model_bytes)) + 1


@right("most_gpus")
def by_counting(model_bytes, seconds, link):
    return next(n for n in count(1) if 2 * n * model_bytes > seconds * link)


@right("most_gpus")
def as_a_float(model_bytes, seconds, link):
    return 1.0 + seconds * link // (2 * model_bytes)


@right("most_gpus")
def as_a_tensor_of_one(model_bytes, seconds, link):
    return torch.tensor(1 + int(seconds * link // (2 * model_bytes)))


@right("most_gpus")
def by_seconds_each(model_bytes, seconds, link):
    each = 2 * model_bytes / link
    return int((seconds + 1e-12) / each) + 1
