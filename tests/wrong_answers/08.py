"""Lesson 08: wrong answers, each with what the check must say, and other right ones."""

import numpy as np
import torch

from wrong_answers import right, wrong


@wrong("lr_at", "Step 0 has the rate")
def no_warmup(step, base, k, warmup):
    return base * k


@wrong("lr_at", "by the same amount in each step")
def jump_after_warmup(step, base, k, warmup):
    return base if step < warmup else base * k


@wrong("lr_at", "and stays there")
def grows_for_ever(step, base, k, warmup):
    return base + (base * k - base) * step / max(warmup, 1)


@wrong("global_loss", "A mean of means")
def mean_of_means(mean_loss, size, total):
    return total(mean_loss) / total(1)


@wrong("global_loss", "Ranks disagree")
def own_loss(mean_loss, size, total):
    return mean_loss


@wrong("global_loss", "every rank must call total equally often")
def total_on_some_ranks(mean_loss, size, total):
    if size == 6:
        return mean_loss
    return total(mean_loss * size) / total(size)


@wrong("sync_normalise", "where is total?")
def own_statistics(x, total):
    return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()


@wrong("sync_normalise", "is it total(sum) / total(count)?")
def mean_of_means_taken(x, total):
    return x - total(x.mean(0)) / 2


@wrong("sync_normalise", "is it total(sum) / total(count)?")
def unchanged(x, total):
    return x


@wrong("sync_normalise", "The mean is right, the variance not")
def centred_only(x, total):
    n = total(float(len(x)))
    return x - total(x.sum(0)) / n


@wrong("lr_at", "base, or base * k without a warm-up.")
def from_0(step, base, k, warmup):
    return base * k * min(1, step / warmup) if warmup else base * k


@wrong("lr_at", "base, or base * k without a warm-up.")
def one_early(step, base, k, warmup):
    return base + (base * k - base) * min(1, (step + 1) / warmup) if warmup else base * k


@wrong("lr_at", "In between the rate grows by the same amount in each step.")
def geometric(step, base, k, warmup):
    return base * k ** min(1, step / warmup) if warmup else base * k


@wrong("lr_at", "After the warm-up the rate is base * k, and stays there.")
def root(step, base, k, warmup):
    return base + (base * k**0.5 - base) * min(1, step / warmup) if warmup else base * k**0.5


@wrong("lr_at", "base, or base * k without a warm-up.")
def base_without_warmup(step, base, k, warmup):
    return base + (base * k - base) * min(1, step / warmup) if warmup else base


@right("lr_at")
def by_interpolation(step, base, k, warmup):
    return np.interp(step, [0, warmup], [base, base * k]) if warmup else base * k


@right("lr_at")
def two_branches(step, base, k, warmup):
    if step >= warmup:
        return base * k
    return base * (1 + (k - 1) * step / warmup)


@wrong("global_loss", "reduce sums and counts.")
def sum_only(mean_loss, size, total):
    return total(mean_loss * size)


@wrong("global_loss", "does each return what came out of total?")
def by_own_size(mean_loss, size, total):
    return total(mean_loss * size) / size / total(1)


@wrong("global_loss", "reduce sums and counts.")
def sum_of_means(mean_loss, size, total):
    return total(mean_loss) / total(size)


@wrong("global_loss", "reduce sums and counts.")
def no_count(mean_loss, size, total):
    return total(mean_loss) / 2


@right("global_loss")
def one_call(mean_loss, size, total):
    s, n = total(torch.tensor([mean_loss * size, size]))
    return s / n


@right("global_loss")
def share_first(mean_loss, size, total):
    return total(mean_loss * size / total(size))


@wrong("sync_normalise", "mean of squares minus square of the mean, biased.")
def unbiased(x, total):
    n = total(len(x))
    m = total(x.sum(0)) / n
    v = total((x - m).square().sum(0)) / (n - 1)
    return (x - m) / (v + 1e-05).sqrt()


@wrong("sync_normalise", "mean of squares minus square of the mean, biased.")
def no_eps(x, total):
    n = total(len(x))
    m = total(x.sum(0)) / n
    v = total((x - m).square().sum(0)) / n
    return (x - m) / v.sqrt()


@wrong("sync_normalise", "mean of squares minus square of the mean, biased.")
def eps_outside(x, total):
    n = total(len(x))
    m = total(x.sum(0)) / n
    v = total((x - m).square().sum(0)) / n
    return (x - m) / (v.sqrt() + 1e-05)


@wrong("sync_normalise", "mean of squares minus square of the mean, biased.")
def variance_of_means(x, total):
    n = total(len(x))
    m = total(x.sum(0)) / n
    v = total(x.var(0, correction=0)) / 2
    return (x - m) / (v + 1e-05).sqrt()


@right("sync_normalise")
def two_pass(x, total):
    n = total(len(x))
    m = total(x.sum(0)) / n
    v = total((x - m).square().sum(0)) / n
    return (x - m) * (v + 1e-05).rsqrt()
