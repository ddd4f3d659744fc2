"""Lesson 04's solution against torch's sampler, on whatever hypothesis comes up with."""

import math
import re

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from launch import ROOT
from lessons import read
from torch.utils.data import DistributedSampler


@pytest.fixture(scope="module")
def my_sampler():
    text = "\n".join(c.source for c in read(ROOT / "notebooks/04_distributed_sampler.ipynb").cells)
    (solution,) = re.findall(r"```python\n(def my_sampler.*?)```", text, flags=re.DOTALL)
    space = {"torch": torch, "math": math}
    exec(solution, space)
    return space["my_sampler"]


@settings(deadline=None, max_examples=300, derandomize=True)
@given(
    n=st.integers(1, 500),
    world_size=st.integers(1, 64),
    data=st.data(),
    epoch=st.integers(0, 1000),
    seed=st.integers(0, 2**31),
    shuffle=st.booleans(),
    drop_last=st.booleans(),
)
def test_equals_torch(my_sampler, n, world_size, data, epoch, seed, shuffle, drop_last):
    rank = data.draw(st.integers(0, world_size - 1))
    theirs = DistributedSampler(range(n), world_size, rank, shuffle, seed, drop_last)
    theirs.set_epoch(epoch)
    assert my_sampler(n, world_size, rank, epoch, seed, shuffle, drop_last) == list(theirs)
