"""Lesson 08: wrong answers, each with what the check must say, and other right ones."""

import math

import numpy as np
import torch

from wrong_answers import right, wrong


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


@wrong("sync_normalise", "the mean is right, the variance not")
def centred_only(x, total):
    n = total(float(len(x)))
    return x - total(x.sum(0)) / n


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


@wrong("sync_normalise", "mean of squares minus square of mean, biased")
def unbiased(x, total):
    n = total(len(x))
    m = total(x.sum(0)) / n
    v = total((x - m).square().sum(0)) / (n - 1)
    return (x - m) / (v + 1e-05).sqrt()


@wrong("sync_normalise", "mean of squares minus square of mean, biased")
def no_eps(x, total):
    n = total(len(x))
    m = total(x.sum(0)) / n
    v = total((x - m).square().sum(0)) / n
    return (x - m) / v.sqrt()


@wrong("sync_normalise", "mean of squares minus square of mean, biased")
def eps_outside(x, total):
    n = total(len(x))
    m = total(x.sum(0)) / n
    v = total((x - m).square().sum(0)) / n
    return (x - m) / (v.sqrt() + 1e-05)


@wrong("sync_normalise", "mean of squares minus square of mean, biased")
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


def cosine(share):
    return 0.5 * (1 + math.cos(math.pi * share))


@wrong("lr_at", "Step 0 has the rate")
def no_warmup(step, base, k, warmup, total):
    return base * k * cosine(min(1, step / total))


@wrong("lr_at", "base, or base * k without a warm-up.")
def from_0(step, base, k, warmup, total):
    if step < warmup:
        return base * k * step / warmup
    return base * k * cosine(min(1, (step - warmup) / (total - warmup)))


@wrong("lr_at", "base, or base * k without a warm-up.")
def one_early(step, base, k, warmup, total):
    if step < warmup:
        return base + base * (k - 1) * (step + 1) / warmup
    return base * k * cosine(min(1, (step - warmup) / (total - warmup)))


@wrong("lr_at", "by the same amount in each step")
def geometric(step, base, k, warmup, total):
    if step < warmup:
        return base * k ** (step / warmup)
    return base * k * cosine(min(1, (step - warmup) / (total - warmup)))


@wrong("lr_at", "In step `warmup` the rate is base * k.")
def cosine_from_step_0(step, base, k, warmup, total):
    if step < warmup:
        return base + base * (k - 1) * step / warmup
    return base * k * cosine(min(1, step / total))


@wrong("lr_at", "and it stays there")
def up_again(step, base, k, warmup, total):
    if step < warmup:
        return base + base * (k - 1) * step / warmup
    return base * k * cosine((step - warmup) / (total - warmup))


@wrong("lr_at", "After the warm-up: base * k times half of 1 + cosine")
def in_a_line(step, base, k, warmup, total):
    if step < warmup:
        return base + base * (k - 1) * step / warmup
    return base * k * max(0, 1 - (step - warmup) / (total - warmup))


@wrong("lr_at", "In step `total` the rate is 0")
def warmup_not_taken_off(step, base, k, warmup, total):
    if step < warmup:
        return base + base * (k - 1) * step / warmup
    return base * k * cosine(min(1, (step - warmup) / total))


@right("lr_at")
def by_interpolation(step, base, k, warmup, total):
    up = np.interp(step, [0, warmup], [base, base * k]) if warmup else base * k
    share = np.clip((step - warmup) / (total - warmup), 0, 1)
    return up * (1 + np.cos(np.pi * share)) / 2


@right("lr_at")
def three_cases(step, base, k, warmup, total):
    if step >= total:
        return 0
    if step >= warmup:
        return base * k / 2 * (1 + math.cos((step - warmup) * math.pi / (total - warmup)))
    return base * (1 + (k - 1) * step / warmup)


@right("lr_at")
def as_a_product(step, base, k, warmup, total):
    grown = 1 + (k - 1) * min(1, step / warmup if warmup else 1)
    return base * grown * cosine(min(max(step - warmup, 0) / (total - warmup), 1))


@right("lr_at")
def as_a_tensor(step, base, k, warmup, total):
    if step < warmup:
        return base * torch.linspace(1, k, warmup + 1, dtype=torch.float64)[step]
    share = torch.tensor((step - warmup) / (total - warmup), dtype=torch.float64).clamp(max=1)
    return base * k * (share * math.pi / 2).cos() ** 2


@right("lr_at")
def by_the_sine(step, base, k, warmup, total):
    if step <= warmup > 0:
        return base + step * (base * k - base) / warmup
    left = max(0.0, (total - step) / (total - warmup))
    return base * k * math.sin(math.pi / 2 * left) ** 2


@right("global_loss")
def in_two_steps(mean_loss, size, total):
    samples = total(size)
    losses = total(size * mean_loss)
    return float(losses) / float(samples)


@right("global_loss")
def as_tensors(mean_loss, size, total):
    both = torch.tensor([mean_loss * size, float(size)], dtype=torch.float64)
    losses, samples = total(both).tolist()
    return losses / samples


@right("global_loss")
def around_a_shift(mean_loss, size, total):
    return 1 + total((mean_loss - 1) * size) / total(size)


@right("sync_normalise")
def one_message(x, total):
    sums = total(torch.cat([x.sum(0), (x * x).sum(0), x.new_tensor([len(x)])]))
    s, q = sums[:-1].view(2, -1) / sums[-1]
    return (x - s) / torch.sqrt(q - s**2 + 1e-5)


