"""The exercises of the lessons: the solution passes, typical wrong answers are told why."""

import ast
import gc
import json
import os
import re
import shutil

import pytest
import torch
import torch.distributed as dist
from IPython.core.inputtransformer2 import TransformerManager
from launch import ROOT, torchrun
from lessons import NOTEBOOKS, code_cells, read
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import allreduce_hook
from torch.nn.parallel import DistributedDataParallel as DDP

from ddp_course import checks, results, ring

CLIP = "torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)"
AMP = """optimizer.zero_grad()
    with torch.amp.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    {before}
    {after}
    scaler.step(optimizer)
    scaler.update()"""

# (lesson, function): answers that must be refused, and what the message must mention.
WRONG = {
    ("00_start_here", "bus_bandwidth"): [
        ("return nbytes / seconds / 1e9", "0 for n = 1"),
        ("return nbytes / seconds * 2 * (n - 1) / n", "GB, not bytes"),
        ("return nbytes / seconds * (n - 1) / n / 1e9", "got 0.5, expected 1.0"),
    ],
    ("01_dp_vs_ddp", "step_bytes"): [
        ("return 2 * (n - 1) / n * parameters", "Return two numbers"),
        ("return 2 * n * parameters, 2 * (n - 1) / n * parameters", "Look at DP:"),
        (
            "dp = 2 * (n - 1) * parameters + (n - 1) / n * (inputs + 2 * outputs)\n"
            "    return dp, (n - 1) / n * parameters",
            "Look at DDP:",
        ),
    ],
    ("04_distributed_sampler", "eval_indices"): [
        ("return list(range(rank, n, world_size)) or [0]", "drawn twice"),
        ("return range(rank, n - n % world_size, world_size)", "Some sample is missing"),
        ("return range(n) if rank == 0 else []", "The shares are too uneven"),
    ],
    ("04_distributed_sampler", "my_records"): [
        ("return [x for i, x in enumerate(records) if i % world_size == rank]", "come 2 times"),
        ("return list(records)", "who doesn't skip, ranks or workers?"),
        (
            "n = world_size * workers\n"
            "    return [x for i, x in enumerate(records) if i % n == rank + worker]",
            "how many readers",
        ),
    ],
    ("05_ring_allreduce", "my_ring"): [
        (
            "return [[(r, (r + 1) % n, (r - s) % n, 'add') for r in range(n)]"
            " for s in range(n - 1)]",
            "nobody sends it to rank 0",
        ),
        (
            "return [[(r, (r + 1) % n, (r - s) % n, op) for r in range(n)]"
            " for op in ('add', 'copy') for s in range(n - 1)]",
            "sends what it does not have",
        ),
        (
            "return [[(r, (r + 1) % n, (r - s) % n, 'add') for r in range(n)]"
            " for s in range(2 * n - 2)]",
            "would count twice",
        ),
        (
            "up = [[(r, 0, c, 'add') for c in range(n)] for r in range(1, n)]\n"
            "    return up + [[(0, r, c, 'copy') for c in range(n)] for r in range(1, n)]",
            "not by a ring",
        ),
    ],
    ("05_ring_allreduce", "ring_turns_at"): [
        ("return max(2, int(nbytes / bandwidth / alpha / 2))", "Set the two terms"),
        ("return int(nbytes / bandwidth / alpha)", "There the two are equal"),
        ("return int(nbytes * bandwidth / alpha)", "divide both by 2(N - 1)"),
        ("return nbytes / bandwidth / alpha", "Return a whole number"),
        ("return int(nbytes / bandwidth / alpha) + 1", "at least two ranks"),
    ],
    ("06_overlap_and_accumulation", "counting_hook"): [
        ("return allreduce_hook(None, bucket)", "Add .nbytes under"),
        (
            "kind = str(bucket.buffer().dtype)\n"
            "    state[kind] = state.get(kind, 0) + bucket.buffer().numel()\n"
            "    return allreduce_hook(None, bucket)",
            "Add .nbytes under",
        ),
        ("state['torch.float32'] = 1", "return what allreduce_hook returns"),
        (
            "state[str(bucket.buffer().dtype)] = bucket.buffer().nbytes\n"
            "    return allreduce_hook(None, bucket)",
            "for (3,)",
        ),
    ],
    ("06_overlap_and_accumulation", "plan_accumulation"): [
        ("return [(1 / k, i % k == k - 1) for i in range(len(sizes))]", "also in the tail"),
        ("return [(1, True)] * len(sizes)", "Which backward of each window sends?"),
        (
            "return [(1 / k, i % k == k - 1 or i == len(sizes) - 1) for i in range(len(sizes))]",
            "which share of its samples",
        ),
        ("return [(1, True)]", "return a list with a pair"),
    ],
    ("07_mixed_precision", "amp_step"): [
        (AMP.format(before=CLIP, after=""), "from two float32 steps"),
        (AMP.format(before="scaler.unscale_(optimizer)", after=""), "from two float32 steps"),
        (
            AMP.format(before="scaler.unscale_(optimizer)", after=CLIP).replace(
                "scaler.step(optimizer)", "optimizer.step()"
            ),
            "weights off by nan",
        ),
        (
            AMP.format(before="scaler.unscale_(optimizer)", after=CLIP).replace(
                "float16", "bfloat16"
            ),
            "is it under float16 autocast?",
        ),
        (
            AMP.format(before="scaler.unscale_(optimizer)", after=CLIP).replace("y)", "-y)"),
            "from two float32 steps",
        ),
    ],
    ("07_mixed_precision", "next_scale"): [
        ("return (scale / 2, 0) if overflow else (scale, good + 1)", "after step 2 of"),
        ("return (scale / 2, good) if overflow else (scale, 0)", "after step 2 of"),
        (
            "if overflow:\n        return scale / 2, good\n"
            "    return (scale * 2, 0) if good + 1 == interval else (scale, good + 1)",
            "The first difference is after step",
        ),
    ],
    ("08_batch_size_and_learning_rate", "lr_at"): [
        ("return base * k", "Step 0 has the rate"),
        ("return base if step < warmup else base * k", "by the same amount in each step"),
        ("return base + (base * k - base) * step / max(warmup, 1)", "and stays there"),
    ],
    ("08_batch_size_and_learning_rate", "global_loss"): [
        ("return total(mean_loss) / total(1)", "A mean of means"),
        ("return mean_loss", "Ranks disagree"),
        (
            "if size == 6:\n        return mean_loss\n"
            "    return total(mean_loss * size) / total(size)",
            "every rank must call total equally often",
        ),
    ],
    ("08_batch_size_and_learning_rate", "sync_normalise"): [
        ("return (x - x.mean(0)) / (x.var(0, correction=0) + 1e-5).sqrt()", "where is total?"),
        ("return x - total(x.mean(0)) / 2", "is it total(sum) / total(count)?"),
        ("return x", "is it total(sum) / total(count)?"),
        (
            "n = total(float(len(x)))\n    return x - total(x.sum(0)) / n",
            "The mean is right, the variance not",
        ),
    ],
    ("09_checkpointing", "write_whole"): [
        ("path.write_bytes(content)", "by one rename"),
        (
            "draft = path.with_suffix('.tmp')\n    draft.write_bytes(content)\n"
            "    os.replace(draft, path)",
            "renamed before all of it was flushed",
        ),
        (
            "draft = path.with_suffix('.tmp')\n    with open(draft, 'wb') as file:\n"
            "        file.write(content)\n        os.fsync(file.fileno())\n"
            "        file.write(b'')\n    path.unlink()\n    os.replace(draft, path)",
            "the old file was touched",
        ),
        (
            "with open(path, 'wb') as file:\n        file.write(content)\n        file.flush()\n"
            "        os.fsync(file.fileno())",
            "by one rename",
        ),
    ],
    ("09_checkpointing", "rest_of_epoch"): [
        ("return order[drawn:][rank::world_size]", "Ranks draw different numbers"),
        (
            "rest = order[drawn:]\n    rest += rest[: -len(rest) % world_size]\n"
            "    return rest[rank::world_size]",
            "pad first, then cut",
        ),
        (
            "order += order[: -len(order) % world_size]\n"
            "    return order[rank::world_size][drawn:]",
            "How many samples are left",
        ),
        (
            "order += order[: -len(order) % world_size]\n    rest = order[drawn:]\n"
            "    n = len(rest) // world_size\n    return rest[rank * n : (rank + 1) * n]",
            "Same samples, dealt out otherwise",
        ),
    ],
    ("09_checkpointing", "best_interval"): [
        ("return (save_s * mtbf_s) ** 0.5", "It wastes 1.061 times"),
        ("return mtbf_s / 2", "Where is the derivative zero?"),
        ("return 2 * save_s * mtbf_s", "Where is the derivative zero?"),
    ],
    ("10_model_parallel_with_ddp", "micro_batches_needed"): [
        ("return int((p - 1) * (1 - most_idle) / most_idle) or 1", "they are idle 15.4%"),
        ("return p", "they are idle"),
        ("return round((p - 1) / most_idle)", "they are idle"),
        ("return (p - 1) / most_idle - (p - 1)", "A whole number"),
    ],
    ("10_model_parallel_with_ddp", "one_f_one_b"): [
        ("return gpipe(1, micro)[0]", "A stage holds too many"),
        ("return [(k, m) for m in range(micro) for k in 'FB']", "It ends late"),
        ("return [(k, m) for m in range(micro) for k in 'BF']", "deadlock"),
        ("return [('F', 0), ('B', 0)]", "each micro-batch once F and once B"),
    ],
    ("10_model_parallel_with_ddp", "gpus_needed"): [
        ("return 1", "GB are 1e9 bytes"),
        (
            "n = 1\n    while parameters * 16e-9 / n > abs(gpu_gb - activations_gb) + 1e-9:\n"
            "        n *= 2\n        if n > 1e9:\n            return 1\n    return n",
            "the answer is None",
        ),
        (
            "room = gpu_gb - activations_gb\n    n = 1\n"
            "    while room > 0 and parameters * 14e-9 / n > room:\n        n *= 2\n"
            "    return n if room > 0 else None",
            "got 2, expected 4",
        ),
        (
            "n = 1\n    while (parameters * 16e-9 + activations_gb) / n > gpu_gb:\n"
            "        n *= 2\n    return n",
            "Activations are not divided",
        ),
    ],
    ("11_multi_node", "rank_of"): [
        ("return group_rank * ranks_by_node[group_rank] + local_rank", "before this one"),
        ("return local_rank", "before this one"),
        ("return sum(ranks_by_node[:group_rank]) + group_rank", "before this one"),
    ],
    ("11_multi_node", "bad_node"): [
        ("a, b, _ = min(links, key=lambda link: link[2])\n    return a", "Which node is in all"),
        (
            "from collections import Counter\n"
            "    slow = [n for a, b, speed in links if speed < 5 for n in (a, b)]\n"
            "    return Counter(slow).most_common(1)[0][0] if slow else None",
            "so the answer is None",
        ),
        ("return None", "Which node is in all"),
    ],
    ("11_multi_node", "needed_mbit"): [
        ("return 2 * (n - 1) / n * nbytes / seconds / 1e6", "Bits, not bytes"),
        ("return (n - 1) / n * nbytes * 8 / seconds / 1e6", "How many steps has a ring"),
        ("return nbytes * 8 / seconds / 1e6", "How many steps has a ring"),
    ],
    ("13_performance", "efficiencies"): [
        ("return ddp / one, ddp / independent", "Against N"),
        ("return ddp / (n * one), ddp / (n * independent)", "Against the machine"),
        ("return ddp / (n * one)", "Return two numbers"),
    ],
    ("13_performance", "thief"): [
        ("return 'loader' if max(loader) > 0.3 else wait.index(max(wait))", "Not the one that"),
        (
            "if max(wait) - min(wait) > 0.2:\n"
            "        return wait.index(min(wait))\n"
            "    return 'loader' if max(loader) > 0.3 else 'none'",
            "Everybody waits",
        ),
        (
            "if max(wait) - min(wait) > 0.2:\n"
            "        return wait.index(min(wait))\n"
            "    if min(wait) > 0.3:\n"
            "        return 'communication'\n"
            "    return 'loader' if max(loader) > 0.3 else 'none'",
            "A slow loader comes first",
        ),
    ],
    ("13_performance", "gain"): [
        ("return times", "not the computing"),
        (
            "wire = nbytes / bandwidth\n    return (compute + wire) / (compute + wire / times)",
            "A ring sends",
        ),
        (
            "wire = 2 * (n - 1) / n * nbytes / bandwidth\n    return 1 + wire / compute",
            "at the old and at the new speed",
        ),
    ],
    ("12_pitfalls", "cause"): [
        ("return min(errors, key=lambda e: e[1])[0]", "Leave out those about a peer"),
        (
            "own = [e for e in errors if 'RuntimeError' not in e[2]]\n"
            "    return own[0][0] if own else errors[0][0]",
            "then the earliest",
        ),
        ("return next(e[0] for e in errors if 'peer' not in e[2])", "in no order"),
    ],
    ("12_pitfalls", "missing"): [
        ("return [r for r, n in enumerate(called) if n < max(called)]", "All called equally many"),
        (
            "rare = min(kinds.count(k) for k in kinds)\n"
            "    return [r for r, k in enumerate(kinds) if kinds.count(k) == rare]",
            "the kinds don't matter",
        ),
        ("return [called.index(min(called))]", "got"),
    ],
    ("12_pitfalls", "judge"): [
        ("return 'own' if given == local else 'averaged'", "each rank's value"),
        (
            "mean = sum(local) / len(local)\n"
            "    return 'averaged' if abs(given[0] - mean) < 0.01 else 'summed'",
            "each rank's value",
        ),
        (
            "n, total = len(local), sum(local)\n"
            "    for word, want in (('averaged', total / n), ('summed', total)):\n"
            "        if all(abs(g - want) < 1e-9 for g in given):\n"
            "            return word\n"
            "    return 'own' if given == local else 'other'",
            "expected averaged",
        ),
    ],
    ("03_first_ddp_training", "plan_buckets"): [
        ("return [[i] for i in range(len(sizes) - 1)]", "in exactly one bucket"),
        ("return [list(range(len(sizes))), []]", "No bucket may be empty"),
        ("return [[i] for i in range(len(sizes))]", "before or after it goes over the cap"),
    ],
    ("14_capstone", "share"): [
        ("return order[step * batch :][rank::world_size]", "incomplete batch is in it"),
        (
            "whole = order[: len(order) // batch * batch]\n    return whole[rank::world_size]",
            "images are left",
        ),
        (
            "whole = order[: len(order) // batch * batch][step * batch :]\n"
            "    n = len(whole) // world_size\n"
            "    return whole[rank * n : rank * n + n]",
            "exactly its own images",
        ),
    ],
    ("15_interview", "bug"): [
        ("return 'set_epoch_forgotten'", "Who has the loaded weights"),
        ("return bug_reference(letter) if letter < 'D' else 'summed_loss'", "when it is clipped"),
        ("return letter", "an epoch is over"),
    ],
    ("15_interview", "chunk_to_send"): [
        ("return rank if step < n - 1 else (rank - 1) % n", "is in a sum twice"),
        ("return (rank + step) % n", "lack a rank"),
        ("return rank - step", "chunks"),
    ],
    ("15_interview", "sampler"): [
        (
            "g = torch.Generator().manual_seed(seed)\n"
            "    order = torch.randperm(size, generator=g).tolist()\n"
            "    total = -(-size // world_size) * world_size\n"
            "    return (order * total)[:total][rank::world_size]",
            "epoch 0's order",
        ),
        (
            "g = torch.Generator().manual_seed(seed + epoch)\n"
            "    return torch.randperm(size, generator=g).tolist()[rank::world_size]",
            "Each rank draws ceil",
        ),
        ("return [rank] * -(-size // world_size)", "padded from its start"),
    ],
    ("15_interview", "average_in_backward"): [
        ("pass", "each has its own"),
        (
            "def average(p):\n        p.grad.copy_(total(p.grad))\n\n"
            "    for p in model.parameters():\n"
            "        p.register_post_accumulate_grad_hook(average)",
            "That is the sum",
        ),
        (
            "def average(p):\n        total(p.grad) / n\n\n"
            "    for p in model.parameters():\n"
            "        p.register_post_accumulate_grad_hook(average)",
            "each has its own",
        ),
        (
            "def average(p):\n"
            "        p.grad.copy_(total(p.grad) / n)\n"
            "        handles.pop().remove()\n\n"
            "    handles = [\n"
            "        p.register_post_accumulate_grad_hook(average)\n"
            "        for p in model.parameters()\n"
            "    ]",
            "each has its own",
        ),
    ],
}


