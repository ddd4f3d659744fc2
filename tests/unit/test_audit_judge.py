"""The judge is pure: logs of 2, 3 and 4 ranks, stored as JSON, judged in milliseconds.

tests/tools/workers/audit_loops.py wrote them: `torchrun ... audit_loops.py FOLDER case ...`.
"""

import copy
import json
from pathlib import Path

import pytest

from ddp_course.tools.audit.judge import judge
from ddp_course.tools.audit.log import Call, from_json, to_json

LOGS = Path(__file__).parent / "audit_logs"

# file: (data split?, in sync?, averaged?), and words of the report
EXPECTED = {
    "right.2": (True, True, True, "each of 48 samples on one rank"),
    "right.3": (True, True, True, "each of 48 samples on one rank"),
    "right.4": (True, True, True, "equal to the average of the local ones"),
    "by_hand.3": (True, True, True, "32 collectives of the loop"),
    "BatchNorm.2": (True, True, True, "buffers differ at the end (DDP's next forward mends it):"),
    "schedule_for_each_rank.2": (True, True, True, "stepped 24 times in 12 steps"),
    "head_outside.3": (True, False, False, "parameter 4 of the optimizer (2 × 2, not in this"),
    "weighted_one_seed.3": (False, True, True, "the same draws in the same order on all ranks"),
    "codebook_no_broadcast.4": (True, False, True, "each rank updates codebook (Codebook) from"),
    "module.4": (True, False, False, "each rank's own, never averaged, since step 0"),
    "sum_by_hand.4": (True, True, False, "the sum over ranks, 4 times the average"),
    "own_weight_decay.4": (True, False, True, "weight_decay differ at step 0: [[0.1], [0.2], [0.3"),
}  # fmt: skip


def read(name):
    return [from_json(json.dumps(log)) for log in json.loads((LOGS / f"{name}.json").read_text())]


@pytest.fixture
def four():
    return read("right.4")


def test_every_file_is_expected():
    assert {path.stem for path in LOGS.glob("*.json")} == set(EXPECTED)


@pytest.mark.parametrize("name", EXPECTED)
def test_stored(name):
    *answers, words = EXPECTED[name]
    logs = read(name)
    before = copy.deepcopy(logs)
    report = judge(logs)
    found = [report.split.answer, report.in_sync.answer, report.averaged.answer]
    assert found == answers, str(report)
    assert words in str(report), str(report)
    assert report.paired.answer is True
    assert logs == before, "the judge changes nothing"
    assert judge(logs) == report


@pytest.mark.parametrize("name", ["right.3", "by_hand.3"])
def test_json_keeps_everything(name):
    for log in read(name):
        assert from_json(to_json(log)) == log


def test_one_parameter_of_one_rank_at_one_step(four):
    four[2].states[2]["0.weight"] += 1
    report = judge(four)
    assert report.in_sync.answer is None
    assert "parameters differ since step 1: 0.weight" in report.in_sync.evidence
    for state in four[2].states[2:]:
        state["0.weight"] = 1
    assert judge(four).in_sync.answer is False


def test_one_gradient_that_only_one_of_four_ranks_has_changed(four):
    gradients = four[3].steps[1].gradients
    gradients["3.bias"] = gradients["3.bias"]._replace(given=gradients["3.bias"].given + 1)
    report = judge(four)
    assert "alike after backward, but not at the step, since step 1: 3.bias" in str(report)


def test_nan_is_no_yes_from_the_step_where_it_came(four):
    nan = float("nan")
    for log in four:
        for step in log.steps[3:]:
            step.gradients = {
                k: g._replace(reduced=nan, given=nan, local=nan if log.rank == 2 else g.local)
                for k, g in step.gradients.items()
            }
    report = judge(four)
    assert (report.in_sync.answer, report.averaged.answer) == (None, None)
    assert "NaN or inf on rank 2, so in the average too, since step 3" in str(report)
    for log in four:  # and where weights differed before, NaN hides nothing
        log.states[1]["0.bias"] = log.rank
    assert judge(four).in_sync.answer is not True


def test_settings_that_change_later_on_one_rank(four):
    settings = copy.deepcopy(four[1].steps[0].settings)
    settings[0]["momentum"] = 0.9
    four[1].steps[2].settings = four[1].settings = settings
    report = judge(four)
    assert report.in_sync.answer is False
    assert "momentum differ at step 2: [[0], [0.9], [0], [0]]" in report.in_sync.evidence


