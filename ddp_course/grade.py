"""Grade the conversion of lesson 14: launch it on two ranks, look on, answer point by point."""

import contextlib
import faulthandler
import importlib.util
import io
import os
import sys
import tempfile
import threading
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.utils.data import TensorDataset

from ddp_course import checks, data, models
from ddp_course.tools import audit, diagnose

RANKS, LR, MOMENTUM = 2, 0.05, 0.9
STILL_S = 12.0  # without a move, and the launch hangs
CLOSE = 1e-3  # another order of summing gives gaps of about 1e-6


class Point(NamedTuple):
    """One answer of the grader.

    Attributes
    ----------
    name : str
    right : bool
    said : str
        What was seen, and where it is wrong what to look at.
    """

    name: str
    right: bool
    said: str

    def __str__(self):
        return f"{'yes' if self.right else 'NO':<4}{self.name:<21}{self.said}"


def check(script, timeout=100):
    """Grade a script and print the answers; a script not yet begun is told so, not failed.

    Raises
    ------
    AssertionError
        Some answer is NO.
    """
    text = Path(script).read_text().lower()
    if "distributed" not in text and "process_group" not in text:
        print("not attempted yet")
        return
    points = grade(script, timeout)
    print(*points, sep="\n")
    right = sum(p.right for p in points)
    assert right == len(points), f"{right} of {len(points)} points: see the NO above"
    print(f"right, in all {len(points)} points")


def grade(script, timeout=100):
    """Launch a script on two CPU ranks and judge what it did.

    Parameters
    ----------
    script : path
        Has ``train()``, which returns the model and its accuracy, and ``main()``, which calls it.
    timeout : float
        Seconds for each rank; it ends itself then, and says at which line it was.

    Returns
    -------
    list of Point
        One alone if the launch did not come to its end.
    """
    with tempfile.TemporaryDirectory(prefix="grade-") as folder:
        launch = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        launch += ["--nproc-per-node", str(RANKS), "-m", "ddp_course.grade"]
        said = io.StringIO()
        with contextlib.redirect_stderr(said):  # torchrun's; the report has what matters of it
            report = diagnose.run([*launch, str(script), folder, str(timeout)], STILL_S)
        if report.kind != "ok":
            return [Point("runs to its end", False, _why(report, said.getvalue()))]
        return [Point("runs to its end", True, f"exit 0 on {RANKS} ranks"), *judge(folder)]


def _why(report, said):
    """What diagnose found; where it found nothing, the end of what was printed."""
    text = str(report) if report.headline else said[-1500:].strip()
    return f"exit code {report.exit_code}\n" + "\n".join(f"    {x}" for x in text.split("\n"))


def judge(folder):
    """Answers to what `look_on` left in a folder: an iterator of Point."""
    ranks = [torch.load(f"{folder}/rank{r}.pt", weights_only=True) for r in range(RANKS)]
    first = ranks[0]
    yield Point(
        "one group", all(r["world"] == RANKS for r in ranks),
        f"world size seen by each rank: {[r['world'] for r in ranks]}",
    )  # fmt: skip
    asked = {
        "data split": "split",
        "parameters in sync": "in_sync",
        "gradients averaged": "averaged",
    }
    for name, key in asked.items():
        answer, evidence = first[key]
        yield Point(name, answer is True, "; ".join(evidence[:2]) or "no word from audit.watch")
    steps = [len(r["batches"]) for r in ranks]
    # An epoch of 1,437 images in steps of 64 is 23 steps, or 22 without the last, which is smaller.
    few, many = 22 * first["epochs"], 23 * first["epochs"]
    most = max((sum(map(len, parts)) for parts in zip(*(r["batches"] for r in ranks))), default=0)
    yield Point(
        "64 images a step",
        few <= min(steps) and max(steps) <= many and (most == 64 or first["world"] == 1),
        f"up to {most}, in {steps} steps, where one device makes {many}",
    )
    yield _parity(ranks)
    yield _accuracy(ranks)
    yield _file(ranks, folder)
    lines = [r["lines"] for r in ranks]
    yield Point("rank 0 speaks", not any(lines[1:]) and lines[0] > 0, f"lines printed: {lines}")
    yield Point(
        "leaves the group", not any(r["joined"] for r in ranks),
        "process group destroyed at the end" if not any(r["joined"] for r in ranks)
        else "still in it when main() had returned: destroy_process_group",
    )  # fmt: skip


def _parity(ranks):
    """The same batches on one process: the mean over ranks of each rank's mean, as DDP has it."""
    name, steps = "as one process", {len(r["batches"]) for r in ranks}
    if len(steps) != 1 or not ranks[0]["start"]:
        return Point(name, False, "nothing to compare: the ranks made different numbers of steps")
    label = {bytes(x.numpy()): y for x, y in data.load("digits").train}
    model = models.SmallCNN()
    model.load_state_dict(ranks[0]["start"])
    optimizer = torch.optim.SGD(model.parameters(), LR, MOMENTUM)
    for parts in zip(*(r["batches"] for r in ranks)):
        optimizer.zero_grad()
        for pixels in parts:
            labels = torch.stack([label[bytes(x.numpy())] for x in pixels])
            (F.cross_entropy(model(pixels), labels) / len(parts)).backward()
        optimizer.step()
    gap = checks.parity(model.state_dict(), [r["end"] for r in ranks])
    said = f"weights are at most {gap.value:.0e} off"
    hint = f" ({gap.name} on rank {gap.rank}): is the loss, the rate or the gradient scaled?"
    return Point(name, gap.value < CLOSE, said + (hint if gap.value >= CLOSE else ""))


