"""Pretended GPUs refuse what GPUs refuse, and let pass what is right; what can't be run says so."""

import json
import os
import re
import shutil
import signal
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from launching import ROOT, python

from ddp_course.tools import rehearse
from ddp_course.tools.errors import CourseError
from ddp_course.tools.rehearse import build, memory

WORKERS = Path(__file__).parent / "workers"
REHEARSE = ["-m", "ddp_course.tools.rehearse"]
DIAGNOSE = [sys.executable, "-m", "ddp_course.tools.diagnose", "--"]
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]

# case: what rank 0 and rank 1 raise; None: this rank is right.
MIXED = "RuntimeError: Expected all tensors to be on the same device, but found at least two dev"
TWO_ON_ONE = "DistBackendError: Duplicate GPU detected : rank 0 and rank 1 both on GPU 0"
FULL = "OutOfMemoryError: CUDA out of memory. Tried to allocate "
FAULTS = {
    "labels_on_the_cpu": [MIXED] * 2,
    "input_on_the_cpu": [MIXED] * 2,
    "other_gpu": [MIXED] * 2,
    "device_ids_of_rank_0": [None, MIXED],
    "all_ranks_on_gpu_0": [TWO_ON_ONE] * 2,
    "set_device_forgotten": [TWO_ON_ONE] * 2,
    "collective_of_a_cpu_tensor": ["RuntimeError: No backend type associated with device type"] * 2,
    "tensor_of_another_gpu_in_a_bound_group": ["DistBackendError: Attempt to perform"] * 2,
    "monitored_barrier": ["ValueError: monitored_barrier requires a group with a CPU-capable"] * 2,
    "numpy_without_cpu": ["TypeError: can't convert cuda:{} device type tensor to numpy."] * 2,
    "misspelt": ["AttributeError: module 'torch.cuda' has no attribute"] * 2,
    "data_parallel_of_a_cpu_module": ["RuntimeError: module must have its parameters and buf"] * 2,
    "too_few_gpus": [None, "AcceleratorError: CUDA error: invalid device ordinal"],
    "fork_after_cuda": ["RuntimeError: Cannot re-initialize CUDA in forked subprocess."] * 2,
    "no_twin": ["NotImplementedError: rehearse: a pretended GPU computes by the CPU's kernels"] * 2,
    "out_of_memory": [FULL + "66.00 MiB. GPU {} has a total capacity of 64.00 MiB"] * 2,
    "memory_that_another_rank_has": [FULL + "40.00 MiB. GPU 0 has a total capacity", None],
}  # fmt: skip
RIGHT = {"right": [True] * 4, "wrong_by_audit": False}


@pytest.fixture(scope="module")
def possible():
    """Skip where nothing can be pretended: the floor's torch is older than rehearse works with."""
    missing = rehearse.missing()
    if missing:
        pytest.skip(missing)