@pytest.mark.parametrize("course, words", [
    ([0.1, 0.08, 0.06, 0.04, 0.02, 0], None),  # down
    ([0.02, 0.06, 0.1, 0.06, 0.02, 0], None),  # up and down
    ([0.1, 0.1, 0.1, 0.01, 0.01, 0.01], None),  # steps
    ([0.1, 0.05, 0, 0.05, 0.1, 0.1], "0.1 at step 0, 0 at step 2 of 5, 0.1 at the end"),
    ([0.1, 0.05, 0, 0, 0, 0], "0.1 at step 0, 0 at step 2 of 5, 0 at the end"),
])  # fmt: skip
def test_course_of_the_learning_rate(course, words):
    logs = read("right.2")
    for log in logs:
        start = log.steps[0].settings
        log.steps = log.steps[:5]
        log.states, log.buffers = log.states[:6], log.buffers[:6]
        *rates, last = [[start[0] | {"lr": lr}] for lr in course]
        for step, groups in zip(log.steps, rates):
            step.settings = groups
        log.settings = last
    notes = [note for note in judge(logs).notes if "learning rate" in note]
    assert notes == ([] if words is None else [f"the course of the learning rate: {words}"])


def calling(logs, calls):
    """Give each rank its calls: lists of (site, kind, dtype, count, how, group)."""
    for log, own in zip(logs, calls):
        log.calls = [Call(*call) for call in dict.fromkeys(own)]
        log.sequence = [log.calls.index(Call(*call)) for call in own]
        log.groups = {"0": [0, 1, 2, 3], "1": [1, 3]}
    return judge(logs).paired


SUM = ("train.py:30", "all_reduce", "float32", 3, "SUM", "0")
ROOT = ("train.py:41", "broadcast", "float32", 3, "from 0", "0")
PART = ("train.py:50", "all_reduce", "float32", 8, "SUM", "1")


def test_collectives_of_four_ranks_and_of_a_part_of_them(four):
    both = [SUM, PART, SUM]
    paired = calling(four, [[SUM, SUM], both, [SUM, SUM], both])
    assert paired.answer is True, str(paired)
    # The order of two groups' calls is no fault by itself: each group's own must agree.
    paired = calling(four, [[SUM, SUM], both, [SUM, SUM], [PART, SUM, SUM]])
    assert paired.answer is True, str(paired)
    paired = calling(four, [[SUM, SUM], both, [SUM, SUM], [SUM, SUM]])
    assert paired.evidence == ["collective 1 in the group of ranks [1, 3]: rank 1 at train.py:50 "
                               "all_reduce of 8 (float32 SUM), rank 3 calls none"]  # fmt: skip


def test_the_one_rank_that_calls_another(four):
    paired = calling(four, [[SUM] * 5, [SUM] * 5, [SUM] * 4 + [ROOT], [SUM] * 5])
    assert paired.answer is False
    assert paired.evidence == ["collective 5: rank 0 at train.py:30 all_reduce of 3 (float32 SUM), "
                               "rank 2 at train.py:41 broadcast of 3 (float32 from 0)"]  # fmt: skip


def test_a_rank_whose_loop_raised_is_compared_as_far_as_it_came(four):
    four[1].failed = "the loop raised OSError"
    paired = calling(four, [[SUM] * 5, [SUM] * 2, [SUM] * 5, [SUM] * 5])
    assert paired.answer is None
    assert paired.evidence[:2] == ["the loop raised OSError",
                                   "as far as it is known, 2 collectives pair up"]  # fmt: skip
    paired = calling(four, [[SUM] * 5, [ROOT], [SUM] * 5, [SUM] * 5])
    assert paired.answer is False


def test_objects_of_unequal_size_pair_up(four):
    objects = ("train.py:9", "all_gather_object", "", None, "", "0")
    assert calling(four, [[objects]] * 4).answer is True


def test_batches_that_come_again(four):
    for log in four:
        log.epochs["train"] = []
        log.given, log.inputs = "stream", [[log.rank, i % 4, 7, 8] for i in range(10)]
    notes = judge(four).notes
    assert any("in the same order every 4 steps" in note for note in notes)
    for log in four:
        log.inputs = [[log.rank, i, 7, 8] for i in range(10)]
    report = judge(four)
    assert not any("in the same order" in note for note in report.notes)
    assert "pass loader=" not in str(report), "it was passed"


def test_a_gan_s_fakes_among_the_batches_that_come_again(four):
    for log in four:
        log.epochs["train"] = []
        log.inputs = [[5, 6, i // 2 % 4 if i % 2 else 1000 + i] for i in range(20)]
    assert any("in the same order every 4 steps" in note for note in judge(four).notes)


def test_what_never_got_a_gradient_on_any_rank(four):
    for log in four:
        log.without = ["0.bias", *(["3.bias"] if log.rank else [])]
    notes = [note for note in judge(four).notes if "never got a gradient" in note]
    assert len(notes) == 1 and ": 0.bias (" in notes[0]


def test_one_log_or_other_models(four):
    assert "there is one rank only" in judge(four[:1]).split.evidence
    four[0].names = ["other"]
    assert "the ranks watched different models" in judge(four).averaged.evidence
    four[3].failed = "no word from rank 3"
    report = judge(four)
    assert all("no word from rank 3" in verdict.evidence for verdict in report.verdicts())
