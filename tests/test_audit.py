"""Loops right and wrong, on two ranks in one launch: the audit answers the three questions."""

import json

import pytest
import torch
from launch import ROOT, torchrun

from ddp_course import audit

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
    "other start": (True, True, True, "before and after each of 12 steps"),  # DDP mends it
    "module": (True, False, False, "each rank's own, never averaged, since step 0"),
    "no_sync": (True, False, False, "each rank's own, never averaged, since step 0"),
    "unfrozen late": (True, False, False, "never averaged, since step 6: 3.weight\n"),
    "no averaging": (True, False, False, "parameters differ since step 0"),
    "sum by hand": (True, True, False, "the sum over ranks, 2 times the average"),
    "last layer by hand twice": (True, True, None, "alike on all ranks"),
    "reduces parameters": (True, False, False, "neither the average nor alike"),
    "no gradient on rank 1": (True, False, False, "some ranks only, since step 0: 0.bias"),
    "NaN": (True, None, None, "not finite, since step 0: 0.bias"),
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
    assert set(ranks[0]) == {*EXPECTED, "bits", "raises"}


@pytest.mark.parametrize("case", EXPECTED)
def test_case(ranks, case):
    *answers, words = EXPECTED[case]
    for found in (rank[case] for rank in ranks):
        for name, answer in zip(("split", "in_sync", "averaged"), answers):
            if (case, name) != ("NaN", "in_sync"):  # NaN is equal in its bits, or not
                assert found[name]["answer"] is answer, found["text"]
        assert words in found["text"] + "\n", found["text"]


def test_ranks_agree_in_what_they_say(ranks):
    assert all(rank[case] == ranks[0][case] for rank in ranks for case in EXPECTED)


def test_a_loop_that_raises_on_one_rank(ranks):
    assert ranks[1]["raises"] == "raised"
    assert ranks[0]["raises"].count("the loop raised ZeroDivisionError") == 3


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
    reference = audit._bits(tensor)
    assert audit._bits(tensor.clone()) == audit._bits(tensor.t().contiguous().t()) == reference
    for at in range(tensor.numel()):
        other = tensor.clone()
        other.view(-1)[at] = other.view(-1)[at] == 0
        assert audit._bits(other) != reference
    assert audit._bits(tensor.flip(0)) != reference
    assert audit._bits(torch.tensor(1.0)) != audit._bits(torch.tensor(2.0))
    assert audit._bits(tensor[:0]) == 0
