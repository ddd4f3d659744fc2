"""Several torchruns as several nodes, and the launch files for real ones."""

import json
import os
import subprocess
import sys
import time

import psutil
import pytest
import yaml
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


# --- launch files


@pytest.fixture
def fakes(tmp_path):
    """srun, scontrol and torchrun that only say what they were asked to do."""
    for name, body in {
        "srun": 'while [ "${1#-}" != "$1" ]; do shift; done\n'
        'for id in 0 1; do SLURM_NODEID=$id "$@"; done',
        "scontrol": "echo node-a; sleep 0.2; echo node-b",  # long after a `head` would have gone
        "torchrun": 'printf "%s\\n" "$*"',
    }.items():
        file = tmp_path / name
        file.write_text(f"#!/bin/bash\n{body}\n")
        file.chmod(0o755)
    return {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}


def check_line(line, host):
    words = line.split()
    assert (
        f"--rdzv-conf=is_host={host},read_timeout=600" in words and "--rdzv-backend=c10d" in words
    )
    assert "--nnodes=2" in words and "scripts/09_train.py" in words
    assert (ROOT / "scripts/09_train.py").exists()


def test_slurm_file(fakes):
    env = fakes | {
        "SLURM_JOB_NODELIST": "node-[a-b]", "SLURM_JOB_ID": "123456", "SLURM_NNODES": "2",
        "SLURM_CPUS_PER_TASK": "64", "SLURM_SUBMIT_DIR": "/shared/course",
    }  # fmt: skip
    file = ROOT / "scripts/11_slurm.sbatch"
    done = subprocess.run(["bash", file], env=env, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.strip().splitlines()
    assert len(lines) == 2
    for line, host in zip(lines, (1, 0)):
        check_line(line, host)
        assert "--rdzv-endpoint=node-a:23456" in line.split()
        assert line.endswith("--folder /shared/course/checkpoints")


def test_kubernetes_file(fakes):
    service, job = yaml.safe_load_all((ROOT / "scripts/11_kubernetes.yaml").read_text())
    assert (service["kind"], job["kind"]) == ("Service", "Job")
    spec = job["spec"]
    pod = spec["template"]["spec"]
    assert spec["completions"] == spec["parallelism"] == 2
    assert spec["completionMode"] == "Indexed" and service["spec"]["clusterIP"] == "None"
    name = job["metadata"]["name"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert service["spec"]["selector"] == {"job-name": name}
    (box,) = pod["containers"]
    assert {v["name"] for v in box["volumeMounts"]} == {v["name"] for v in pod["volumes"]}
    for index in (0, 1):
        env = fakes | {"JOB_COMPLETION_INDEX": str(index)}
        command = [*box["command"], *box["args"]]
        done = subprocess.run(command, env=env, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        check_line(done.stdout, 1 - index)
        assert f"--rdzv-endpoint={name}-0.{pod['subdomain']}:29400" in done.stdout.split()
