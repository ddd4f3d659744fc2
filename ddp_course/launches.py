"""Which scripts a GPU can run, and how each is started there: read from the lessons.

A lesson that sends its ranks to the CPU (``DDP_COURSE_DEVICE=cpu``), or a script that does so
itself, is about gloo or about exact bits. It has no place here.
"""

import json
import os
import re
import sys
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[1]
MOST = 8  # ranks; the lessons' batches divide by 2, 4 and 8

# From here on in the lesson: cpu, or (`{plan.device}`) whatever is there again; or in a script.
DEVICE = re.compile(r'DDP_COURSE_DEVICE(?:"\])? ?= ?"?(?P<device>\w+|\{)')
LAUNCH = re.compile(
    r"torchrun (?P<flags>[^{}\n]*)--nproc-per-node \{(?P<ranks>[\w.]+)\}[ \\\n]+"
    r"\.\./scripts/(?P<torchrun>\w+)\.py"
)
SPAWN = re.compile(r"!python \.\./scripts/(?P<spawn>\w+)\.py --ranks \{(?P<ranks>[\w.]+)\}")
ON_NODES = re.compile(r'on_nodes\(\s*"(?P<torchrun>\w+)"')  # lesson 11: one torchrun a node

# The lesson compares its bits with those of the CPU; what it is about, a restart, GPUs have too.
ALSO_ON_GPUS = {"14_killed"}
# The reader's own file may have empty stages.
ARGUMENTS = {"03_own_ddp_check": ("03_own_ddp_solution",)}


class Launch(NamedTuple):
    """How one script is started on the GPUs of a machine.

    Attributes
    ----------
    script : Path
    how : {"torchrun", "spawn", "alone"}
        By torchrun; by Python, with ``--ranks``; by Python, in one process.
    flags : tuple of str
        Of torchrun.
    least : int
        Ranks that the lesson needs. On one GPU so many share it, through gloo if there are two.
    grows : bool
        The lesson takes as many ranks as there are GPUs.
    gpus : int
        That a machine must have.
    args : tuple of str
        Of the script.
    """

    script: Path
    how: str
    flags: tuple = ("--standalone",)
    least: int = 2
    grows: bool = False
    gpus: int = 1
    args: tuple = ()

    def ranks(self, gpus):
        """Ranks on a machine with so many GPUs."""
        if self.how == "alone" or gpus == 1:
            return self.least
        return min(MOST, 2 ** (gpus.bit_length() - 1)) if self.grows else 2

    def command(self, ranks, *args):
        """The words to type, for `ddp_course.nodes.launch`."""
        script = [str(self.script), *self.args, *map(str, args)]
        if self.how == "torchrun":
            return ["torchrun", *self.flags, "--nproc-per-node", str(ranks), *script]
        return [sys.executable, *script, *(["--ranks", str(ranks)] if self.how == "spawn" else [])]


def on_gpus(root=ROOT):
    """The launches of all scripts that use a GPU where there is one.

    Parameters
    ----------
    root : Path
        The course: it has notebooks/ and scripts/.

    Returns
    -------
    dict of str to Launch
        By the script's name without ".py".
    """
    launched, to_the_cpu = {}, set()
    for notebook in sorted((root / "notebooks").glob("*.ipynb")):
        for name, on_cpu, launch in _in_lesson(notebook):
            if on_cpu and name not in ALSO_ON_GPUS:
                to_the_cpu.add(name)
            elif name not in launched or (launch["least"] == 1 < launched[name]["least"]):
                launched[name] = launch  # of several launches the least demanding
    found = {}
    for script in sorted((root / "scripts").glob("*.py")):
        name, source = script.stem, script.read_text()
        if "__main__" not in source or (name in to_the_cpu and name not in launched):
            continue
        own = launched.get(name, {"how": "alone", "least": 1})
        if "world_size < 2" in source:  # it refuses to run alone
            own = own | {"least": 2}
        if any(match["device"] == "cpu" for match in DEVICE.finditer(source)):
            if "cuda" not in source:
                continue
            own = own | {"gpus": 4}  # 10_two_devices: its group is gloo's, its model on two GPUs
        elif own["how"] == "alone" and "DataParallel" in source:
            own = own | {"gpus": 2}  # with one it moves nothing
        found[name] = Launch(script, args=ARGUMENTS.get(name, ()), **own)
    return found


def visible(gpus, env=os.environ):
    """The value of CUDA_VISIBLE_DEVICES that leaves so many of the GPUs."""
    given = [name for name in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    return ",".join(given[:gpus] or map(str, range(gpus)))


def _in_lesson(notebook):
    """(script, whether it is sent to the CPU, the rest of its launch) in the lesson's order."""
    on_cpu = False
    for cell in json.loads(notebook.read_text(encoding="utf-8"))["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] != "code" or source.startswith("%%writefile"):
            continue
        matches = [m for kind in (DEVICE, LAUNCH, SPAWN, ON_NODES) for m in kind.finditer(source)]
        for match in sorted(matches, key=lambda m: m.start()):
            at = match.groupdict()
            line = source[source.rfind("\n", 0, match.start()) + 1 : match.end()]
            if "device" in at:
                if "torchrun" not in source[match.end() :].partition("\n")[0]:
                    on_cpu = at["device"] == "cpu"
                continue
            ranks, how = at.get("ranks", "two"), "torchrun" if "torchrun" in at else "spawn"
            launch = {
                "how": how,
                "least": 1 if ranks == "plan.ranks" or "hardware.plan(1)" in source else 2,
                "grows": ranks == "ranks" or ranks.startswith("plan"),
            }
            if at.get("flags"):
                launch["flags"] = tuple(at["flags"].split())
            yield at[how], on_cpu or "DDP_COURSE_DEVICE=cpu" in line, launch
