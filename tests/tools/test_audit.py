"""Loops right and wrong, on two ranks in one launch: the audit answers the four questions."""

import json

import pytest
import torch
from launching import ROOT, torchrun

from ddp_course.tools import audit
from ddp_course.tools.audit import fingerprint

# case: (data split?, in sync?, averaged?), and words of the evidence.
EXPECTED = {
    "right": (True, True, True, "each of 48 samples on one rank"),
    "accumulated": (True, True, True, "equal to the average"),
    "fp16 hook": (True, True, True, "equal to the average"),
    "clip": (True, True, True, "clipped?"),
    "scaler": (True, True, True, "equal to the average"),
    "scaler, clip": (True, True, True, "clipped?"),
    "by hand": (True, True, True, "every bit equal"),
    "padding": (True, True, True, "1 drawn twice, as padding"),
    "loss times N": (True, True, True, "equal to the average"),  # it was the loss, not DDP
    "other start": (
        True,
        True,
        True,
        "every bit equal before each of 12 steps and after",
    ),  # DDP mends it
    "module": (True, False, False, "each rank's own, never averaged, since step 0"),
    "no_sync": (True, False, False, "each rank's own, never averaged, since step 0"),
    "unfrozen late": (True, False, False, "never averaged, since step 6: 3.weight\n"),
    "no averaging": (True, False, False, "parameters differ since step 0"),
    "sum by hand": (True, True, False, "the sum over ranks, 2 times the average"),
    "last layer by hand twice": (True, True, None, "averaged, then times 2"),
    "reduces parameters": (True, False, False, "alike after backward, but not at the step"),
    "no gradient on rank 1": (True, False, False, "some ranks only, since step 0: 0.bias"),
    "NaN": (
        True,
        None,
        None,
        "NaN or inf at the step, though on no rank before, since step 0: 0.bias",
    ),
    "loaded on rank 0": (True, False, True, "parameters differ before the first step"),
    "own rate": (True, False, True, "learning rates differ at step 0: [[0.05], [0.1]]"),
    "other optimizer state": (True, False, True, "optimizer state differs at the end"),
    "one step more on rank 1": (True, False, None, "optimizer steps by rank: [12, 14]"),
    "no sampler": (False, True, True, "overlap"),
    "own seed": (False, True, True, "overlap"),
    "no loader given": (None, True, True, "other samples at the same step"),
    "data cut up beforehand": (None, True, True, "data cut up beforehand?"),
    "with replacement": (None, True, True, "drawn with replacement"),
    "stream": (False, True, True, "the same samples on all ranks in 12 of 12 steps"),
    "set_epoch forgotten": (False, True, True, "set_epoch?"),
    "leak": (False, True, True, "4 samples are in training and in validation"),
    "clip by value": (True, True, True, "clipped?"),
    "clip each": (True, True, True, "clipped?"),
    "bucket view": (True, True, True, "equal to the average"),
    "static graph": (True, True, True, "equal to the average"),
    "rotating branches": (True, True, True, "equal to the average"),
    "rotating, accumulated": (True, True, True, "equal to the average"),
    "BatchNorm": (True, True, True, "buffers differ at the end (DDP's next forward mends it): 1.r"),
    "foreach": (True, True, True, "equal to the average"),
    "fused": (True, True, True, "equal to the average"),
    "groups of parameters": (True, True, True, "equal to the average"),
    "ZeRO": (True, True, True, "equal to the average"),
    "LBFGS": (True, True, True, "equal to the average"),
    "closure": (True, True, True, "equal to the average"),
    "zeros, not None": (True, True, True, "equal to the average"),
    "checkpointed": (True, True, True, "equal to the average"),
    "checkpointed, reentrant": (True, True, True, "equal to the average"),
    "compiled": (True, True, True, "equal to the average"),
    "autograd.grad": (True, True, True, "equal to the average"),
    "built inside": (True, True, True, "equal to the average"),
    "weight decay by hand": (True, True, True, "changed before the step"),
    "by hand, at times clipped": (True, True, True, "clipped?"),
    "NaN from rank 1": (True, None, None, "NaN or inf on rank 1, so in the average too"),
    "own group": (None, None, None, "there is one rank only"),
    "generator": (True, True, True, "equal to the average"),
    "discriminator": (True, True, True, "equal to the average"),
    "averages parameters": (True, True, None, "are those averaged instead?"),
    "local SGD": (True, None, None, "equal again before step 3: averaged among ranks"),
    "Join": (True, None, None, "yet the parameters are equal at the end (Join?)"),
    "sum in a hook, clipped": (True, True, False, "the sum over ranks, 2 times the average"),
    "sum by hand, clipped": (True, True, None, "A sum would look the same"),
    "summed again": (True, True, False, "the sum over ranks, 2 times the average"),
    "divided by 8": (True, True, None, "the average times 0.25"),
    "rank 0 clips": (True, False, False, "alike after backward, but not at the step, since step 0"),
    "every second step": (True, False, False, "each rank's own, never averaged"),
    "no sync of the second": (True, False, False, "each rank's own, never averaged"),
    "nudged once": (True, False, True, "parameters differ since step 3: 0.weight"),
    "NaN on rank 1": (True, None, None, "NaN or inf at the step on rank 1, not on all"),
    "another's optimizer": (True, False, None, "is it another's?"),
    "augmented": (True, True, True, "each of 48 samples"),
    "twins": (True, True, True, "each of 48 samples"),
    "twins in order": (None, True, True, "entered the model on several ranks"),
    "oversampled": (True, True, True, "each of 48 samples"),
    "own part": (True, True, True, "each of 48 samples"),
    "drop_last": (True, True, True, "each of 40 samples on one rank, 8 not drawn"),
    "three batches an epoch": (True, True, True, "each of 24 samples on one rank, 24 not drawn"),
    "a look at the data": (True, True, True, "each of 48 samples"),
    "other order": (False, True, True, "is the data in another order on each rank?"),
    "index ignored": (False, True, True, "entered the model on several ranks"),
    "four replicas": (False, True, True, "24 of 48 samples drawn by no rank (num_replicas is 4)"),
    "same data": (False, True, None, "nothing to see"),
    # What determines a step, besides the gradient.
    "own weight decay": (True, False, True, "weight_decay differ at step 0: [[0.1], [0.2]]"),
    "own momentum": (True, False, True, "momentum differ at step 0: [[0.4], [0.8]]"),
    "own betas": (True, False, True, "betas differ at step 0: [[[0.9, 0.99]], [[0.9, 0.98]]]"),
    "head outside": (True, False, False, "parameter 4 of the optimizer (2 × 2, not in this model)"),
    "head wrapped, too": (True, True, True, "equal to the average"),
    "temperature outside": (True, False, False, "never averaged, since step 0: parameter 0 of"),
    "codebook": (True, True, True, "each rank updates codebook (Codebook) from its own batch: DDP"),
    "codebook, evaluated": (True, True, True, "the updates of other ranks are thrown away"),
    "codebook, no broadcast": (True, False, True, "codebook (Codebook) from its own batch, and"),
    "codebook, averaged": (True, True, True, "12 collectives of the loop"),
    "BatchNorm, evaluated": (True, True, True, "equal to the average"),
    "BatchNorm, no broadcast": (
        True,
        True,
        True,
        "buffers differ at the end (BatchNorm's may): 1.",
    ),
    # The schedule.
    "schedule": (True, True, True, "equal to the average"),
    "warm-up": (True, True, True, "equal to the average"),
    "restarts": (True, True, True, "equal to the average"),
    "schedule for each rank": (
        True,
        True,
        True,
        "note: CosineAnnealingLR stepped 24 times in 12 steps of the optimizer (once for each "
        "rank, or micro-batch?): learning rate 0.05 at step 0, 0 at step 6 of 12, 0.05 at the end",
    ),
    "schedule too short": (True, True, True, "rate: 0.05 at step 0, 0 at step 6 of 12, 0.05 at"),
    # What did not happen, or happened twice.
    "cut off": (True, True, True, "never got a gradient, though in the optimizer and asking for"),
    "set by hand": (True, True, None, "no backward() of this step made (set by hand?), since"),
    "set by hand, not reduced": (True, False, False, "made, not alike, since step 0: 0.weight"),
    "zero_grad forgotten": (True, True, True, "11 of 12 steps, first 1, backward() added to the"),
    "sent twice": (True, True, True, "added to gradients that were averaged already"),
    "real and fake": (True, True, True, "if it is meant (several losses"),
    "strides": (True, True, True, "of one.weight has strides [9, 1, 3, 1], the parameter (and"),
    "strides, alike": (True, True, True, "equal to the average"),
    "g first: generator": (True, True, True, "equal to the average"),
    "g first: discriminator": (True, True, True, "equal to the average"),
    "left in d: generator": (True, True, True, "equal to the average"),
    "left in d": (True, True, True, "a backward before the step of another optimizer"),
    "left in g": (True, True, True, "a backward before the step of another optimizer"),
    "left in g: discriminator": (True, True, True, "equal to the average"),
    # Data.
    "weighted, one seed": (False, True, True, "the same draws in the same order on all ranks"),
    "weighted, own seed": (None, True, True, "drawn with replacement"),
    "stream, one order": (None, True, True, "batches come again in the same order every 6 steps"),
    "stream, new order": (None, True, True, "the loader has no indices"),
    "persistent workers": (None, True, True, "come again in the same order every 6 steps: does"),
    "endless, too early": (False, True, True, "epoch 1 has the order of the one before"),
    "endless, not given": (None, True, True, "come again in the same order every 6 steps"),
    # The loss.
    "loss reduced before": (True, True, True, "all_reduce of a tensor that requires grad, before"),
    "loss reduced after": (True, True, True, "12 collectives of the loop"),
}

