"""Build the library once for each torch, and try once whether the pretence holds with it."""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

from ddp_course.tools import first_of_all
from ddp_course.tools.errors import CourseError
from ddp_course.tools.rehearse import hook
from ddp_course.tools.rehearse.memory import FOLDER
from ddp_course.tools.rehearse.pretend import TORCH

HERE = Path(__file__).parent
CACHE = "DDP_COURSE_CACHE"  # the folder, if not the user's usual one
TRIED = "2.14.1"  # the lowest torch that it has been seen to work with

# All that it leans on, in a few seconds: a new torch that breaks it fails here, not in a training.
TRIAL = """
import torch, torch.distributed as dist, torch.nn as nn
dist.init_process_group("nccl", store=dist.HashStore(), rank=0, world_size=1)
torch.cuda.set_device(1)
net = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Dropout(), nn.Flatten(), nn.Linear(144, 2)]
net = nn.Sequential(*net)
net = nn.parallel.DistributedDataParallel(nn.SyncBatchNorm.convert_sync_batchnorm(net).cuda())
optimizer = torch.optim.AdamW(net.parameters())
with torch.autocast("cuda", torch.bfloat16):
    loss = net(torch.randn(8, 1, 8, 8, device="cuda")).square().mean()
loss.backward()
optimizer.step()
dist.all_reduce(loss.detach())
assert loss.isfinite() and torch.cuda.max_memory_allocated() > 0
dist.destroy_process_group()
"""


def library():
    """The path of the library, built for this environment's torch and tried with it.

    Returns
    -------
    (Path, str)
        The library, and torch's version.

    Raises
    ------
    CourseError
        Something is missing, or this torch is not one that it works with.
    """
    version, cuda = torch_here()
    include = headers(cuda)
    cache = cache_folder() / f"torch-{version}-{key(version)}"
    built, tried = cache / "gpus.so", cache / "works"
    if not built.exists():
        compile_into(built, include)
    if not tried.exists():
        attempt(built, version)
        tried.touch()
    return built, version


def torch_here():
    """The versions of torch and of its CUDA, read from a file: importing torch takes seconds."""
    if sys.platform != "linux":
        raise CourseError("rehearse needs Linux: it puts a library in front of torch's own CUDA")
    spec = find_spec("torch")
    if spec is None:
        raise CourseError(f"{sys.executable} has no torch: is the environment of torch active?")
    found = {}
    exec(Path(spec.origin).with_name("version.py").read_text(), found)
    if not found.get("cuda"):
        raise CourseError(
            f"rehearse needs torch's CUDA build, which runs without a GPU, and here is torch "
            f"{found['__version__']}: install the default build of your torch for Linux"
        )
    return found["__version__"], found["cuda"]


def headers(cuda):
    """The folder of CUDA's headers: those that torch's wheel brings, or a CUDA toolkit's."""
    packages = Path(find_spec("torch").origin).parents[1]
    folders = [p.parent for p in sorted(packages.glob("nvidia/*/include/cuda_runtime_api.h"))]
    for name in ("CUDA_HOME", "CUDA_PATH", "CONDA_PREFIX"):
        if os.environ.get(name):
            folders += [Path(os.environ[name]) / "include", Path("/usr/local/cuda/include")]
    for folder in folders:
        header = folder / "cuda_runtime_api.h"
        number = header.exists() and re.search(r"define CUDART_VERSION +(\d+)", header.read_text())
        if number and int(number[1]) // 1000 == int(cuda.split(".")[0]):
            return folder
    raise CourseError(
        f"there are no headers of CUDA {cuda} beside torch (nvidia/*/include/cuda_runtime_api.h): "
        "install torch from its CUDA wheel, or set CUDA_HOME to a toolkit of that version"
    )


def key(version):
    """Changes with torch, and with the source of the pretence."""
    digest = hashlib.sha256(version.encode())
    for file in sorted([*HERE.rglob("*.py"), *HERE.rglob("*.c"), *HERE.rglob("*.h")]):
        digest.update(file.read_bytes())
    return digest.hexdigest()[:12]


