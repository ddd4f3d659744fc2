"""A stream that nobody divides, and one that is divided by rank: who reads what?"""

import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record
from torch.utils.data import DataLoader, IterableDataset

from ddp_course import results
from ddp_course.process_group import process_group


class Stream(IterableDataset):
    """Twenty records; every ``of``-th of them, from ``first`` on."""

    def __init__(self, first=0, of=1):
        self.first, self.of = first, of

    def __iter__(self):
        return iter(range(self.first, 20, self.of))


def read(stream):
    return [int(i) for batch in DataLoader(stream, batch_size=4, num_workers=2) for i in batch]


@record
def main():
    with process_group() as me:
        mine = {"given whole": read(Stream()), "by rank": read(Stream(me.rank, me.world_size))}
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("04_stream", {"ranks": everyone}, me.device)
        if me.rank == 0:
            print("records that rank 0 read:", {k: len(v) for k, v in mine.items()})


if __name__ == "__main__":
    main()
