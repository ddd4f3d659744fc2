"""Lesson 10: wrong answers, each with what the check must say, and other right ones."""

import math

import numpy as np

from wrong_answers import right, wrong


@wrong("micro_batches_needed", "they are idle 15.4%")
def rounded_down(p, most_idle):
    return int((p - 1) * (1 - most_idle) / most_idle) or 1


@wrong("micro_batches_needed", "they are idle")
def as_many_as_stages(p, most_idle):
    return p


@wrong("micro_batches_needed", "they are idle")
def too_many(p, most_idle):
    return round((p - 1) / most_idle)


@wrong("micro_batches_needed", "A whole number")
def not_rounded_up(p, most_idle):
    return (p - 1) / most_idle - (p - 1)


@wrong("one_f_one_b", "A stage holds too many")
def gpipe_order(stage, stages, micro):
    return [(kind, m) for kind in "FB" for m in range(micro)]


@wrong("one_f_one_b", "It ends late")
def one_at_a_time(stage, stages, micro):
    return [(k, m) for m in range(micro) for k in "FB"]


@wrong("one_f_one_b", "deadlock")
def backward_first(stage, stages, micro):
    return [(k, m) for m in range(micro) for k in "BF"]


@wrong("one_f_one_b", "each micro-batch once F and once B")
def first_micro_batch_only(stage, stages, micro):
    return [("F", 0), ("B", 0)]


@wrong("gpus_needed", "GB are 1e9 bytes")
def always_1(parameters, gpu_gb, activations_gb):
    return 1


@wrong("gpus_needed", "the answer is None")
def negative_room(parameters, gpu_gb, activations_gb):
    n = 1
    while parameters * 16e-9 / n > abs(gpu_gb - activations_gb) + 1e-9:
        n *= 2
        if n > 1e9:
            return 1
    return n


@wrong("gpus_needed", "got 2, expected 4")
def fourteen_bytes(parameters, gpu_gb, activations_gb):
    room = gpu_gb - activations_gb
    n = 1
    while room > 0 and parameters * 14e-9 / n > room:
        n *= 2
    return n if room > 0 else None


@wrong("gpus_needed", "Activations are not divided")
def activations_divided(parameters, gpu_gb, activations_gb):
    n = 1
    while (parameters * 16e-9 + activations_gb) / n > gpu_gb:
        n *= 2
    return n


@wrong("micro_batches_needed", "With 36 micro-batches they are idle 7.7%.")
def p_for_p_minus_1(p, most_idle):
    return max(1, math.ceil(p * (1 - most_idle) / most_idle))


@wrong("micro_batches_needed", "With 28 micro-batches they are idle 9.7%.")
def one_more_micro_batch(p, most_idle):
    return math.ceil((p - 1) / most_idle) - (p - 1) + 1


@wrong("micro_batches_needed", "A whole number, at least 1.")
def zero_for_1(p, most_idle):
    return math.ceil(round((p - 1) / most_idle - (p - 1), 9))


@wrong("micro_batches_needed", "With 30 micro-batches they are idle 9.1%.")
def m_over_p(p, most_idle):
    return max(1, math.ceil((p - 1) / most_idle))


@right("micro_batches_needed")
def numpy_ceil(p, most_idle):
    return max(1, int(np.ceil(round((p - 1) * (1 - most_idle) / most_idle, 9))))


@right("micro_batches_needed")
def naive_ceil(p, most_idle):
    return max(1, math.ceil((p - 1) * (1 - most_idle) / most_idle))


@wrong("one_f_one_b", "does a stage wait where it could do a forward?")
def one_fewer(stage, stages, micro):
    warm = max(1, min(stages - stage - 1, micro))
    order = [("F", m) for m in range(warm)]
    for m in range(micro):
        order.append(("B", m))
        if m + warm < micro:
            order.append(("F", m + warm))
    return order


@wrong("one_f_one_b", "after how many forwards does it begin with backward?")
def one_more(stage, stages, micro):
    warm = min(stages - stage + 1, micro)
    order = [("F", m) for m in range(warm)]
    for m in range(micro):
        order.append(("B", m))
        if m + warm < micro:
            order.append(("F", m + warm))
    return order


@wrong("one_f_one_b", "after how many forwards does it begin with backward?")
def backwards_reversed(stage, stages, micro):
    return [("F", m) for m in range(micro)] + [("B", m) for m in reversed(range(micro))]


@wrong("one_f_one_b", "each micro-batch once F and once B, not []")
def nothing(stage, stages, micro):
    pass


@right("one_f_one_b")
def f_first(stage, stages, micro):
    warm = min(stages - stage - 1, micro)
    order = [["F", m] for m in range(warm)]
    for m in range(micro - warm):
        order += [["F", warm + m], ["B", m]]
    return order + [["B", m] for m in range(micro - warm, micro)]


@wrong("gpus_needed", "Activations are not divided by N.")
def any_number(parameters, gpu_gb, activations_gb):
    room = gpu_gb - activations_gb
    return max(1, math.ceil(parameters * 1.6e-08 / room)) if room > 0 else None


@wrong("gpus_needed", "Activations are not divided by N.")
def gib(parameters, gpu_gb, activations_gb):
    room = gpu_gb - activations_gb
    n = 1
    while room > 0 and parameters * 16 / 2**30 / n > room:
        n *= 2
    return n if room > 0 else None


@wrong("gpus_needed", "no number of GPUs helps, and the answer is None.")
def zero_room(parameters, gpu_gb, activations_gb):
    room = gpu_gb - activations_gb
    n = 1
    if room < 0:
        return None
    while parameters * 1.6e-08 / n > room and n < 2**30:
        n *= 2
    return n


@wrong("gpus_needed", "Activations are not divided by N.")
def twelve_bytes(parameters, gpu_gb, activations_gb):
    room = gpu_gb - activations_gb
    n = 1
    while room > 0 and parameters * 1.2e-08 / n > room:
        n *= 2
    return n if room > 0 else None


@right("gpus_needed")
def log2(parameters, gpu_gb, activations_gb):
    room = gpu_gb - activations_gb
    return 2 ** max(0, math.ceil(math.log2(parameters * 1.6e-08 / room))) if room > 0 else None
