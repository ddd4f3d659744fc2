"""The same training, started by a Python call: set what torchrun would have set."""

import argparse
import os
import runpy
import socket
import sys
from pathlib import Path

import torch.multiprocessing as mp

from ddp_course import results

TRAINING = Path(__file__).with_name("03_ddp.py")


def worker(rank, world_size, port):
    told = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": world_size}
    told |= {"LOCAL_WORLD_SIZE": world_size, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in told.items()})
    sys.argv = [str(TRAINING), "--epochs", "2"]
    runpy.run_path(str(TRAINING), run_name="__main__")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    args = parser.parse_args()
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    # Its result goes to a folder of its own, not over that of the real training.
    os.environ["DDP_COURSE_RUNS"] = str(results.path("03_spawn").with_suffix(""))
    mp.spawn(worker, args=(args.ranks, port), nprocs=args.ranks)
