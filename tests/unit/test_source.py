"""Claims that are bound to torch's own text turn red when the text changes."""

import pytest
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import source
from ddp_course.tools.errors import CourseError

NCCL = "torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp"


def test_finds_code_and_comments_across_lines(capsys):
    source.says(dist.barrier, "opts.timeout = timeout")
    source.says(NCCL, "All NCCL functions provided by this class are asynchronous functions.")
    source.says(DDP._pre_forward, "This should be called only once during whole training period.")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "barrier: opts.timeout = timeout"
    assert lines[1].startswith("ProcessGroupNCCL.hpp: All NCCL functions")


def test_what_torch_does_not_say():
    with pytest.raises(AssertionError, match=r"torch .*, new_group, does not say: never waits"):
        source.says(dist.new_group, "never waits")
    with pytest.raises(CourseError, match="installs no torch/nothing.hpp"):
        source.says("torch/nothing.hpp", "a word")


def test_finds_each_once():
    switches = source.find(NCCL, r'"(TORCH_NCCL_\w+)"')
    assert "TORCH_NCCL_BLOCKING_WAIT" in switches and len(switches) == len(set(switches))
