"""Each stage of a file beside one process on the full batch, step by step."""

import runpy
import sys
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import own_ddp_check, results
from ddp_course.process_group import process_group

STAGES = ("Flat", "PerParameter", "Hooks", "Buckets")


@record
def main(name="03_own_ddp"):
    own, found = runpy.run_path(str(Path(__file__).with_name(f"{name}.py"))), {}
    with process_group() as me:
        for stage in STAGES:
            if stage not in own:
                continue
            try:
                found[stage] = own_ddp_check.check(me, stage, own[stage])
            except NotImplementedError:
                found[stage] = None
            if me.rank == 0:
                right = "right, within 1e-05 of one process in each step"
                print(f"{stage:12} {right if found[stage] else 'not attempted yet'}")
        results.save(f"{name}_check", {"stages": found}, me.device)


if __name__ == "__main__":
    main(*sys.argv[1:])