# Right loops: no NO and no note.
CLEAN = """
    right; accumulated; fp16 hook; padding; bucket view; static graph; rotating branches; ZeRO;
    checkpointed; head wrapped, too; codebook, averaged; BatchNorm, evaluated; schedule; warm-up;
    restarts; strides, alike; generator; g first: generator; left in d: generator; LBFGS;
    weighted, own seed; stream, new order; loss reduced after; drop_last; closure; compiled;
    zeros, not None; groups of parameters; oversampled; augmented
"""
CLEAN = [" ".join(case.split()) for case in CLEAN.split(";")]

# case: is it paired?, and words of the evidence.
PAIRED = {
    "extra on rank 0": (False, "collective 2: rank 0 at audit_others.py:", "rank 1 calls none"),
    "other kind": (False, " broadcast of 3 (float32 from 0), rank 1 at ", " all_reduce of 3"),
    "other count": (False, " all_reduce of 3 (float32 SUM), rank 1 at ", " all_reduce of 4"),
    "other type": (False, " all_reduce of 3 (float32 SUM), rank 1 at", "3 (int32 SUM)"),
    "other operation": (False, "(float32 SUM), rank 1 at", "(float32 MAX)"),
    "other root": (False, "broadcast of 3 (float32 from 0), rank 1 at", "(float32 from 1)"),
    "other order of calls": (False, "collective 1: rank 0 at audit_others.py:", "other way round"),
    "branches": (True, "2 collectives of the loop"),
    "roots": (True, "7 collectives of the loop"),
    "operation left out": (True, "2 collectives of the loop"),
    "raises in between": (False, "collective 1: rank 0 at", "of 4 (float32 SUM)"),
    "raises on rank 1": (None, "the loop raised ArithmeticError", "1 collectives pair up"),
    "raises on rank 1, and rank 0 ends": (False, "collective 2: rank 0 calls none, rank 1 at"),
}