def stubs():
    found = []
    for path in NOTEBOOKS:
        for cell in code_cells(read(path)):
            if not cell.source.startswith("%%writefile"):
                for name in re.findall(r"def (\w+)\([^)]*\):(?=\n    raise NotImpl)", cell.source):
                    found.append((path.stem, name))
    return found


def functions_of(source):
    """The functions that a cell defines, without what the cell does."""
    tree = ast.parse(TransformerManager().transform_cell(source))  # ! and % become calls
    tree.body = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    return compile(tree, "cell", "exec")


def run(lesson, name, body=None):
    """Run the stub's cell, its body replaced unless that is None, and the check in the next."""
    notebook = read(ROOT / f"notebooks/{lesson}.ipynb")
    stub = rf"(def {name}\([^)]*\):\n)    raise NotImplementedError.*"
    cells = [c.source for c in code_cells(notebook)]
    at = next(i for i, source in enumerate(cells) if re.search(stub, source))
    cell = cells[at]
    if body is not None:
        cell = re.sub(stub, lambda m: m.group(1) + "    " + body, cell)
    names = {"checks": checks, "torch": torch, "dist": dist, "ring": ring, "gc": gc}
    names |= {"os": os, "shutil": shutil, "results": results}
    names |= {
        "nn": torch.nn,
        "F": torch.nn.functional,
        "DDP": DDP,
        "allreduce_hook": allreduce_hook,
    }
    for source in cells[:at]:
        exec(functions_of(source), names)
    exec(cell + "\n\n" + cells[at + 1], names)


