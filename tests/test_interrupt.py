"""A kernel's Interrupt while `!torchrun` runs: nothing of the launch is left."""

import json

import psutil
from jupyter_client.manager import start_new_kernel
from lab import wait_for
from launch import ROOT


def test_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("DDP_COURSE_RUNS", str(tmp_path))
    monkeypatch.setenv("DDP_COURSE_DEVICE", "cpu")
    result = tmp_path / "00_hello.json"
    manager, client = start_new_kernel(cwd=ROOT / "notebooks")
    try:
        client.execute_interactive("%load_ext ddp_course", timeout=60, output_hook=lambda m: None)
        command = "!torchrun --standalone --nproc-per-node 2 ../scripts/00_hello.py --wait 300"
        client.execute(command)
        assert wait_for(result.exists, 60), "the launch did not start"
        launched = psutil.Process(manager.provisioner.pid).children(recursive=True)
        ranks = [r["pid"] for r in json.loads(result.read_text())["ranks"]]
        assert {p.pid for p in launched} >= set(ranks)
        manager.interrupt_kernel()
        _, alive = psutil.wait_procs(launched, timeout=10)
        assert alive == []
        reply = client.get_shell_msg(timeout=20)["content"]
        assert reply["status"] == "error" and reply["ename"] == "CalledProcessError"
    finally:
        client.stop_channels()
        manager.shutdown_kernel(now=True)