SAID_BESIDES = {*PAIRED, "bits", "raises", "keys left", "skipped", "functions left"}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    out = tmp_path_factory.mktemp("audit") / "ranks.json"
    done = torchrun(ROOT / "tests/tools/workers/audit_loops.py", out, timeout=250)
    assert done.returncode == 0, done.stdout
    return [json.loads(out.with_suffix(f".json.{rank}").read_text()) for rank in (0, 1)]


def test_every_case_is_expected(ranks):
    assert set(ranks[0]) == {*EXPECTED, *SAID_BESIDES}
    assert {*CLEAN} < {*EXPECTED}


@pytest.mark.parametrize("case", EXPECTED)
def test_case(ranks, case):
    *answers, words = EXPECTED[case]
    for found in (rank[case] for rank in ranks):
        if "can't be had" in found:
            pytest.skip(found["can't be had"])
        for name, answer in zip(("split", "in_sync", "averaged"), answers):
            assert found[name] is answer, found["text"]
        assert words in found["text"] + "\n", found["text"]
        assert found["paired"] is (None if case == "own group" else True), found["text"]


@pytest.mark.parametrize("case", CLEAN)
def test_right_loop_has_no_note(ranks, case):
    text = ranks[0][case].get("text", "")
    assert "note:" not in text, text
    assert "NO" not in text, text