def solution(lesson, name):
    text = "\n".join(c.source for c in read(ROOT / f"notebooks/{lesson}.ipynb").cells)
    found = re.search(rf"```python\n(?:.*\n)*?def {name}\([^)]*\):\n((?:    .*\n|\n)+)```", text)
    assert found, f"no folded solution for {name} in {lesson}"
    return found.group(1).strip()


def test_every_exercise_is_tested():
    assert set(stubs()) == set(WRONG)
    assert all(len(wrong) >= 3 for wrong in WRONG.values())


@pytest.mark.parametrize("exercise", WRONG, ids=lambda e: e[1])
def test_stub_is_green(exercise, capsys):
    run(*exercise)
    assert capsys.readouterr().out == "not attempted yet\n"


@pytest.mark.parametrize("exercise", WRONG, ids=lambda e: e[1])
def test_solution_passes(exercise, capsys):
    run(*exercise, solution(*exercise))
    assert capsys.readouterr().out.startswith("right, in all")


@pytest.mark.parametrize(
    "exercise, body, hint",
    [(e, body, hint) for e, wrong in WRONG.items() for body, hint in wrong],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
def test_wrong_answer_is_told_why(exercise, body, hint):
    with pytest.raises(AssertionError, match=re.escape(hint)):
        run(*exercise, body)


def test_collectives_of_lesson_02(tmp_path):
    """These run on four ranks; a rank that is told is enough, it ends the launch."""
    text = "\n".join(c.source for c in read(ROOT / "notebooks/02_process_groups.ipynb").cells)
    (solutions,) = re.findall(r"```python\n(def tree_broadcast.*?)```", text, flags=re.DOTALL)
    (tmp_path / "solutions.py").write_text(solutions)
    worker, script = ROOT / "tests/workers/exercises.py", ROOT / "scripts/02_exercises.py"
    env = {"DDP_COURSE_RUNS": str(tmp_path), "DDP_COURSE_DEVICE": "cpu"}
    done = torchrun(worker, script, tmp_path / "solutions.py", ranks=4, env=env)
    assert done.returncode == 0, done.stdout
    ranks = json.loads((tmp_path / "exercises.json").read_text())["ranks"]
    hints = {
        "tree_broadcast: star": "a tree needs at most 2",
        "tree_broadcast: nothing": "who sends to this rank",
        "tree_broadcast: returns it": "who sends to this rank",
        "gather_by_broadcast: no clone": "into memory of its own",
        "gather_by_broadcast: always 0": "does every rank broadcast its own copy",
        "gather_by_broadcast: a tensor": "return a list of 4 tensors",
    }
    assert set(ranks[0]) == {*hints, "tree_broadcast: solution", "gather_by_broadcast: solution"}
    for case in ranks[0]:
        told = [rank[case] for rank in ranks if rank[case] != "right"]
        if case in hints:
            assert told and all(hints[case] in text for text in told), (case, told)
        else:
            assert told == [], case
