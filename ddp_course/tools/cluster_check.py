"""The first script for any cluster: who is where, clocks, bandwidth of each pair, all-reduce.

    torchrun ... -m ddp_course.tools.cluster_check        on each node, with your own options

It sends messages between ranks and looks at this process; it changes nothing. What it can't see:
a link that is slow only under load of all pairs at once, and errors of cables that are repaired
by sending again.
"""

import contextlib
import os
import platform
import socket
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course.tools.collectives import gather, leave_group, synchronize
from ddp_course.tools.errors import CourseError
from ddp_course.tools.launched import world_of_one

PAIR_BYTES, ALL_BYTES = 2 * 2**20, 8 * 2**20
ALL_PAIRS = 16  # up to so many ranks every pair is measured, beyond only the first of each node


def address_towards(host):
    """The address of this node from which packets to a host would leave.

    Returns
    -------
    str
        Or "no route (...)" with the reason.
    """
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as s:
            s.connect(target)  # UDP: chooses a route, sends nothing
            return s.getsockname()[0]
    except OSError as error:
        return f"no route ({error.strerror})"


def listening(pid):
    """Addresses on which a process of this node waits for connections.

    Returns
    -------
    list of str
        Such as "127.0.0.1 port 29500"; empty where there is no /proc (only Linux has it).
    """
    try:
        own, found = set(), set()
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):  # closed meanwhile
                own.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
        for family, file in ((socket.AF_INET, "tcp"), (socket.AF_INET6, "tcp6")):
            for line in Path(f"/proc/{pid}/net/{file}").read_text().splitlines()[1:]:
                _, local, _, state, *_, inode = line.split()[:10]
                if state == "0A" and f"socket:[{inode}]" in own:
                    words = bytes.fromhex(local.split(":")[0])
                    raw = b"".join(words[i : i + 4][::-1] for i in range(0, len(words), 4))
                    port = int(local.split(":")[1], 16)
                    found.add(f"{socket.inet_ntop(family, raw)} port {port}")
        return sorted(found)
    except OSError:
        return []


