"""One model, one test set, six ways to compute its accuracy on several ranks."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, Dataset, DistributedSampler, Subset

from ddp_course import data, results
from ddp_course.models import SmallCNN
from ddp_course.process_group import process_group


class WithIndex(Dataset):
    """The same samples, and the index of each: gathering needs to know who is who."""

    def __init__(self, dataset):
        self.dataset = dataset

    def __len__(self):
        return len(self.dataset)

    def __getitem__(self, i):
        return *self.dataset[i], i


def half_trained(me):
    """A model that errs now and then, the same on every rank."""
    torch.manual_seed(0)
    images = data.load("digits")
    model = SmallCNN()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(2):
        for pixels, labels in DataLoader(images.train, 32, shuffle=True):
            optimizer.zero_grad()
            F.cross_entropy(model(pixels), labels).backward()
            optimizer.step()
    return model.to(me.device), images.test


@torch.no_grad()
def predict(model, test, sampler, me):
    """(indices, predictions, labels) of what this rank's sampler draws."""
    parts = []
    for pixels, labels, indices in DataLoader(WithIndex(test), 4, sampler=sampler):
        parts.append((indices, model(pixels.to(me.device)).argmax(1).cpu(), labels))
    return [torch.cat(column).tolist() for column in zip(*parts)]


def reduce_counts(me, correct, total):
    """Accuracy from sums over all ranks: right whatever each rank's share is."""
    counts = torch.tensor([correct, total], dtype=torch.float64, device=me.device)
    dist.all_reduce(counts)
    return (counts[0] / counts[1]).item()


def gather(columns, me):
    ranks = [None] * me.world_size
    dist.all_gather_object(ranks, columns)
    return [[v for rank in ranks for v in rank[i]] for i in range(3)]


def six_ways(model, test, me):
    padding = DistributedSampler(test, shuffle=False)
    exact = range(me.rank, len(test), me.world_size)  # any list of indices is a sampler
    columns = predict(model, test, padding, me)
    correct = [p == y for p, y in zip(*columns[1:])]
    found = {"padded": reduce_counts(me, sum(correct), len(correct))}

    gathered = gather(columns, me)
    by_index = {i: (p, y) for i, p, y in zip(*gathered)}  # a duplicate overwrites its twin
    found["padded, duplicates dropped"] = sum(p == y for p, y in by_index.values()) / len(by_index)

    columns = predict(model, test, exact, me)
    correct = [p == y for p, y in zip(*columns[1:])]
    found["not padded, counts reduced"] = reduce_counts(me, sum(correct), len(correct))
    mean = torch.tensor(sum(correct) / len(correct), dtype=torch.float64, device=me.device)
    dist.all_reduce(mean)
    found["not padded, mean of means"] = mean.item() / me.world_size

    indices, predictions, labels = gather(columns, me)
    order = sorted(range(len(indices)), key=indices.__getitem__)
    in_order = [predictions[k] for k in order]
    truth = [test[i][1].item() for i in range(len(test))]
    found["gathered, put in order"] = sum(p == y for p, y in zip(in_order, truth)) / len(test)
    found["gathered, order forgotten"] = sum(p == y for p, y in zip(predictions, truth)) / len(test)
    return found, len(gathered[0])


@record
def main():
    with process_group() as me:
        model, test = half_trained(me)
        found = {}
        for samples in (13, 17, 360):
            part = Subset(test, range(samples))
            ways, drawn = six_ways(model, part, me)
            everything = predict(model, part, range(samples), me)
            truth = sum(p == y for p, y in zip(*everything[1:])) / samples
            found[samples] = {"truth": truth, "drawn": drawn, "ways": ways}
            if me.rank == 0:
                print(f"{samples} samples, {drawn} drawn: true accuracy {truth:.4f}")
        results.save("04_evaluate", {"by_samples": found}, me.device)


if __name__ == "__main__":
    main()
