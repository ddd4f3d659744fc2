"""The ranks' logs go through the store in which they met, so that no collective is needed."""

import json
import zlib
from contextlib import suppress
from datetime import timedelta

import torch.distributed as dist

from ddp_course.tools.audit.log import Log, from_json, to_json

WAIT = timedelta(seconds=30)
WAIT_AFTER_ERROR = timedelta(seconds=3)  # a rank that raised shouldn't stay long
CHUNK = 4 * 2**20  # bytes; the store takes 8 MiB at once


def exchange(where, log, group, wait):
    """The logs of the group's ranks.

    Ranks pair up by where the `with` stands in the code and how often they came by, so a rank
    that skips one `watch` is missed in that one only.

    Parameters
    ----------
    where : (str, int)
    log : Log
    group : torch.distributed.ProcessGroup or None
    wait : datetime.timedelta

    Returns
    -------
    list of Log
        One each; of a rank that didn't come one that says so in `failed`.
    """
    if not (dist.is_available() and dist.is_initialized()):
        return [log]
    rank = log.rank
    try:
        ranks = dist.get_process_group_ranks(group or dist.group.WORLD)
        prefix = f"audit {where} {zlib.crc32(json.dumps(ranks).encode())}"
        store = dist.PrefixStore(prefix, dist.distributed_c10d._get_default_store())
        packed = zlib.compress(to_json(log).encode())
        parts = [packed[i : i + CHUNK] for i in range(0, len(packed), CHUNK)]
        for i, part in enumerate(parts):
            store.set(f"{rank} part {i}", part)
        store.set(str(rank), str(len(parts)))
        logs = _read(store, rank, ranks, where, wait)
    except Exception as error:
        return [Log(rank, failed=f"rank {rank} could not exchange its log ({error!r:.80})")]
    with suppress(Exception):  # the reports don't need it any more
        if store.add("read", 1) == len(ranks):  # the last one tidies up, nobody waits
            for r in ranks:
                _forget(store, r)
            store.delete_key("read")
    return logs


def _read(store, rank, ranks, where, wait):
    try:
        store.wait([str(r) for r in ranks], wait)
        missing = []
    except dist.DistStoreError:
        missing = [r for r in ranks if not store.check([str(r)])]
    place = "{} (time {})".format(*where)
    logs = []
    for r in ranks:
        if r in missing:
            logs.append(Log(r, failed=f"no word from rank {r}: did it skip the watch at {place}, "
                                      "or does it still wait in a collective?"))  # fmt: skip
            continue
        parts = [store.get(f"{r} part {i}") for i in range(int(store.get(str(r))))]
        gone = Log(r, failed=f"rank {r} waited {wait.seconds} s for all to come, and went on")
        logs.append(from_json(zlib.decompress(b"".join(parts))) if parts else gone)
    if missing:
        _forget(store, rank)  # or one that comes by later takes it for a log of its own time
        store.set(str(rank), "0")
    return logs


def _forget(store, rank):
    for i in range(int(store.get(str(rank)))):
        store.delete_key(f"{rank} part {i}")
    store.delete_key(str(rank))
