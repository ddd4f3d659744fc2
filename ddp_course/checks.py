"""What lessons are checked with.

Three sections: `parity` (do N ranks give what one process gives?), `exercise` (is the reader's
answer right?), `in_threads` (ranks without a launch, for exercises).
"""

import copy
import inspect
import math
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import torch

# Do N ranks give what one process gives?


class Difference(NamedTuple):
    """The largest difference found, and where it is.

    Attributes
    ----------
    value : float
        max |one - rank's|; 0.0 is bitwise equal, inf where one side is not finite.
    rank : int
        The rank it was found on.
    name : str
        The tensor's name.
    index : tuple of int
        The place in that tensor.
    """

    value: float
    rank: int
    name: str
    index: tuple


def parity(one, ranks):
    """Compare what every rank has with what one process has.

    Parameters
    ----------
    one : dict of str to tensor (or nested lists of numbers)
        The reference, such as a ``state_dict()`` or gradients by name.
    ranks : list of such dicts
        One a rank, in rank order, with the same names and shapes.

    Returns
    -------
    Difference
        Of all elements of all tensors on all ranks, the worst.

    Raises
    ------
    ValueError
        Names or shapes differ, so that there is nothing to compare.
    """
    worst = Difference(0.0, 0, "", ())
    for rank, other in enumerate(ranks):
        if one.keys() != other.keys():
            odd = sorted(one.keys() ^ other.keys())
            raise ValueError(f"rank {rank} and the one process differ in names: {odd}")
        for name in one:
            a = torch.as_tensor(one[name], dtype=torch.float64, device="cpu")
            b = torch.as_tensor(other[name], dtype=torch.float64, device="cpu")
            if a.shape != b.shape:
                raise ValueError(f"{name}: shape {tuple(a.shape)}, on rank {rank} {tuple(b.shape)}")
            if not a.numel():
                continue
            gap = (a - b).abs()
            gap[a == b] = 0.0  # inf - inf is nan, but the same on both sides
            gap = gap.nan_to_num(nan=math.inf, posinf=math.inf)
            flat = int(gap.argmax())
            index = tuple(int(i) for i in torch.unravel_index(torch.tensor(flat), gap.shape))
            if gap.flatten()[flat] > worst.value:
                worst = Difference(float(gap.flatten()[flat]), rank, name, index)
    return worst


# Is the answer to an exercise right?


def exercise(attempt, reference, cases, look_at):
    """Compare the reader's function with a reference, and say what to look at.

    An untouched stub raises NotImplementedError: that is reported, not failed,
    so that Run All stays green before the exercise is done.

    Parameters
    ----------
    attempt, reference : callable
        Called with the same arguments.
    cases : iterable of tuple
        Arguments of each call.
    look_at : str or callable
        A hint for a wrong answer; a callable gets (case, got, expected).

    Raises
    ------
    AssertionError
        At the first case with a wrong answer: the case, both answers, the hint.
    """
    count = 0
    for case in cases:
        try:
            got = attempt(*copy.deepcopy(case))  # what it changes is its own
        except NotImplementedError:
            print("not attempted yet")
            return
        expected = reference(*case)
        if not _same(got, expected):
            hint = _hint(look_at, case, got, expected)
            raise AssertionError(f"for {case}: got {got}, expected {expected}. {hint}")
        count += 1
    print(f"right, in all {count} cases")


def _hint(look_at, case, got, expected):
    if inspect.isgenerator(got):
        return "Return a list: this is a generator."
    try:
        return look_at(case, got, expected) if callable(look_at) else look_at
    except Exception:  # an answer of a form that the hint didn't think of
        return (
            f"Return what the task names: a {type(expected).__name__}, not a {type(got).__name__}."
        )


def _same(got, expected):
    if isinstance(expected, torch.Tensor):
        return (
            isinstance(got, torch.Tensor)
            and got.shape == expected.shape
            and torch.allclose(got, expected)
        )
    near = 1e-6
    if hasattr(got, "tolist"):  # a tensor or an array is as good as its numbers
        near = 1e-6 if "64" in str(got.dtype) else 1e-5  # float32 has seven digits
        got = got.tolist()
    if isinstance(got, range):
        got = list(got)
    if isinstance(expected, float):
        return isinstance(got, (int, float)) and math.isclose(
            got, expected, rel_tol=near, abs_tol=1e-12
        )
    if isinstance(expected, dict):
        return (
            isinstance(got, dict)
            and got.keys() == expected.keys()
            and all(_same(got[k], expected[k]) for k in expected)
        )
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(got, (list, tuple))
            and len(got) == len(expected)
            and all(_same(g, e) for g, e in zip(got, expected))
        )
    return got == expected


# Ranks in threads.


def in_threads(work, parts):
    """Play ranks in threads, for exercises that need an all-reduce and no launch.

    Parameters
    ----------
    work : callable
        Called once for each rank with its part and ``total(x)``, which returns the sum of what
        all ranks passed to it.
    parts : list
        One a rank.

    Returns
    -------
    list
        What ``work`` returned, by rank.

    Raises
    ------
    AssertionError
        Not all ranks called ``total`` equally often.
    """
    box, barrier = [None] * len(parts), threading.Barrier(len(parts))

    def rank(r):
        def total(x):
            box[r] = x
            barrier.wait(5)
            result = sum(box)
            barrier.wait(5)  # nobody writes again before all have read
            return result

        try:
            return work(parts[r], total)
        except threading.BrokenBarrierError:
            raise AssertionError("every rank must call total equally often") from None

    with ThreadPoolExecutor(len(parts)) as pool:
        return list(pool.map(rank, range(len(parts))))
