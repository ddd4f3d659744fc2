"""What the lessons claim, tried on this machine's GPUs: one JSON file and one page.

    python -m ddp_course.gpu_report [--out runs/gpu_report]

Starts every script that can use a GPU, as the tests marked ``gpu`` do, and asks of its results
what the lessons assert of the stored ones, which are from a CPU. Takes five to ten minutes. Exit
code: 0 if all ran and all claims held, 1 if not, 2 without a GPU.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import tempfile
import time
from pathlib import Path

from ddp_course import hardware, launches, nodes, results
from ddp_course.claims import CLAIMS, HELD, NOT_HELD, judge

NO_GPU = (
    "gpu_report needs a GPU that torch can use, and there is none here. To see it run: "
    "python -m ddp_course.tools.rehearse --gpus 2 -- python -m ddp_course.gpu_report"
)
# The digits CNN of the lesson is too small to keep a GPU busy. 718: half of the training images.
HEAVIER = {"07_amp": ("--model", "resnet18", "--batch-size", "718", "--epochs", "10")}
# What pretended GPUs can't show of a claim.
NOT_PRETENDED = {"03_compile": "needs real GPUs: rehearse leaves torch.compile out"}


def figures(runs):
    """What was measured: [script, ranks and backend, what, value, unit].

    Those in MiB can be told of pretended GPUs, too; all others are of time. The value is None where
    a result is not as its script wrote it when this was written: then `what` says what is missing.
    """
    rows = []
    for script, measure in MEASURES.items():
        run = runs.get(script)
        if not isinstance(run, dict):
            continue
        here = f"{run['where']['world_size']} × {run['where']['backend']}"
        try:
            rows += [[script, here, *row] for row in measure(run)]
        except Exception as error:
            rows.append([script, here, f"{type(error).__name__}: {error}", None, "MiB"])
    return rows


def _link(run):
    n = run["where"]["world_size"]
    median = {nbytes: q[1] for nbytes, q in zip(run["sizes"], run["seconds"][str(n)])}
    largest = max(median)
    busbw = 2 * (n - 1) / n * largest / median[largest]
    yield f"all-reduce of {min(median)} bytes", 1e6 * median[min(median)], "µs"
    yield f"all-reduce of {largest / 2**20:.0f} MiB, bus bandwidth", busbw / 1e9, "GB/s"


def _dp(run):
    for gpu, peak in enumerate(run["gpu"]["peaks"]):
        yield f"DataParallel, peak of GPU {gpu}", peak / 2**20, "MiB"


def _ddp(run):
    yield "one process", run["alone"]["images_per_s"], "images/s"
    yield "DDP, all ranks", sum(r["images_per_s"] for r in run["ranks"]), "images/s"


def _amp(run):
    for name, one in run["runs"].items():
        yield f"{name}: a step", one["ms"], "ms"
        yield f"{name}: faster than fp32", run["runs"]["fp32"]["ms"] / one["ms"], "times"
        yield f"{name}: peak", one["peak MiB"], "MiB"


def _speed(run):
    ms = {kind: 1e3 * statistics.median(times[1:]) for kind, times in run["seconds"].items()}
    n = max(int(kind.split()[1]) for kind in ms if kind.startswith("independent"))
    for kind in ms:
        if kind.startswith(("independent", "weak", "DataParallel")):
            of = int(kind.split()[-1])
            yield (
                f"{kind.removesuffix(f' {of}')}, {of}",
                1e3 * of * run["batch"] / ms[kind],
                "images/s",
            )
    if n > 1:  # as lesson 13 predicts it, from a small message and a large one
        small, large = (ms[f"all-reduce {nbytes} {n}"] for nbytes in (4, 2**20))
        alone = small + (large - small) * run["gradient bytes"] / 2**20
        yield "all-reduce of the gradients by itself", alone, "ms"
        yield "of it not hidden behind backward", ms[f"weak {n}"] - ms[f"independent {n}"], "ms"


MEASURES = {
    "00_message_cost": _link,
    "01_data_parallel": _dp,
    "01_dp_vs_ddp": _ddp,
    "07_amp": _amp,
    "13_scaling": _speed,
}


def machine(gpus):
    """Hardware and versions."""
    import torch

    of = [torch.cuda.get_device_properties(i) for i in range(gpus)]
    return {
        "gpus": [f"{p.name}, {p.total_memory / 2**30:.0f} GiB" for p in of],
        "cores": hardware.count_cores(),
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),
        "python": platform.python_version(),
        "date": time.strftime("%Y-%m-%d"),
    }


def run_script(name, launch, gpus, pretended, timeout):
    """Run a script in a folder of its own: its result, or in one line why there is none."""
    least = max((c.least for c in CLAIMS if c.script == name), default=1)
    ranks = launch.ranks(gpus) if launch.how == "alone" else max(launch.ranks(gpus), least)
    with tempfile.TemporaryDirectory(prefix="gpu_report-") as folder:
        env = {
            "DDP_COURSE_RUNS": folder,
            "DDP_COURSE_DEVICE": "cuda",
            "OMP_NUM_THREADS": str(max(1, hardware.count_cores() // ranks)),
        }
        if launch.how == "alone":  # it takes all GPUs; its lesson has four
            env["CUDA_VISIBLE_DEVICES"] = launches.visible(min(gpus, 4))
        words = launch.command(ranks, *(() if pretended else HEAVIER.get(name, ())))
        (ended,) = nodes.launch([words], timeout, env)
        if ended.code is None:
            return f"no end after {timeout:.0f} s"
        if ended.code:
            said = [line.strip() for line in ended.output.splitlines() if "Error: " in line]
            return f"exit code {ended.code}: {said[0][-200:] if said else 'it says no error'}"
        files = [Path(folder, f"{name}.json"), *sorted(Path(folder).rglob("*.json"))]
        found = [file for file in files if file.exists()]
        run = json.loads(found[0].read_text()) if found else {"where": {"world_size": ranks}}
        if run["where"].get("backend", "none") == "none" and launch.how != "alone":
            backend = hardware.rank_backend("cuda", ranks, gpus=gpus)
            run["where"] |= {"world_size": ranks, "backend": backend}  # saved after the group's end
        return run


def page(report):
    """The report as Markdown."""
    here, claims = report["machine"], report["claims"]
    held = sum(c["verdict"] == HELD for c in claims)
    lines = ["# What the lessons claim, on this machine's GPUs", ""]
    if report["pretended"]:
        lines += ["**Pretended GPUs: torch's own CUDA code on a CPU, no times.**", ""]
    lines += [f"- {key}: {', '.join(v) if isinstance(v, list) else v}" for key, v in here.items()]
    lines += ["", f"{held} of {len(claims)} claims held.", ""]
    lines += ["| lesson | claim | ranks | | asserted |", "|---|---|---|---|---|"]
    for c in claims:
        verdict = f"**{c['verdict']}**" if c["verdict"] == NOT_HELD else c["verdict"]
        why = f" ({_cell(c['why'])})" if c["why"] else ""
        found = f"{c['ranks'] or ''} | {verdict}{why}"
        lines.append(f"| {c['lesson']} | {c['says']} | {found} | `{c['relation']}` |")
    lines += ["", "| script | ranks | measured | |", "|---|---|---|---|"]
    for script, here, what, value, unit in report["figures"]:
        found = "" if value is None else f"{value:,.4g} {unit}"
        lines.append(f"| {script} | {here} | {_cell(what)} | {found} |")
    lines += ["", "| script | ranks | backend | |", "|---|---|---|---|"]
    for name, r in report["scripts"].items():
        lines.append(
            f"| {name} | {r['ranks'] or ''} | {r['backend'] or ''} | {_cell(r['ended'])} |"
        )
    return "\n".join(lines) + "\n"


def _cell(text):
    """A text for one cell of a table."""
    return " ".join(text.replace("|", "\\|").split())


def main(words=None):
    """Make the report; returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m ddp_course.gpu_report")
    parser.add_argument("--out", type=Path, default=results.ROOT / "runs/gpu_report")
    parser.add_argument("--timeout", type=float, default=300, help="seconds for each script")
    args = parser.parse_args(words)
    gpus = hardware.count_gpus()
    if not gpus:
        sys.stderr.write(f"{NO_GPU}\n")
        return 2
    pretended = "PRETENDED_GPUS" in os.environ  # rehearse sets it
    report = {"machine": machine(gpus), "pretended": pretended, "scripts": {}}
    runs = {}
    for name, launch in launches.on_gpus().items():
        missing = NOT_PRETENDED.get(name, "") if pretended else ""
        missing = f"needs {launch.gpus} GPUs" if gpus < launch.gpus else missing
        runs[name] = run = missing or run_script(name, launch, gpus, pretended, args.timeout)
        where = {} if isinstance(run, str) else run["where"]
        ended = run if isinstance(run, str) else "ran"
        report["scripts"][name] = {
            "ended": ended, "ranks": where.get("world_size"), "backend": where.get("backend"),
        }  # fmt: skip
        print(f"{name}: {ended}", flush=True)
    report["claims"] = [
        {"lesson": c.script[:2], "script": c.script, "says": c.says, "relation": c.relation,
         "ranks": report["scripts"].get(c.script, {}).get("ranks"), "verdict": verdict, "why": why}
        for c in CLAIMS
        for verdict, why in [judge(c, runs.get(c.script, "the course has no such script"))]
    ]  # fmt: skip
    report["figures"] = [row for row in figures(runs) if row[-1] == "MiB" or not pretended]
    report["results"] = {} if pretended else runs  # all that was found, with the times
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "gpu_report.json").write_text(json.dumps(report, indent=1))
    (args.out / "gpu_report.md").write_text(page(report), encoding="utf-8")
    print(f"written: {args.out}/gpu_report.json and gpu_report.md")
    failed = [r for r in report["scripts"].values() if not r["ended"].startswith(("ran", "needs"))]
    return 1 if failed or any(c["verdict"] == NOT_HELD for c in report["claims"]) else 0


if __name__ == "__main__":
    sys.exit(main())