@pytest.fixture(scope="module")
def faults(possible, tmp_path_factory):
    """(What the command printed, what each rank found): one launch for all of them."""
    folder = tmp_path_factory.mktemp("faults")
    launch = [*TORCHRUN, WORKERS / "rehearse_faults.py", folder]
    done = python(*REHEARSE, "--memory", "64MiB", "--", *launch, env=course())
    assert done.returncode == 0, done.stdout
    return done.stdout, [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def course():
    """The course from this checkout, where that isn't what is installed."""
    installed = "site-packages" in str(find_spec("ddp_course").origin)
    return {} if installed else {"PYTHONPATH": str(ROOT)}


@pytest.mark.parametrize("case", FAULTS)
def test_a_planted_fault_is_raised(faults, case):
    for rank, found in enumerate(faults[1]):
        wanted = FAULTS[case][rank]
        if wanted is None:
            assert found[case] is None
        else:
            assert str(found[case]).startswith(wanted.format(rank)), found[case]


def test_an_operator_without_a_twin_is_named(faults):
    assert "and aten._cudnn_rnn.default has none there" in faults[1][0]["no_twin"]


@pytest.mark.parametrize("case", RIGHT)
def test_what_is_right_passes_and_the_audit_sees_the_rest(faults, case):
    for found in faults[1]:
        assert found[case] == RIGHT[case]


def test_every_case_is_looked_at(faults):
    assert {*faults[1][0]} == {*FAULTS, *RIGHT, "peak"}


def test_the_line_before_and_the_table_after(faults):
    printed, found = faults
    assert "rehearse: 2 pretended GPUs of 64 MiB: torch's own CUDA code" in printed
    assert "It can't show time, races" in printed
    table = printed[printed.index("rehearse: peak memory") :].splitlines()
    assert table[0].endswith("of 64 MiB on each GPU")
    rows = [re.fullmatch(r"  GPU (\d)  (rank \d) +(.+) \(reserved .*\)", row) for row in table[1:]]
    held = {(row[1], row[2]): row[3] for row in rows}
    assert {*held} == {(gpu, f"rank {rank}") for gpu in "01" for rank in "01"}, table
    for rank in (0, 1):
        assert held[str(rank), f"rank {rank}"] == memory.words(found[rank]["peak"])


def test_the_exit_code_and_a_killed_process(possible):
    script = "import os, sys, torch; x = torch.ones(2, device='cuda'); "
    ends = {"sys.exit(7)": 7, "os.kill(os.getpid(), 9)": 128 + signal.SIGKILL}
    for end, code in ends.items():
        done = python(*REHEARSE, "--", sys.executable, "-c", script + end, env=course())
        assert done.returncode == code, done.stdout
        killed = "no report: killed, or left by os._exit (reserved 2 MiB)" in done.stdout
        assert killed == (code > 128), done.stdout


@pytest.mark.parametrize("order", ["beneath diagnose", "above diagnose"])
def test_with_diagnose(possible, order):
    launch = [*TORCHRUN, WORKERS / "rehearse_stuck.py", "dies"]
    both = [*REHEARSE, "--", *DIAGNOSE, *launch]
    if order == "beneath diagnose":
        both = [*DIAGNOSE[1:], sys.executable, *REHEARSE, "--", *launch]
    done = python(*both, env=course())
    assert done.returncode == 1, done.stdout
    assert "FAILED FIRST: rank 1: RuntimeError: Expected all tensors to be on" in done.stdout
    assert re.search(r"rehearse_stuck\.py:\d+ in <module>:  x \+ torch\.ones\(2\)", done.stdout)
    assert "  GPU 1  rank 1        512 B (reserved 2 MiB)" in done.stdout


# ---- What can't be run says so in one line ----
def refusal():
    line = rehearse.missing()
    assert line and "\n" not in line
    return line


def pretend_torch(folder, monkeypatch, version="2.99.0", cuda="13.0"):
    """A torch of which there is only version.py, and a cache that has nothing yet."""
    (folder / "torch").mkdir()
    (folder / "torch/__init__.py").touch()
    (folder / "torch/version.py").write_text(f"__version__ = '{version}'\ncuda = {cuda!r}\n")
    header = folder / "nvidia/cu13/include/cuda_runtime_api.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define CUDART_VERSION  13000\n")
    spec = find_spec("torch")
    monkeypatch.setattr(spec, "origin", str(folder / "torch/__init__.py"))
    monkeypatch.setattr(build, "find_spec", lambda name: spec)
    monkeypatch.setenv(build.CACHE, str(folder / "cache"))


def test_not_on_linux(monkeypatch):
    monkeypatch.setattr(sys, "platform", "darwin")
    assert refusal().startswith("rehearse needs Linux")


def test_no_torch(monkeypatch):
    monkeypatch.setattr(build, "find_spec", lambda name: None)
    assert "has no torch: is the environment of torch active?" in refusal()