def cache_folder(env=os.environ):
    """Where built libraries stay: $DDP_COURSE_CACHE, or ddp_course in the user's cache."""
    if env.get(CACHE):
        return Path(env[CACHE])
    return Path(env.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ddp_course"


def compiler(env=os.environ):
    """The command of a C compiler."""
    for name in (env.get("CC"), "cc", "gcc", "clang"):
        if name and shutil.which(name):
            return name
    raise CourseError("rehearse needs a C compiler, once: install gcc or clang, or set CC")


def compile_into(built, include):
    """Compile the library. Two may do so at once: each moves a whole file into its place."""
    command = [compiler(), "-O1", "-w", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1"]
    try:
        built.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=built.parent) as folder:
            made = Path(folder) / "gpus.so"
            source = ["-I", HERE / "include", "-I", include, HERE / "gpus.c", "-o", made]
            done = subprocess.run([*command, *source], capture_output=True, text=True)
            if done.returncode:
                raise CourseError(
                    f"{command[0]} could not build rehearse's library: {last_line(done.stderr)}"
                )
            os.replace(made, built)
    except OSError as error:
        raise CourseError(f"{error}: set {CACHE} to a folder that can be written") from None


def attempt(built, version):
    """Run the trial.

    Raises
    ------
    CourseError
        It fails: torch's internals are others than those that the pretence leans on.
    """
    with tempfile.TemporaryDirectory(prefix="rehearse-") as folder:
        env = environment(built, version, folder, gpus=2, memory=2**30)
        try:
            done = subprocess.run(
                [sys.executable, "-c", TRIAL], env=env, capture_output=True, text=True, timeout=300
            )
        except subprocess.TimeoutExpired:
            raise CourseError(f"rehearse's trial with torch {version} doesn't end") from None
    if done.returncode:
        raise CourseError(unfit(version, last_line(done.stderr)))


def unfit(version, error):
    """What is said of a torch whose trial failed: it is too old, or newer than the pretence."""
    if numbers(version) < numbers(TRIED):
        return f"rehearse works from torch {TRIED} on, and here is torch {version} ({error})"
    return (
        f"rehearse doesn't work with torch {version}, whose internals it leans on and which "
        f"changed since torch {TRIED}: {error}"
    )


def numbers(version):
    """(2, 14, 1) of "2.14.1+cu130"."""
    return tuple(int(n) for n in re.findall(r"\d+", version.split("+")[0])[:3])


def environment(built, version, folder, gpus, memory):
    """The variables of a command that sees pretended GPUs.

    Parameters
    ----------
    built : path
        The library.
    version : str
        Of the torch that it was built for.
    folder : path
        An empty one: the hook and the ledger are written there, and later the reports.
    gpus, memory : int
        How many, and bytes of each.
    """
    folder = Path(folder)
    (folder / "ledger").touch()
    return {
        **os.environ,
        "LD_PRELOAD": ":".join(filter(None, [str(built), os.environ.get("LD_PRELOAD")])),
        "PYTHONPATH": first_of_all.install(hook.__file__, folder),
        "PRETENDED_GPUS": str(gpus),
        "PRETENDED_MEMORY": str(memory),
        "PRETENDED_LEDGER": str(folder / "ledger"),
        FOLDER: str(folder),
        TORCH: version,
        hook.HOME: str(HERE.parents[2]),
        # torch.cuda.is_available then asks CUDA; the driver's library knows no pretended GPUs.
        "PYTORCH_NVML_BASED_CUDA_CHECK": "0",
        "TORCHDYNAMO_DISABLE": "1",  # torch.compile would make kernels for a GPU
    }


def last_line(text):
    """The end of what a command wrote: the error's name, or the compiler's complaint."""
    lines = [line.strip() for line in text.splitlines() if "rror" in line or "killed" in line]
    lines = lines or text.strip().splitlines()
    return lines[-1][:200] if lines else "it says nothing"
