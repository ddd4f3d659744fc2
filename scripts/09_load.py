"""Where does torch.load put a checkpoint that rank 0 saved from its GPU?"""

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.process_group import process_group


def on_gpus(me, path, **where):
    """MiB that this rank's load takes on each GPU."""
    before = [torch.cuda.memory_allocated(gpu) for gpu in range(torch.cuda.device_count())]
    loaded = torch.load(path, weights_only=True, **where)
    after = [torch.cuda.memory_allocated(gpu) for gpu in range(torch.cuda.device_count())]
    del loaded
    return [(b - a) / 2**20 for a, b in zip(before, after)]


@record
def main():
    path = results.path("09_load").with_suffix(".pt")
    with process_group() as me:
        if me.rank == 0:
            torch.save({"weights": torch.zeros(4 * 2**20, device=me.device)}, path)  # 16 MiB
        dist.barrier()
        mine = {
            "plain": on_gpus(me, path),
            "map_location=cpu": on_gpus(me, path, map_location="cpu"),
            "map_location=device": on_gpus(me, path, map_location=me.device),
        }
        everyone = [None] * me.world_size
        dist.all_gather_object(everyone, mine)
        results.save("09_load", {"ranks": everyone}, me.device)
        if me.rank == 0:
            for how in mine:
                print(
                    f"{how:20} MiB by GPU:", *(f"rank {r} {x[how]}" for r, x in enumerate(everyone))
                )


if __name__ == "__main__":
    main()
