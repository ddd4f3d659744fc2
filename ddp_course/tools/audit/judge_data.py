"""Is the data split? By the indices that are drawn, and by the samples that enter the model."""

from collections import Counter
from typing import NamedTuple

from ddp_course.tools.audit.log import Epoch

CUT_UP = "but no common samples seen in the model: data cut up beforehand?"

UNSEEN = {
    "nothing": "pass loader= to see more",
    "stream": "the loader has no indices: what was left out can't be seen",
    "indices": "the loader that was passed drew nothing for these steps",
}


def judge_data(report, logs):
    """Answer for the data.

    Parameters
    ----------
    report : Report
        Its `split` is filled, and notes added.
    logs : list of Log
    """
    verdict, epochs = report.split, list(zip(*map(_training_epochs, logs)))
    again = list(_comes_again(logs, epochs))
    if not epochs:
        _judge_inputs(verdict, logs)
        if verdict.answer is None:
            verdict.evidence.append(UNSEEN[logs[0].given])
        report.notes += again
        return
    verdict.answer, base = True, logs[0].loaders["train"]
    one_seed = len({log.seed for log in logs}) == 1
    for at, ranks in enumerate(epochs):
        if verdict.answer:
            _judge_epoch(verdict, at, ranks, base, one_seed)
    for at, (ranks, following) in enumerate(zip(epochs, epochs[1:])):
        both = list(zip(ranks[0].draws, following[0].draws))
        if base.shuffles and len(both) > 2 and all(a == b for a, b in both):
            verdict.answer = False
            verdict.evidence.append(f"epoch {at + 1} has the order of the one before: set_epoch?")
            again = []
            break
    report.notes += again
    if any(log.epochs["validation"] for log in logs):
        _judge_leakage(verdict, logs)
    sizes = [log.loaders["train"].size for log in logs]
    if len(set(sizes)) > 1:
        verdict.evidence.append(f"sizes of the data by rank: {sizes}")


def _training_epochs(log):
    """Epochs in which steps were made (not a peek at one batch), with what entered the model."""
    epochs, found = log.epochs["train"], []
    ends = [*epochs[1:], Epoch(len(log.steps), len(log.inputs))]
    for epoch, end in zip(epochs, ends):
        if end.steps > epoch.steps:
            batches = log.inputs[epoch.inputs : end.inputs]
            found.append(_Epoch(epoch.draws, epoch.whole, [b for batch in batches for b in batch]))
    return found


class _Epoch(NamedTuple):
    draws: list  # indices
    whole: bool
    inputs: list  # fingerprints of the samples that entered the model


