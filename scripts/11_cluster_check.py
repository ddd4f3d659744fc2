"""The first script for any cluster, and what it finds as a file for the notebook."""

import argparse
import runpy
from pathlib import Path

from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.process_group import process_group
from ddp_course.tools import cluster_check


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", help="a card to slow down afterwards, see 11_link_speed.py")
    parser.add_argument("--mbit", type=int, nargs="+", default=[50, 100, 200, 400, 1000])
    args = parser.parse_args()
    with process_group() as me:
        cluster_check.refuse_world_of_one()
        found = cluster_check.measure(me.device)
        if args.device:
            library = runpy.run_path(str(Path(__file__).with_name("11_link_speed.py")))
            found["link speed"] = library["sweep"](me, args.device, args.mbit)
        results.save("11_cluster_check", found, me.device)
        if me.rank == 0:
            print(*cluster_check.describe(found), sep="\n")


if __name__ == "__main__":
    main()
