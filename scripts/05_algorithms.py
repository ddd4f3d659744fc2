"""Four all-reduces, written with isend and irecv. Each sums x over the group, in place."""

import torch.distributed as dist

# group_src, group_dst: a rank's number inside the group, not in the whole job.


def exchange(out, to, into, source, group):
    """Send and receive at the same time: if all sent first and then received, all would wait."""
    receiving = dist.irecv(into, group_src=source, group=group)
    sending = dist.isend(out, group_dst=to, group=group)
    receiving.wait()
    sending.wait()


def ring(x, tmp, group):
    """In each step every rank sends one chunk to the right; first sums go round, then results."""
    n, me = group.size(), group.rank()
    chunks = x.tensor_split(n)
    for s in range(2 * n - 2):
        out, into = chunks[(me - s) % n], chunks[(me - s - 1) % n]
        adds = s < n - 1  # the first half is the reduce-scatter, the second the all-gather
        landing = tmp[: len(into)] if adds else into
        exchange(out, (me + 1) % n, landing, (me - 1) % n, group)
        if adds:
            into += landing


def star(x, tmp, group):
    """Rank 0 adds everybody's buffer to its own, then sends the sum to each."""
    if group.rank() == 0:
        for peer in range(1, group.size()):
            dist.recv(tmp, group_src=peer, group=group)
            x += tmp
        for peer in range(1, group.size()):
            dist.send(x, group_dst=peer, group=group)
    else:
        dist.send(x, group_dst=0, group=group)
        dist.recv(x, group_src=0, group=group)


def tree(x, tmp, group):
    """Half of the ranks send their buffer to the other half, and again, until rank 0 has all."""
    n, me, d = group.size(), group.rank(), 1
    while d < n and me % (2 * d) == 0:
        if me + d < n:
            dist.recv(tmp, group_src=me + d, group=group)
            x += tmp
        d *= 2
    if me:  # d is now the distance to the parent
        dist.send(x, group_dst=me - d, group=group)
        dist.recv(x, group_src=me - d, group=group)
    while d > 1:
        d //= 2
        if me % (2 * d) == 0 and me + d < n:
            dist.send(x, group_dst=me + d, group=group)


def halving_doubling(x, tmp, group):
    """Exchange halves, then quarters ... with partners ever nearer; then back. n = 2, 4, 8 ..."""
    n, me = group.size(), group.rank()
    if n & (n - 1):
        raise ValueError(f"halving_doubling takes 2, 4, 8 ... ranks, not {n}")
    bounds = [round(len(x) * i / n) for i in range(n + 1)]
    distances = [n >> i for i in range(1, n.bit_length())]
    for adds, d in [(True, d) for d in distances] + [(False, d) for d in distances[::-1]]:
        partner = me ^ d
        a, b = (r // d * d for r in (me, partner))  # where my half begins, and the partner's
        mine, other = (x[bounds[first] : bounds[first + d]] for first in (a, b))
        out, into = (other, tmp[: len(mine)]) if adds else (mine, other)
        exchange(out, partner, into, partner, group)
        if adds:
            mine += into