def _judge_epoch(verdict, at, ranks, base, one_seed):
    n, size, distributed = len(ranks), base.size, base.distributed
    draws, inputs = [epoch.draws for epoch in ranks], [epoch.inputs for epoch in ranks]
    every = [i for own in draws for i in own]
    extra, left = len(every) - len(set(every)), size - len(set(every))
    across, within, samples = _overlap(inputs)

    def say(answer, words):
        verdict.answer = answer
        verdict.evidence.append(f"epoch {at}: {words}")

    if len(set(map(len, draws))) > 1:
        say(True, f"draws by rank {list(map(len, draws))}")
    if _one_order(draws):
        say(False, "the same draws in the same order on all ranks (overlap)")
        if not distributed and samples and across <= samples / 2:
            say(None, CUT_UP)
    elif not distributed and any(len(set(own)) < len(own) for own in draws):
        say(None, "drawn with replacement, so overlap tells nothing")
    elif extra > (-size % n if distributed else min(n * base.batch, size // 4)):
        say(False, f"{extra} draws more than samples drawn (overlap)")
        if not distributed and across <= samples / 2:
            say(None, CUT_UP)
    elif all(epoch.whole for epoch in ranks) and left > (
        n - 1 + n * base.drops if distributed else size / 4
    ):
        asks = f" (num_replicas is {base.replicas})" if distributed else ""
        say(False if distributed else None, f"{left} of {size} samples drawn by no rank{asks}")
    elif across > 5 * (n - 1) * within + samples / 10 + 2 * n:
        # Noise from one seed, or unshuffled data that holds its samples twice, looks so, too.
        noise = one_seed and all(len(set(bits)) < n for bits in zip(*inputs))
        say(
            False if base.shuffles and not noise else None,
            f"{across} of {samples} samples entered the model on several ranks, though indices "
            "differ: is the data in another order on each rank?",
        )
    elif extra:
        say(True, f"{extra} drawn twice, as padding")
    elif at == 0:
        say(True, f"each of {size - left} samples on one rank" + f", {left} not drawn" * (left > 0))


def _one_order(draws):
    """Whether all ranks drew alike, as far as the shortest goes; one sample alone may be chance."""
    shortest = min(map(len, draws))
    return shortest > 1 and len({tuple(own[:shortest]) for own in draws}) == 1


def _comes_again(logs, epochs):
    """A note where batches come again in the same order, though nobody asked for that order."""
    loader = logs[0].loaders.get("train")
    if loader and loader.ordered:
        return
    steps = min(filter(None, (_period(log.inputs) for log in logs)), default=None)
    if steps and all(_period(log.inputs) for log in logs):
        yield (
            f"batches come again in the same order every {steps} steps: does set_epoch reach the "
            "sampler, and the loader's workers (persistent_workers), before they begin?"
        )
        return
    for at, (ranks, following) in enumerate(zip(epochs, epochs[1:])):
        both = list(zip(ranks[0].draws, following[0].draws))
        if len(both) > 2 and all(a == b for a, b in both):
            yield f"epoch {at + 1} draws in the order of epoch {at}: a generator seeded anew?"
            return


def _period(inputs):
    """After how many batches a whole run of them came again in order; None if none did."""
    batches = [tuple(batch) for batch in inputs]
    batches = [b for b, before in zip(batches, [None, *batches]) if b != before]  # used twice
    often = Counter(batches)
    batches = [b for b in batches if often[b] > 1]  # without a GAN's fakes among them
    last, lag, run = {}, None, 0
    for at, batch in enumerate(batches):
        now = at - last[batch] if batch in last else None
        run = run + 1 if now and now == lag else int(bool(now))
        lag, last[batch] = now, at
        # One sample a batch and few of them may fall in one order twice by chance.
        if lag and lag > 1 and run >= lag and run * len(batch) >= 6:
            return lag
    return None


def _overlap(inputs):
    """How many samples are on other ranks too, how many twice on their own, and of how many."""
    own, every = [Counter(bits) for bits in inputs], Counter(b for bits in inputs for b in bits)
    across = sum(k for counts in own for bits, k in counts.items() if every[bits] > k)
    within = sum(k for counts in own for k in counts.values() if k > 1)
    return across, within, every.total()


def _judge_inputs(verdict, logs):
    """Without indices: are the batches that enter the model at the same step the same ones?"""
    steps = list(zip(*(log.inputs for log in logs)))
    if not steps:
        verdict.evidence.append("no samples were seen on some rank")
        return
    alike = sum(len(set.intersection(*map(set, step))) > len(step[0]) / 2 for step in steps)
    own = logs[0].inputs
    if len(own) > 1 and all(batch == own[0] for batch in own):
        verdict.evidence.append("the first input is the same at every step, so it tells nothing")
    elif alike > len(steps) / 2:
        verdict.answer = False
        verdict.evidence.append(f"the same samples on all ranks in {alike} of {len(steps)} steps")
    else:
        verdict.evidence.append("ranks have other samples at the same step")


def _judge_leakage(verdict, logs):
    for log in logs:
        if log.loaders["train"].dataset != log.loaders["validation"].dataset:
            verdict.evidence.append("validation is another data set: leakage can't be seen")
            return
    seen = {
        kind: {
            i % log.loaders[kind].length
            for log in logs
            for epoch in log.epochs[kind]
            for i in epoch.draws
        }
        for kind in ("train", "validation")
    }
    if both := seen["train"] & seen["validation"]:
        verdict.answer = False
        verdict.evidence.append(f"{len(both)} samples are in training and in validation")
