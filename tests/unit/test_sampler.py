"""Lesson 04's ten lines against torch's sampler, on whatever hypothesis comes up with."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from launch import ROOT
from lessons import code_cells, read
from torch.utils.data import DistributedSampler


@pytest.fixture(scope="module")
def my_sampler():
    cells = code_cells(read(ROOT / "notebooks/04_distributed_sampler.ipynb"))
    space = {"torch": torch, "math": math}
    exec(next(c.source for c in cells if c.source.startswith("def my_sampler(")), space)
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