def who(device):
    """What this rank knows about itself: a dict of numbers and strings."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    chosen = os.environ.get("GLOO_SOCKET_IFNAME") or os.environ.get("NCCL_SOCKET_IFNAME")
    return {
        "host": socket.gethostname(),
        "node": int(os.environ.get("GROUP_RANK", 0)),
        "local_rank": int(os.environ.get("LOCAL_RANK", 0)),
        "device": str(device),
        "address": address_towards(os.environ.get("MASTER_ADDR", "localhost")),
        "chosen interface": chosen,
        "listens": listening(os.getpid()),
        "torchrun listens": listening(os.getppid()),
        "torch": torch.__version__,
        "nccl": str(torch.cuda.nccl.version()) if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "cores": cores,
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }


def clock_offset(peer, gloo, rounds=10):
    """Seconds that this rank's clock is ahead of rank 0's: from the fastest of some round trips.

    On gloo, whose send and recv end when the message has gone or come; nccl's are only queued.
    """
    rank, best = dist.get_rank(), (float("inf"), 0.0)
    for _ in range(rounds):
        message = torch.zeros(1, dtype=torch.float64)
        if rank == peer:
            sent = time.time()
            dist.send(message, 0, group=gloo)
            dist.recv(message, 0, group=gloo)
            back = time.time()
            best = min(best, (back - sent, (sent + back) / 2 - message.item()))
        elif rank == 0:
            dist.recv(message, peer, group=gloo)
            message[0] = time.time()
            dist.send(message, peer, group=gloo)
    return best[1]


def one_way(a, b, device, repeats=3):
    """Seconds for PAIR_BYTES from rank a to b and a word back, the fastest; a knows it."""
    data = torch.ones(PAIR_BYTES // 4, device=device)
    best = float("inf")
    for _ in range(repeats + 1):  # the first one opens the connection
        start = time.perf_counter()
        for sender, receiver, part in ((a, b, data), (b, a, data[:1])):
            if dist.get_rank() == sender:
                dist.send(part, receiver)
            elif dist.get_rank() == receiver:
                dist.recv(part, sender)
        synchronize(device)
        best = min(best, time.perf_counter() - start)
    return best


def pairs_to_measure(everyone):
    """(a, b) of ranks; `everyone` is what `who` returned, by rank."""
    first = [r for r, them in enumerate(everyone) if them["local_rank"] == 0]
    ranks = range(len(everyone)) if len(everyone) <= ALL_PAIRS else first
    return [(a, b) for a in ranks for b in ranks if a != b]


def bus_bandwidth(device, repeats=5):
    """Bytes per second of an all-reduce, the fastest: algbw * 2(N-1)/N, as nccl-tests define it."""
    data, best = torch.ones(ALL_BYTES // 4, device=device), float("inf")
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(data)
        synchronize(device)
        best = min(best, time.perf_counter() - start)
    world_size = dist.get_world_size()
    return ALL_BYTES / best * 2 * (world_size - 1) / world_size


def measure(device):
    """Measure; call it on every rank, inside a process group.

    Parameters
    ----------
    device : torch.device
        Of this rank; tensors are sent from there.

    Returns
    -------
    dict
        ranks : list of dict, see `who`; offsets : list of float, seconds a rank's clock is ahead
        of rank 0's; links : list of [a, b, bytes per second]; busbw : float, bytes per second,
        of the fastest all-reduce that this rank saw.
    """
    everyone, world_size = gather(who(device)), dist.get_world_size()
    offsets, gloo = [0.0] * world_size, dist.new_group(backend="gloo")
    for peer in range(1, world_size):
        offsets[peer] = clock_offset(peer, gloo)
        dist.barrier()
    offsets = [theirs[rank] for rank, theirs in enumerate(gather(offsets))]
    links = []
    for a, b in pairs_to_measure(everyone):
        links.append([a, b, PAIR_BYTES / one_way(a, b, device)])
        dist.barrier()  # one pair at a time
    every = gather(links)  # the sender's time counts
    links = [every[a][i] for i, (a, _, _) in enumerate(links)]
    busbw = bus_bandwidth(device)
    return {"ranks": everyone, "offsets": offsets, "links": links, "busbw": busbw}


def describe(found):
    """What `measure` found, in lines for people: a list of str."""
    everyone, links, lines = found["ranks"], found["links"], []
    for rank, them in enumerate(everyone):
        lines.append(
            f"rank {rank}: node {them['node']} ({them['host']}), local rank "
            f"{them['local_rank']}, {them['device']}, from {them['address']}, "
            f"clock {found['offsets'][rank] * 1e3:+.1f} ms"
        )
    for what in ("torch", "nccl", "python", "cores", "OMP_NUM_THREADS"):
        values = [them[what] for them in everyone]
        if len(set(map(str, values))) > 1:
            lines.append(f"differs between ranks: {what} {values}")
    if not links:
        return [*lines, "one rank only, so no link to measure: start more with torchrun"]
    median = statistics.median(speed for _, _, speed in links)
    a, b, speed = min(links, key=lambda link: link[2])
    nodes = everyone[a]["node"], everyone[b]["node"]
    lines.append(
        f"slowest: from rank {a} to {b} (node {nodes[0]} to {nodes[1]}), "
        f"{speed / 1e9:.3f} GB/s; median {median / 1e9:.3f} GB/s"
    )
    mib, busbw = ALL_BYTES / 2**20, found["busbw"] / 1e9
    return [*lines, f"all-reduce of {mib:.0f} MiB: busbw {busbw:.3f} GB/s"]


def refuse_world_of_one():
    """Raise a CourseError where the launcher meant several ranks and this is the only one."""
    if words := world_of_one(int(os.environ.get("WORLD_SIZE", 1))):
        raise CourseError(words)


def join():
    """Join the process group as the environment says, on the GPU of this rank if each has one.

    Returns
    -------
    torch.device
    """
    local_rank = int(os.environ.get("LOCAL_RANK", 0))
    # All of a node's ranks decide alike: with one GPU for two, nccl would wait for gloo.
    ranks = int(os.environ.get("LOCAL_WORLD_SIZE", local_rank + 1))
    cuda = dist.is_nccl_available() and torch.cuda.device_count() >= ranks
    device = torch.device("cuda", local_rank) if cuda else torch.device("cpu")
    if cuda:
        torch.cuda.set_device(device)
    backend = "nccl" if cuda else "gloo"
    if "RANK" in os.environ:
        dist.init_process_group(backend)
    else:  # started by hand, on this machine alone
        dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    return device


@record
def main():
    try:
        refuse_world_of_one()
    except CourseError as error:
        sys.exit(str(error))
    device = join()
    try:
        found = measure(device)
        if dist.get_rank() == 0:
            print(*describe(found), sep="\n", flush=True)
    finally:
        leave_group()


if __name__ == "__main__":
    main()
