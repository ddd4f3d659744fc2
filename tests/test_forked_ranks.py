"""A rank that the tests fork is like one that torchrun starts."""

import os
import re
import sys

import pytest
from launch import ROOT, torchrun

FACTS = ROOT / "tests/workers/facts.py"


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is forked")
@pytest.mark.skipif(os.path.exists("/proc/driver/nvidia"), reason="nor beside GPUs")
@pytest.mark.skipif(bool(os.environ.get("DDP_COURSE_COLD")), reason="nor now")
def test_like_a_cold_one():
    """What it sees, what it prints at three ends, what runs after that, what torchrun says."""
    flags = ("--standalone", "--max-restarts", "2")
    forked, cold = (
        torchrun(FACTS, "one argument", ranks=1, flags=flags, env=env)
        for env in ({}, {"PYTHONPATH": ""})
    )
    began = [x.stdout.split("\n")[0] for x in (forked, cold)]
    assert ["torch.distributed.run" in words for words in began] == [True, False], began
    said = [
        re.sub(r"\d\d:\d\d:\d\d\S*( \d+)?|pid: \d+|began as .*", "", x.stdout)
        for x in (forked, cold)
    ]
    assert said[0] == said[1]
    for words in ("atexit was here", "a thread was waited for"):
        assert said[0].count(words) == 3, said[0]
    for words in ("no licence on this node", "\nKeyboardInterrupt", "ValueError: the end"):
        assert words in said[0], said[0]
