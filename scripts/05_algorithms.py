"""Four all-reduces, written with isend and irecv. Each sums x over the group, in place."""

import torch
import torch.distributed as dist

# group_src, group_dst: a rank's number inside the group, not in the whole job.
SEGMENT = 2 * 2**20 // 4  # elements, 2 MiB: one segment is added up while the next is on its way


class Ring:
    """Partial sums go round, then finished sums. Buffers are made once, for one x.

    Three ranks, seen from rank 0: step 0 sends chunk 0 and adds chunk 2; step 1 sends 2, adds 1;
    step 2 sends 1 (finished), receives 0; step 3 sends 0, receives 2.
    """

    def __init__(self, x, group):
        self.group, self.n, self.me = group, group.size(), group.rank()
        self.right = dist.get_global_rank(group, (self.me + 1) % self.n)
        self.left = dist.get_global_rank(group, (self.me - 1) % self.n)
        self.chunks = [c.split(SEGMENT) for c in x.tensor_split(self.n)]
        # Two buffers in turn: one is filled while the other is added up.
        self.landing = [[torch.empty_like(s) for s in self.chunks[0]] for _ in range(2)]

    def arriving(self, s):
        """Segments of x that step s brings in: one chunk to the left of those before."""
        shift = s + 1 if s < self.n - 1 else s - (self.n - 1)
        return self.chunks[(self.me - shift) % self.n]

    def post(self, s):
        """Be ready for the messages of step s before they are sent."""
        if s == 2 * self.n - 2:
            return []
        segments = self.arriving(s)
        if s < self.n - 1:  # reduce-scatter: what comes is still to be added
            segments = [buf[: len(seg)] for buf, seg in zip(self.landing[s % 2], segments)]
        return [dist.irecv(seg, self.left, self.group) for seg in segments]

    def __call__(self):
        steps = 2 * self.n - 2
        if not steps:
            return
        receiving = self.post(0)
        sending = [dist.isend(seg, self.right, self.group) for seg in self.chunks[self.me]]
        for s in range(steps):
            upcoming = self.post(s + 1)
            for i, (seg, work) in enumerate(zip(self.arriving(s), receiving)):
                work.wait()
                if s < self.n - 1:
                    seg += self.landing[s % 2][i][: len(seg)]
                if s + 1 < steps:  # what has come in is what goes out next
                    sending.append(dist.isend(seg, self.right, self.group))
            receiving = upcoming
        # Not waited for until here, and yet nothing was overwritten too early: a finished segment
        # comes only after its partial sum, our message, has gone all the way round.
        for work in sending:
            work.wait()


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
    n, me = group.size(), group.rank()
    d = 1
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
    for d in distances:
        partner = me ^ d
        a, b = (r // d * d for r in (me, partner))  # halves: one to finish, one to give away
        keep, give = (x[bounds[first] : bounds[first + d]] for first in (a, b))
        work = dist.irecv(tmp[: len(keep)], group_src=partner, group=group)
        other = dist.isend(give, group_dst=partner, group=group)
        work.wait()
        keep += tmp[: len(keep)]
        other.wait()
    for d in reversed(distances):
        partner = me ^ d
        a, b = (r // d * d for r in (me, partner))
        have, get = (x[bounds[first] : bounds[first + d]] for first in (a, b))
        work = dist.irecv(get, group_src=partner, group=group)
        other = dist.isend(have, group_dst=partner, group=group)
        work.wait()
        other.wait()


def algorithms(x, group):
    """{name: function without arguments that sums x over the group, in place}"""
    tmp, ring = torch.empty_like(x), Ring(x, group)
    return {
        "gloo": lambda: dist.all_reduce(x, group=group),
        "ring": ring,
        "star": lambda: star(x, tmp, group),
        "tree": lambda: tree(x, tmp, group),
        "halving-doubling": lambda: halving_doubling(x, tmp, group),
    }