@pytest.mark.parametrize("case", PAIRED)
def test_collectives(ranks, case):
    answer, *words = PAIRED[case]
    for found in (rank[case] for rank in ranks):
        assert found["paired"] is answer, found["text"]
        assert all(word in found["text"] for word in words), found["text"]


def test_ranks_agree_in_what_they_say(ranks):
    assert all(rank[case] == ranks[0][case] for rank in ranks for case in [*EXPECTED, *PAIRED])


def test_a_loop_that_raises_on_one_rank(ranks):
    assert ranks[1]["raises"] == "raised"
    assert ranks[0]["raises"].count("the loop raised ZeroDivisionError") == 4


def test_a_rank_that_skips_a_watch_is_missed(ranks):
    assert ranks[0]["skipped"].count("no word from rank 1: did it skip the watch at audit_") == 4
    assert ranks[1]["skipped"] == "passed by"


def test_nothing_stays_in_the_store(ranks):
    if ranks[0]["keys left"] is None:
        pytest.skip("this torch can't list the keys of a store")
    assert [rank["keys left"] for rank in ranks] == [[], []]


def test_it_changes_nothing_and_leaves_nothing(ranks):
    for rank in ranks:
        assert rank["bits"] == {"same": True, "hooks left": 0, "sampler": "BatchSampler"}
        assert rank["functions left"] == []


def test_one_rank_can_t_tell():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with audit.watch(model, optimizer) as report:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    assert [v.answer for v in report.verdicts()] == [None] * 4
    assert all("one rank only" in v.evidence[0] for v in report.verdicts())
    assert str(report).count("can't tell") == 4


def test_a_world_of_one_that_was_asked_for_more_says_so(monkeypatch):
    monkeypatch.setenv("SLURM_NTASKS", "4")
    model = torch.nn.Linear(2, 1)
    with audit.watch(model, torch.optim.SGD(model.parameters(), lr=0.1)) as report:
        pass
    assert all("SLURM_NTASKS is 4" in v.evidence[1] for v in report.verdicts())


def test_what_it_can_t_follow_it_leaves_alone():
    """Samples with names instead of numbers: the loop runs, the audit can't tell."""
    names = {"a": torch.ones(2), "b": torch.zeros(2)}

    class Named(torch.utils.data.Dataset):
        def __getitem__(self, name):
            return names[name]

        def __len__(self):
            return len(names)

    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=torch.tensor(0.1))
    loader = torch.utils.data.DataLoader(Named(), batch_size=1, sampler=list(names))
    with audit.watch(model, optimizer, loader) as report:
        seen = [x.tolist() for x in loader]
    assert seen == [[[1.0, 1.0]], [[0.0, 0.0]]]
    assert report.split.answer is None and "can't follow" in report.split.evidence[0]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_fingerprint_sees_every_element_and_its_place(dtype):
    numbers = torch.arange(24).reshape(4, 6)
    tensor = numbers % 5 == 0 if dtype == torch.bool else numbers.to(dtype)

    def bits(tensor):
        return fingerprint.bits(tensor[None]).item()

    reference = bits(tensor)
    assert bits(tensor.clone()) == bits(tensor.t().contiguous().t()) == reference
    for at in range(tensor.numel()):
        other = tensor.clone()
        other.view(-1)[at] = other.view(-1)[at] == 0
        assert bits(other) != reference
    assert bits(tensor.flip(0)) != reference
    assert bits(torch.tensor(1.0)) != bits(torch.tensor(2.0))
    assert bits(tensor[:0]) == 0
    assert fingerprint.bits(tensor).tolist() == [bits(row) for row in tensor]
