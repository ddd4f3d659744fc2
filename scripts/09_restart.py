"""What a restarted rank finds in torchrun's store, before it joins the others and after."""

import os
import signal
import time

import torch.distributed as dist

from ddp_course import results
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather
from ddp_course.tools.errors import CourseError


def addresses():
    """Keys under which gloo ranks left their addresses in torchrun's store, in all attempts."""
    address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    if os.environ["TORCHELASTIC_USE_AGENT_STORE"] != "True":
        return []  # a new store for each attempt: rank 0 will start it
    store = dist.TCPStore(address, port, is_master=False)
    return sorted(key for key in store.list_keys() if "//cpu//" in key)


def main():
    os.environ["DDP_COURSE_DEVICE"] = "cpu"  # this is about gloo's addresses
    attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    own = f"attempt {attempt}/"  # a faster peer may have joined already
    before = [key for key in addresses() if not key.startswith(own)] if attempt else []
    with process_group() as me:
        if os.environ["TORCHELASTIC_MAX_RESTARTS"] == "0":
            raise CourseError("this is about restarts: type  --max-restarts 1")
        if attempt == 0:
            dist.barrier()
            if me.rank == 1:
                os.kill(os.getpid(), signal.SIGKILL)
            time.sleep(60)  # torchrun ends this rank as soon as it sees that rank 1 is gone
        joined = [key for key in addresses() if key.startswith(own)]
        everyone = gather({"before": before, "joined": joined})
        results.save("09_restart", {"ranks": everyone})
        if me.rank == 0:
            print(f"attempt {attempt}: joined, {len(before)} old addresses in the store")


if __name__ == "__main__":
    main()
