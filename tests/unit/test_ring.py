"""The simulated all-reduce against a plain sum, its counts against the formulas, the checker."""

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddp_course import ring, ring_exercises
from ddp_course.tools.errors import CourseError

NAMES = [name for name in ring.ALGORITHMS if name != "two-level"]


def make(name, n, rank=None, per_node=None):
    kwargs = {"per_node": per_node} if name == "two-level" else {}
    return ring.ALGORITHMS[name](n, rank, **kwargs)


EVERY = [(name, n, None) for n in range(1, 18) for name in NAMES]
EVERY += [("two-level", n, g) for n in range(1, 18) for g in range(1, n + 1) if n % g == 0]


def messages(schedule):
    """The schedule as a reader writes one."""
    return [
        [(a, b, c, "add" if s.add else "copy") for a, b, c in zip(s.src, s.dst, s.chunk)]
        for s in schedule.steps
    ]


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_all_reduce_is_the_sum(data):
    name, n, per_node = data.draw(st.sampled_from(EVERY))
    length = data.draw(st.integers(0, 3 * n + 2))
    seed = data.draw(st.integers(0, 2**16))
    buffers = np.random.default_rng(seed).integers(-1000, 1000, (n, length))
    before = buffers.copy()
    after = ring.all_reduce(make(name, n, None, per_node), buffers)
    assert after.shape == (n, length) and (after == buffers.sum(axis=0)).all()
    assert (buffers == before).all()


@pytest.mark.parametrize("name, n, per_node", EVERY)
def test_one_rank_s_view_and_one_message_each_way(name, n, per_node):
    whole = make(name, n, None, per_node)
    for step in whole.steps:
        pairs = set(zip(step.src.tolist(), step.dst.tolist()))
        assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs)
    nbytes = 12 * n + 5
    total = ring.count(whole, nbytes)
    for rank in range(n):
        own = ring.count(make(name, n, rank, per_node), nbytes)
        assert own.steps == total.steps
        assert own.sent[rank] == total.sent[rank] and own.received[rank] == total.received[rank]


@pytest.mark.parametrize("name, n, per_node", EVERY)
def test_formula_is_what_the_schedule_costs(name, n, per_node):
    alpha, bandwidth = 3.0, 7.0
    schedule = make(name, n, None, per_node)
    nbytes = 5 * n * schedule.chunks
    size = nbytes // schedule.chunks
    cost = 0.0
    for step in schedule.steps:
        longest = np.bincount(step.src).max(initial=0) * size  # of the messages of this step
        cost += alpha + longest / bandwidth
    kwargs = {"per_node": per_node} if per_node else {}
    assert ring.seconds(name, n, nbytes, alpha, bandwidth, **kwargs) == pytest.approx(cost)


def test_state_says_whose_numbers_are_in_the_sum():
    rng = np.random.default_rng(0)
    data = rng.integers(0, 9, (5, 13))
    sizes = ring.chunk_sizes(13, 5)
    assert sizes.tolist() == [len(c) for c in np.array_split(np.arange(13), 5)]
    starts = np.cumsum([0, *sizes])
    for state in ring.simulate(ring.ring(5), data):
        for r in range(5):
            for c in range(5):
                who = [q for q in range(5) if int(state.parts[r, c]) >> q & 1]
                expected = data[who, starts[c] : starts[c + 1]].sum(axis=0)
                assert (state.buffers[r, c, : sizes[c]] == expected).all()


def test_many_ranks():
    assert ring.count(ring.ring(65_536, rank=0), 2**30).steps == 2 * 65_535
    states = ring.simulate(ring.ring(65), np.zeros((65, 1)))
    assert next(states).parts is None  # more ranks than there are bits


@pytest.mark.parametrize("name, n, per_node", EVERY)
def test_checker_accepts_what_is_right(name, n, per_node):
    schedule = make(name, n, None, per_node)
    found = ring_exercises.check(messages(schedule), n, schedule.chunks)
    count = ring.count(schedule, schedule.chunks)
    assert found == (count.steps, count.sent.max(initial=0))


