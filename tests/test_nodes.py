"""Several torchruns as several nodes."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest
from launch import ROOT

from ddp_course import nodes

HOSTS = ROOT / "scripts/11_two_hosts.sh"


def test_codes_and_output():
    say = "import sys; print(sys.argv[1]); sys.exit(int(sys.argv[1]))"
    ended = nodes.launch([[sys.executable, "-c", say, code] for code in (0, 3)])
    assert ended == [(0, "0\n"), (3, "3\n")]


def test_what_hangs_is_ended():
    mark = f"wait-{os.getpid()}"
    start = time.monotonic()
    hang = [sys.executable, "-c", "import time; time.sleep(300)", mark]
    (ended, quick) = nodes.launch([hang, [sys.executable, "-c", ""]], timeout=1)
    assert ended.code is None and quick.code == 0 and time.monotonic() - start < 30
    assert not [p for p in psutil.process_iter(["cmdline"]) if mark in (p.info["cmdline"] or [])]


def test_two_torchruns_are_two_nodes(tmp_path):
    port = nodes.free_port()
    meet = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "test"]
    launch = ["torchrun", "--nnodes", "2", "--nproc-per-node", "1", *meet]
    env = {"DDP_COURSE_DEVICE": "cpu", "DDP_COURSE_RUNS": str(tmp_path), "OMP_NUM_THREADS": "1"}
    own = ([*launch, "--rdzv-conf", f"is_host={i}", ROOT / "scripts/00_hello.py"] for i in (1, 0))
    ended = nodes.launch(list(own), env=env)
    assert [e.code for e in ended] == [0, 0], ended
    found = json.loads((tmp_path / "00_hello.json").read_text())
    assert len(found["ranks"]) == 2 and found["where"]["world_size"] == 2


def test_two_hosts_come_and_go():
    up = subprocess.run(["bash", HOSTS, "up"], capture_output=True, text=True)
    if up.returncode:
        pytest.skip(f"two hosts need Linux, root and iproute2: {up.stderr.strip()}")
    try:
        for i in (0, 1):
            shown = subprocess.run(
                ["ip", "-n", f"ddp{i}", "-brief", "address"], capture_output=True, text=True
            )
            assert f"10.77.0.{i + 1}/24" in shown.stdout
        left = subprocess.Popen(["ip", "netns", "exec", "ddp0", "sleep", "300"])
    finally:
        subprocess.run(["bash", HOSTS, "down"], check=True)
    assert left.wait(10) == -9
    listed = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True)
    assert "ddp0" not in listed.stdout and "ddp1" not in listed.stdout
