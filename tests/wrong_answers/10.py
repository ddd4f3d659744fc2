"""Lesson 10: wrong answers, each with what the check must say, and other right ones."""

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
