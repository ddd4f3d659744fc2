"""Lesson 11's launch files for real clusters, with stand-ins for the cluster's commands."""

import os
import subprocess

import pytest
import yaml
from launch import ROOT


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