def change(step, i, message):
    steps = messages(ring.ring(4))
    steps[step][i] = message
    return steps


def missing(step, i):
    steps = messages(ring.ring(4))
    del steps[step][i]
    return steps


WRONG = {
    "no such rank": (change(0, 3, (3, 4, 3, "add")), "step 0: no such rank in (3, 4, 3"),
    "no such chunk": (change(1, 0, (0, 1, -1, "add")), "step 1: no such chunk"),
    "to itself": (change(2, 1, (1, 1, 3, "add")), "step 2: rank 1 sends chunk 3 to itself"),
    "no such op": (change(2, 1, (1, 2, 3, "sum")), "step 2: 'sum' in"),
    "not a message": (change(2, 1, (1, 2, 3)), "step 2: (1, 2, 3) is not a message"),
    "two writers": (
        change(0, 1, (1, 1 + 2, 2, "add")),
        "step 0: rank 1 and rank 2 both write chunk 2 of rank 3",
    ),
    "wrong chunk": (change(1, 2, (2, 3, 3, "add")), "in step 1 rank 2 sends chunk 3"),
    "left out": (missing(1, 2), "in step 1 rank 2 sends nothing"),
    "never sent": (missing(0, 1), "Nobody has sent chunk 1 on from rank 1"),
    "sent twice": (change(2, 1, (1, 2, 0, "add")), "that would count twice"),
    "no list": (None, "return a list of steps"),
    "unfinished": (change(3, 0, (0, 1, 3, "copy")), "Finished on rank 0: chunks [1]"),
    "no all-gather": (messages(ring.ring(4))[:3], "Rank 3 has the finished sum: nobody sends it"),
    "one step short": (messages(ring.ring(4))[:5], "after 5 steps chunk"),
    "nothing": ([], "after 0 steps chunk 0 of rank 0 lacks ranks 1, 2, 3."),
}


@pytest.mark.parametrize("steps, reason", WRONG.values(), ids=WRONG)
def test_checker_says_what_is_wrong(steps, reason):
    with pytest.raises(AssertionError, match=re.escape(reason)):
        ring_exercises.check(steps, 4)


@settings(max_examples=200, deadline=None)
@given(st.integers(2, 6), st.data())
def test_checker_is_never_fooled(n, data):
    """One message changed at random: what it accepts must give the right sums."""
    steps = messages(ring.ring(n))
    s = data.draw(st.integers(0, len(steps) - 1))
    i = data.draw(st.integers(0, n - 1))
    rank, op = st.integers(0, n - 1), st.sampled_from(["add", "copy"])
    steps[s][i] = data.draw(st.tuples(rank, rank, rank, op))
    try:
        ring_exercises.check(steps, n)
    except AssertionError:
        return
    made = [ring.Step(*map(np.array, zip(*((a, b, c, o == "add") for a, b, c, o in step))))
            for step in steps]  # fmt: skip
    numbers = 10 ** np.arange(n)[:, None] * np.ones(n, int)
    assert (ring.all_reduce(ring.Schedule(n, n, made), numbers) == numbers.sum(axis=0)).all()


def test_bad_input_is_one_clear_line():
    with pytest.raises(CourseError, match="10 ranks don't fill nodes of 8: choose a multiple"):
        ring.two_level(10)
    with pytest.raises(CourseError, match="10 ranks don't fill nodes of 8"):
        ring.seconds("two-level", 10, 1, 1, 1)
    with pytest.raises(CourseError, match=r"\(1, 3\): it needs a row for each of 4 ranks"):
        ring.all_reduce(ring.ring(4), [[1, 2, 3]])
    with pytest.raises(CourseError, match="choose from ring, star"):
        ring.seconds("bus", 4, 1, 1, 1)
    with pytest.raises(CourseError, match="not 65: check fewer ranks"):
        ring_exercises.check([], 65)
