"""Lesson 08: wrong answers, each with what the check must say, and other right ones."""

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
