"""The first script for any cluster: who is where, clocks, bandwidth of each pair, all-reduce."""

import argparse
import contextlib
import os
import platform
import runpy
import socket
import statistics
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed.elastic.multiprocessing.errors import record

from ddp_course import results
from ddp_course.hardware import count_cores
from ddp_course.process_group import process_group
from ddp_course.tools.collectives import gather

PAIR_BYTES, ALL_BYTES = 2 * 2**20, 8 * 2**20
ALL_PAIRS = 16  # up to so many ranks every pair is measured, beyond only the first of each node


def address_towards(host):
    """The address of this node from which packets to host would leave."""
    try:
        family, kind, _, _, target = socket.getaddrinfo(host, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as s:
            s.connect(target)  # UDP: chooses a route, sends nothing
            return s.getsockname()[0]
    except OSError as error:
        return f"no route ({error.strerror})"


def listening(pid):
    """Addresses on which a process of this node waits for connections (Linux; else [])."""
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


def who(me):
    return {
        "host": socket.gethostname(),
        "node": int(os.environ.get("GROUP_RANK", 0)),
        "local_rank": me.local_rank,
        "device": str(me.device),
        "address": address_towards(os.environ["MASTER_ADDR"]),
        "chosen interface": os.environ.get("GLOO_SOCKET_IFNAME")
        or os.environ.get("NCCL_SOCKET_IFNAME"),
        "listens": listening(os.getpid()),
        "torchrun listens": listening(os.getppid()),
        "torch": torch.__version__,
        "nccl": str(torch.cuda.nccl.version()) if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "cores": count_cores(),
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS"),
    }


def clock_offset(me, peer, gloo, rounds=10):
    """Seconds that this rank's clock is ahead of rank 0's: from the fastest of some round trips.

    On gloo, whose send and recv end when the message has gone or come; nccl's are only queued.
    """
    best = (float("inf"), 0.0)
    for _ in range(rounds):
        message = torch.zeros(1, dtype=torch.float64)
        if me.rank == peer:
            sent = time.time()
            dist.send(message, 0, group=gloo)
            dist.recv(message, 0, group=gloo)
            back = time.time()
            best = min(best, (back - sent, (sent + back) / 2 - message.item()))
        elif me.rank == 0:
            dist.recv(message, peer, group=gloo)
            message[0] = time.time()
            dist.send(message, peer, group=gloo)
    return best[1]


def one_way(me, a, b, repeats=3):
    """Seconds for PAIR_BYTES from a to b and a word back, the fastest; a knows it."""
    data = torch.ones(PAIR_BYTES // 4, device=me.device)
    best = float("inf")
    for _ in range(repeats + 1):  # the first one opens the connection
        start = time.perf_counter()
        for sender, receiver, part in ((a, b, data), (b, a, data[:1])):
            if me.rank == sender:
                dist.send(part, receiver)
            elif me.rank == receiver:
                dist.recv(part, sender)
        if me.device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return best


def pairs_to_measure(everyone):
    first = [r for r, them in enumerate(everyone) if them["local_rank"] == 0]
    ranks = range(len(everyone)) if len(everyone) <= ALL_PAIRS else first
    return [(a, b) for a in ranks for b in ranks if a != b]


def bus_bandwidth(me, repeats=5):
    """Bytes per second of an all-reduce in nccl-tests' definition (lesson 00)."""
    data, best = torch.ones(ALL_BYTES // 4, device=me.device), float("inf")
    for _ in range(repeats):
        dist.barrier()
        start = time.perf_counter()
        dist.all_reduce(data)
        if me.device.type == "cuda":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - start)
    return ALL_BYTES / best * 2 * (me.world_size - 1) / me.world_size


def report(everyone, offsets, links, busbw):
    for rank, them in enumerate(everyone):
        print(f"rank {rank}: node {them['node']} ({them['host']}), local rank "
              f"{them['local_rank']}, {them['device']}, from {them['address']}, "
              f"clock {offsets[rank] * 1e3:+.1f} ms")  # fmt: skip
    for what in ("torch", "nccl", "python", "cores", "OMP_NUM_THREADS"):
        if len({str(them[what]) for them in everyone}) > 1:
            print(f"differs between ranks: {what} {[them[what] for them in everyone]}")
    if links:
        median = statistics.median(speed for _, _, speed in links)
        a, b, speed = min(links, key=lambda link: link[2])
        nodes = everyone[a]["node"], everyone[b]["node"]
        print(f"slowest: from rank {a} to {b} (node {nodes[0]} to {nodes[1]}), "
              f"{speed / 1e9:.3f} GB/s; median {median / 1e9:.3f} GB/s")  # fmt: skip
    print(f"all-reduce of {ALL_BYTES / 2**20:.0f} MiB: busbw {busbw / 1e9:.3f} GB/s")


@record
def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--device", help="a card to slow down afterwards, see 11_link_speed.py")
    parser.add_argument("--mbit", type=int, nargs="+", default=[50, 100, 200, 400, 1000])
    args = parser.parse_args()
    with process_group() as me:
        everyone = gather(who(me))
        offsets, gloo = [0.0] * me.world_size, dist.new_group(backend="gloo")
        for peer in range(1, me.world_size):
            offsets[peer] = clock_offset(me, peer, gloo)
            dist.barrier()
        offsets = [theirs[rank] for rank, theirs in enumerate(gather(offsets))]
        links = []
        for a, b in pairs_to_measure(everyone):
            links.append([a, b, PAIR_BYTES / one_way(me, a, b)])
            dist.barrier()  # one pair at a time
        every = gather(links)  # the sender's time counts
        links = [every[a][i] for i, (a, _, _) in enumerate(links)]
        busbw = bus_bandwidth(me)
        found = {"ranks": everyone, "offsets": offsets, "links": links, "busbw": busbw}
        if args.device:
            library = runpy.run_path(str(Path(__file__).with_name("11_link_speed.py")))
            found["link speed"] = library["sweep"](me, args.device, args.mbit)
        results.save("11_cluster_check", found, me.device)
        if me.rank == 0:
            report(everyone, offsets, links, busbw)


if __name__ == "__main__":
    main()