def _odd(images):
    """A test set of 359: with an even number, padding and means of means are right by luck."""
    return images._replace(test=TensorDataset(*(x[:359] for x in images.test.tensors)))


def _accuracy(ranks):
    model, test = models.SmallCNN(), _odd(data.load("digits")).test
    model.load_state_dict(ranks[0]["end"])
    with torch.no_grad():
        right = (model(test.tensors[0]).argmax(1) == test.tensors[1]).sum().item()
    truth, told = right / len(test), [r["accuracy"] for r in ranks]
    said = f"told {[None if x is None else round(x, 4) for x in told]}, in truth {truth:.4f}"
    exact = all(x is not None and abs(x - truth) < 1e-6 for x in told)
    return Point("accuracy", exact, said)


def _file(ranks, folder):
    name, paths = "model.pt", list(Path(folder).rglob("model.pt"))
    writers = [r for r, rank in enumerate(ranks) if rank["saves"]]
    if not paths:
        return Point(name, False, "nobody wrote it")
    if len(writers) != 1:
        return Point(name, False, f"written by ranks {writers}: into one file")
    found = torch.load(paths[0], weights_only=True, map_location="cpu")
    if set(found) != set(ranks[0]["end"]):
        return Point(name, False, f"a plain SmallCNN can't load it: its keys begin {min(found)!r}")
    gap = checks.parity(ranks[0]["end"], [found]).value
    return Point(name, gap == 0, f"written by rank {writers[0]}, {gap:.0e} off its model")


# What follows runs in the ranks.


class _Lines(io.TextIOBase):
    """Counts the lines that a script prints, and keeps them from the answers."""

    lines = 0

    def write(self, text):
        self.lines += text.count("\n")
        return len(text)


def _weights(model):
    return {k: v.detach().cpu().clone() for k, v in model.state_dict().items()}


def look_on(script, folder):
    """Run a script's main() in this rank, and write to the folder what it did."""
    rank = int(os.environ["RANK"])
    seen = {"world": 0, "start": {}, "batches": [], "saves": 0, "accuracy": None, "end": {}}
    seen |= dict.fromkeys(("split", "in_sync", "averaged"), (None, []))
    watch, save, load = audit.watch, torch.save, data.load

    @contextlib.contextmanager
    def watching(model, *args, **kwargs):
        inner = getattr(model, "module", model)
        seen["world"] = dist.get_world_size() if dist.is_initialized() else 1
        seen["start"] = _weights(inner)

        def keep(_, inputs):
            if inner.training and torch.is_grad_enabled():
                seen["batches"].append(inputs[0].detach().cpu().clone())

        handle = inner.register_forward_pre_hook(keep)
        with watch(model, *args, **kwargs) as report:
            yield report
        handle.remove()
        for key in ("split", "in_sync", "averaged"):
            verdict = getattr(report, key)
            seen[key] = (verdict.answer, list(verdict.evidence))

    def saving(*args, **kwargs):
        seen["saves"] += 1
        return save(*args, **kwargs)

    def training(*args, **kwargs):
        model, accuracy = train(*args, **kwargs)
        seen["end"] = _weights(getattr(model, "module", model))
        seen["accuracy"] = None if accuracy is None else float(accuracy)
        return model, accuracy

    def loading(*args, **kwargs):
        return _odd(load(*args, **kwargs))

    # As if each rank were alone on its node: whoever takes LOCAL_RANK for RANK is found out.
    os.environ |= {"DDP_COURSE_RUNS": str(folder), "DDP_COURSE_DEVICE": "cpu"}
    os.environ |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": str(rank)}
    audit.watch, torch.save, data.load, printed = watching, saving, loading, _Lines()
    spec = importlib.util.spec_from_file_location("mine", script)
    mine = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(mine)  # with the wraps in place: `from torch import save` is seen
        seen["epochs"] = mine.EPOCHS
        train, mine.train = mine.train, training
        with contextlib.redirect_stdout(printed):
            mine.main()
    finally:
        audit.watch, torch.save, data.load = watch, save, load
    seen |= {"lines": printed.lines, "joined": dist.is_initialized()}
    save(seen, Path(folder) / f"rank{rank}.pt")


def _too_long():
    faulthandler.dump_traceback()
    print(f"still running after {sys.argv[3]} s", file=sys.stderr, flush=True)
    os._exit(1)


if __name__ == "__main__":
    limit = threading.Timer(float(sys.argv[3]), _too_long)
    limit.daemon = True
    limit.start()
    look_on(*sys.argv[1:3])
