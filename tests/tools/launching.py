"""Start ranks for the tests of the tools; needs torch only."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def torchrun(script, *args, ranks=2, env=None, timeout=120):
    """Run a script on the ranks of one node.

    Returns
    -------
    subprocess.CompletedProcess
        With stdout and stderr together in .stdout.
    """
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return subprocess.run(
        [*launcher, "--nproc-per-node", str(ranks), str(script), *map(str, args)],
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **(env or {})},
        cwd=ROOT,
        timeout=timeout,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
