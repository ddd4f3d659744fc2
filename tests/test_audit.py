"""Loops right and wrong, on two ranks in one launch: the audit answers the three questions."""

import json

import pytest
import torch
from launch import ROOT, torchrun

from ddp_course.tools import audit

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
    "NaN from rank 1": (True, None, True, "NaN or inf on rank 1, so in the average too"),
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
    "another's optimizer": (True, None, None, "is it another's?"),
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
}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    env = {"DDP_COURSE_RUNS": str(folder), "DDP_COURSE_DEVICE": "cpu"}
    done = torchrun(ROOT / "tests/workers/audited.py", env=env)
    assert done.returncode == 0, done.stdout
    return json.loads((folder / "audited.json").read_text())["ranks"]


def test_every_case_is_expected(ranks):
    assert set(ranks[0]) == {*EXPECTED, "bits", "raises", "keys left", "skipped"}


@pytest.mark.parametrize("case", EXPECTED)
def test_case(ranks, case):
    *answers, words = EXPECTED[case]
    for found in (rank[case] for rank in ranks):
        for name, answer in zip(("split", "in_sync", "averaged"), answers):
            if "NaN" not in case or name != "in_sync":  # NaN is equal in its bits, or not
                assert found[name]["answer"] is answer, found["text"]
        assert words in found["text"] + "\n", found["text"]


def test_ranks_agree_in_what_they_say(ranks):
    assert all(rank[case] == ranks[0][case] for rank in ranks for case in EXPECTED)


def test_a_loop_that_raises_on_one_rank(ranks):
    assert ranks[1]["raises"] == "raised"
    assert ranks[0]["raises"].count("the loop raised ZeroDivisionError") == 3


def test_a_rank_that_skips_a_watch_is_missed(ranks):
    assert ranks[0]["skipped"].count("no word from rank 1: did it skip the watch at audited") == 3
    assert ranks[1]["skipped"] == "passed by"


def test_nothing_stays_in_the_store(ranks):
    assert [rank["keys left"] for rank in ranks] == [[], []]


def test_it_changes_nothing_and_leaves_nothing(ranks):
    for rank in ranks:
        assert rank["bits"] == {"same": True, "hooks left": 0, "sampler": "BatchSampler"}


def test_one_rank_can_t_tell():
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with audit.watch(model, optimizer) as report:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    verdicts = report.split, report.in_sync, report.averaged
    assert all(v.answer is None and "one rank only" in v.evidence[0] for v in verdicts)
    assert "can't tell" in str(report)


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
        return audit._bits(tensor[None]).item()

    reference = bits(tensor)
    assert bits(tensor.clone()) == bits(tensor.t().contiguous().t()) == reference
    for at in range(tensor.numel()):
        other = tensor.clone()
        other.view(-1)[at] = other.view(-1)[at] == 0
        assert bits(other) != reference
    assert bits(tensor.flip(0)) != reference
    assert bits(torch.tensor(1.0)) != bits(torch.tensor(2.0))
    assert bits(tensor[:0]) == 0
    assert audit._bits(tensor).tolist() == [bits(row) for row in tensor]