def test_torchs_cpu_build(monkeypatch, tmp_path):
    pretend_torch(tmp_path, monkeypatch, "2.99.0+cpu", None)
    assert "rehearse needs torch's CUDA build" in refusal()
    assert "here is torch 2.99.0+cpu" in refusal()


def test_no_headers(monkeypatch, tmp_path):
    pretend_torch(tmp_path, monkeypatch, cuda="14.2")  # those that are there are of CUDA 13
    for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    assert refusal().startswith("there are no headers of CUDA 14.2 beside torch")


def test_no_compiler(monkeypatch, tmp_path):
    pretend_torch(tmp_path, monkeypatch)
    monkeypatch.setattr(build.shutil, "which", lambda name: None)
    assert refusal().startswith("rehearse needs a C compiler, once: install gcc or clang")


@pytest.mark.skipif(not shutil.which("false"), reason="needs the command false")
def test_a_compiler_that_fails(monkeypatch, tmp_path):
    pretend_torch(tmp_path, monkeypatch)
    monkeypatch.setenv("CC", "false")
    assert refusal() == "false could not build rehearse's library: it says nothing"


@pytest.mark.parametrize("version, words", [
    ("2.99.0+cu130", "rehearse doesn't work with torch 2.99.0+cu130, whose internals it leans on"),
    ("2.4.1+cu121", f"rehearse works from torch {build.TRIED} on, and here is torch 2.4.1+cu121"),
])  # fmt: skip
def test_internals_that_changed(monkeypatch, tmp_path, version, words):
    """The trial fails in whatever way: that is one line, and the next call tries again."""
    pretend_torch(tmp_path, monkeypatch, version)
    monkeypatch.setattr(
        build, "compile_into", lambda built, _: os.makedirs(built.parent, 0o700, True)
    )
    monkeypatch.setattr(build, "TRIAL", "raise AttributeError('no attribute _lazy_call')")
    assert refusal().startswith(words)
    assert "AttributeError: no attribute _lazy_call" in refusal()


def test_another_environments_torch(possible):
    """The command's Python has another torch than the one that the library was built for."""
    lie = {"DDP_COURSE_REHEARSE_TORCH": "1.0"}
    script = "import os, sys; os.environ.update(%r); os.execv(sys.executable, %r)"
    again = [sys.executable, "-c", "import torch"]
    done = python(*REHEARSE, "--", sys.executable, "-c", script % (lie, again), env=course())
    assert done.returncode == 2
    assert "rehearse runs in the environment of torch 1.0, and " in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.parametrize("words, said", [
    ([], "what shall I run? Put the command behind --"),
    (["--gpus", "65", "--", "true"], "--gpus takes 1 to 64"),
    (["--", "no-such-command"], "there is no command no-such-command"),
    (["--memory", "much", "--", "env"], "much is no size of a memory: type 16GiB, or 512MiB"),
])  # fmt: skip
def test_nothing_to_run(words, said):
    done = python(*REHEARSE, *words, env=course())
    assert done.returncode == 2 and said in done.stdout and "Traceback" not in done.stdout


@pytest.mark.parametrize("text, size", [
    ("16GiB", 2**34), ("512 MiB", 2**29), ("40G", 40 * 2**30), ("1.5k", 1536), ("300", 300),
])  # fmt: skip
def test_sizes(text, size):
    assert memory.bytes_of(text) == size


@pytest.mark.parametrize("text", ["", "0", "0GiB", "GiB", "-1G", "1e9", "16 apples"])
def test_no_size(text):
    with pytest.raises(CourseError, match="is no size of a memory"):
        memory.bytes_of(text)


@pytest.mark.parametrize("size, text", [
    (300, "300 B"), (512, "512 B"), (103493632, "98.7 MiB"), (2**34, "16 GiB"),
])  # fmt: skip
def test_words_for_a_size(size, text):
    assert memory.words(size) == text
