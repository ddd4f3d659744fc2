"""One model, one test set, five ways to compute its accuracy on several ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, DistributedSampler

from ddp_course import data, results
from ddp_course.models import SmallCNN
from ddp_course.process_group import process_group


def half_trained(me, train):
    """A model that errs now and then, the same on every rank."""
    torch.manual_seed(0)
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(2):
        for pixels, labels in DataLoader(train, 32, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(pixels), labels).backward()
            optimizer.step()
    return model.to(me.device).eval()


def summed(me, *numbers):
    """The sums over all ranks."""
    total = torch.tensor(numbers, dtype=torch.float64, device=me.device)
    dist.all_reduce(total)
    return total.tolist()


def gathered(me, mine):
    """The ranks' lists in one, in the order of ranks."""
    ranks = [None] * me.world_size
    dist.all_gather_object(ranks, mine)
    return [item for rank in ranks for item in rank]


@torch.no_grad()
def five_ways(me, model, pixels, labels):
    samples = len(labels)
    right = (model(pixels.to(me.device)).argmax(1).cpu() == labels).tolist()
    predicted = model(pixels.to(me.device)).argmax(1).tolist()
    padded = list(DistributedSampler(range(samples), shuffle=False))
    exact = padded if me.rank + (len(padded) - 1) * me.world_size < samples else padded[:-1]
    ways = {}
    correct, total = summed(me, sum(right[i] for i in padded), len(padded))
    ways["padded, counts"] = correct / total
    by_index = dict(gathered(me, [(i, right[i]) for i in padded]))  # a duplicate overwrites
    ways["padded, duplicates dropped"] = sum(by_index.values()) / len(by_index)
    correct, total = summed(me, sum(right[i] for i in exact), len(exact))
    ways["not padded, counts"] = correct / total
    (mean,) = summed(me, sum(right[i] for i in exact) / len(exact))
    ways["not padded, mean of means"] = mean / me.world_size
    guesses = gathered(me, [predicted[i] for i in exact])
    ways["gathered, order forgotten"] = sum(g == y for g, y in zip(guesses, labels)) / samples
    ways = {way: float(accuracy) for way, accuracy in ways.items()}
    return {"truth": sum(right) / samples, "drawn": len(padded) * me.world_size, "ways": ways}


@record
def main():
    images = data.load("digits")
    with process_group() as me:
        model = half_trained(me, images.train)
        pixels, labels = next(iter(DataLoader(images.test, batch_size=360)))
        found = {n: five_ways(me, model, pixels[:n], labels[:n]) for n in (13, 17, 360)}
        results.save("04_evaluate", {"by_samples": found}, me.device)
        if me.rank == 0:
            print("drawn:", {n: f["drawn"] for n, f in found.items()})


if __name__ == "__main__":
    main()