@right("sync_normalise")
def by_variances(x, total):
    """Chan's way: from each rank's mean and variance."""
    n = total(float(len(x)))
    mean = total(x.mean(0) * len(x)) / n
    var = total((x.var(0, correction=0) + (x.mean(0) - mean).square()) * len(x)) / n
    return (x - mean) / (var + 1e-5).sqrt()


@right("sync_normalise")
def by_batch_norm(x, total):
    n = total(len(x))
    mean = total(x.sum(0)) / n
    var = total(((x - mean) ** 2).sum(0)) / n
    return torch.nn.functional.batch_norm(x, mean, var, training=False)


@right("sync_normalise")
def centred(x, total):
    n = total(torch.tensor(len(x)))
    x = x - total(x.sum(0)) / n
    return x / torch.sqrt(total(x.pow(2).sum(0)) / n + 1e-5)


def batch_of(run):
    return run["ranks"] * run["per_rank"] * run["accumulation"]


def judged(run, batch, skip=()):
    """The solution, with another global batch, or with a question left out."""
    wanted = 0.1 * batch / 256
    if "steps" not in skip and run["steps"] > 1.5 * run["images"] / batch:
        return "no DistributedSampler"
    if abs(run["lr"][-1] - 0.1) < 0.01 * wanted:
        return "rate not scaled"
    if "ranks" not in skip and abs(run["lr"][-1] - 0.1 * run["ranks"]) < 0.01:
        return "scaled by ranks alone"
    late = "warm-up" not in skip and run["lr"][4] < 0.99 * wanted
    return "warm-up in old steps" if late else "nothing"


@wrong("diagnose", "How many steps has an epoch")
def steps_ignored(run):
    return judged(run, batch_of(run), skip=("steps",))


@wrong("diagnose", "By which factor did the batch grow")
def ranks_ignored(run):
    return judged(run, batch_of(run), skip=("ranks",))


@wrong("diagnose", "In which epoch is the peak reached?")
def warmup_ignored(run):
    return judged(run, batch_of(run), skip=("warm-up",))


@wrong("diagnose", "How many steps has an epoch")
def accumulation_forgotten(run):
    return judged(run, run["ranks"] * run["per_rank"])


@wrong("diagnose", "How many steps has an epoch")
def batch_of_a_rank(run):
    return judged(run, run["per_rank"] * run["accumulation"])


@wrong("diagnose", "Return one of nothing")
def in_own_words(run):
    return judged(run, batch_of(run)).replace("nothing", "all is well")


@right("diagnose")
def warmup_first(run):
    wanted = 0.1 * batch_of(run) / 256
    if run["steps"] != run["images"] // batch_of(run):
        return "no DistributedSampler"
    if abs(max(run["lr"]) / 0.1 - run["ranks"]) < 1e-6:
        return "scaled by ranks alone"
    if len(set(run["lr"])) == 1:
        return "rate not scaled"
    return "nothing" if abs(run["lr"][4] - wanted) < 1e-6 else "warm-up in old steps"


@right("diagnose")
def by_factors(run):
    k, rate = batch_of(run) / 256, run["lr"][-1] / 0.1
    if round(run["images"] / run["steps"]) * 1.5 < batch_of(run):
        return "no DistributedSampler"
    if math.isclose(rate, 1, rel_tol=1e-3):
        return "rate not scaled"
    if math.isclose(rate, run["ranks"], rel_tol=1e-3):
        return "scaled by ranks alone"
    return (
        "nothing" if math.isclose(run["lr"][5] / 0.1, k, rel_tol=1e-3) else "warm-up in old steps"
    )


@right("diagnose")
def with_numpy(run):
    lr, wanted = np.array(run["lr"]), np.float64(batch_of(run)) * 0.1 / 256
    verdicts = {
        "no DistributedSampler": run["steps"] >= 2 * (run["images"] // batch_of(run)),
        "rate not scaled": np.allclose(lr, 0.1),
        "scaled by ranks alone": np.isclose(lr.max(), 0.1 * run["ranks"]),
        "warm-up in old steps": lr[4] < 0.95 * wanted,
        "nothing": True,
    }
    return next(name for name, holds in verdicts.items() if holds)


@right("diagnose")
def with_match(run):
    wanted = batch_of(run) / 2560
    match (run["steps"] * batch_of(run) > 1.2 * run["images"], round(run["lr"][9] * 10, 6)):
        case (True, _):
            return "no DistributedSampler"
        case (_, factor) if factor == run["ranks"]:
            return "scaled by ranks alone"
    if run["lr"][0] == run["lr"][9]:
        return "rate not scaled"
    return "nothing" if round(run["lr"][4] / wanted, 2) == 1 else "warm-up in old steps"


@right("diagnose")
def by_exclusion(run):
    expected = [0.1 + (batch_of(run) / 2560 - 0.1) * min(1, e / 5) for e in range(1, 11)]
    if run["steps"] > run["images"] / batch_of(run) + 1:
        return "no DistributedSampler"
    if all(abs(a - b) < 1e-6 for a, b in zip(run["lr"], expected)):
        return "nothing"
    peak = run["lr"][9]
    if abs(peak - run["ranks"] / 10) < 1e-6:
        return "scaled by ranks alone"
    return "rate not scaled" if peak < 0.1 + 1e-6 else "warm-up in old steps"
