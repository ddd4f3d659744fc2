"""What lessons assert of a script's result: a choice that must hold on GPUs as on the CPU."""

from typing import NamedTuple

HELD, NOT_HELD, NOT_RUN = "held", "not held", "not run"


class Claim(NamedTuple):
    """What a lesson asserts of a script's result.

    Attributes
    ----------
    script, says : str
    relation : str
        Python, as the lesson has it: `run` is the result, `ranks` what each rank found, `N` their
        number.
    least : int
        Ranks without which it says nothing.
    """

    script: str
    says: str
    relation: str
    least: int = 1


CLAIMS = [
    Claim("00_hello", "an all-reduce gives every rank the sum 1 + ... + N",
          'all(r["sum"] == N * (N + 1) / 2 for r in ranks)', 2),
    Claim("01_gradients", "DDP hands over 4 bytes for each parameter, however the loss is reduced",
          'all(case["bucket_bytes"] == 660 for case in run["cases"].values())'),
    Claim("01_gradients", "DDP divides before it sums: float16 gradients of 40,000 don't overflow",
          'run["half"]["ddp"] == "40000.0" and run["half"]["by_hand"] == "inf"', 2),
    Claim("01_data_parallel", "under DataParallel GPU 0 needs more memory than the others",
          '(peaks := run["gpu"]["peaks"])[0] > max(peaks[1:])'),
    Claim("01_data_parallel", "each further GPU gets all parameters and returns as many gradients",
          '(moved := run["gpu"]["moved"])["broadcast_coalesced, forward"] '
          '== moved["reduce_add_coalesced, backward"] > 0'),
    Claim("01_replicas", "of DataParallel's replicas only what GPU 0 writes in place remains",
          'run["in_place"] == -(-8 // run["gpus"]) and run["attribute"] == 0'),
    Claim("01_dp_vs_ddp", "every rank holds all parameters, gradients and momentum",
          'all(r["parameters"] == r["gradients"] == r["optimizer"] for r in run["ranks"])'),
    Claim("01_dp_vs_ddp", "with DDP the digits are learned", 'run["accuracy"] > 0.9'),
    Claim("02_all_to_all", "AVG is the sum divided by N",
          'all(r["after"]["all_reduce_avg"] == [v / N for v in r["after"]["all_reduce_sum"]] '
          'for r in ranks)', 2),
    Claim("02_halves", "reduce-scatter and all-gather make an all-reduce",
          'all(r["integers"][0] == 0 and r["random"][0] < 1e-5 for r in ranks)', 2),
    Claim("02_halves", "gradients flow back through AllReduce, not through dist.all_reduce",
          'all(r["gradients"]["dist.all_reduce"] == 1 and r["gradients"]["AllReduce"] == N '
          'for r in ranks)', 2),
    Claim("02_some_ranks", "nobody leaves a barrier before the last has come",
          'all(r["barrier"] > -0.01 for r in ranks)', 2),
    Claim("03_replicas", "wrapping gives every rank rank 0's weights",
          'len({r["at_wrap"]["before"] for r in ranks}) == N and '
          '{r["at_wrap"]["after"] for r in ranks} == {ranks[0]["at_wrap"]["before"]}', 2),
    Claim("03_replicas", "replicas stay equal to the bit, and DDP looks at no weight again",
          'len({r["nothing"]["parameters"] for r in ranks}) == 1 '
          '< len({r["changed by hand"]["parameters"] for r in ranks})', 2),
    Claim("03_buffers", "a forward copies rank 0's buffers if the one before was to train",
          'ranks[1]["copied"] == [True, True, True, False, False, False, True]', 2),
    Claim("03_buckets", "one bucket in the first step, then three, in the order of backward",
          '[len(step) for step in ranks[0]["alike"]["buckets"]] == [1, 3, 3]', 2),
    Claim("03_compile", "DDPOptimizer compiles a graph for each bucket, here four",
          'all(seen["graphs"] == (4 if "ddp_optimizer" in case else 1) '
          'for case, seen in run["found"].items())', 2),
    Claim("03_own_ddp_check", "a wrapper written by hand trains as one process with the full batch",
          'all(s["gap"] < 1e-5 for s in run["stages"].values() if s)', 2),
    Claim("03_ddp", "the digits are learned", 'run["accuracy"] >= 0.95'),
    Claim("06_accumulation", "with no_sync one message a window, and the large batch's gradients",
          '(v := run["variants"]["no_sync, right"])["messages"] == [1, 1, 1] and v["gap"] < 1e-6',
          2),
    Claim("06_accumulation", "a sync at the wrong step lets the replicas drift apart",
          'all(run["variants"][name]["drift"] > 0 for name in '
          '("sends one step early", "sends at the first"))', 2),
    Claim("06_hooks", "fp16 and bf16 hooks halve the bytes",
          'run["hooks"]["fp16"]["bytes"] == run["hooks"]["bf16"]["bytes"] '
          '== run["hooks"]["allreduce"]["bytes"] / 2', 2),
    Claim("06_options", "buckets: 1, then 3; never rebuilt with find_unused_parameters",
          'all(r["options"]["spare layer removed"]["buckets"] == [1, 3, 3, 3] and '
          'len(set(r["options"]["find_unused_parameters"]["buckets"])) == 1 for r in ranks)'),
    Claim("07_amp", "autocast doesn't cut DDP's traffic: gradients are sent in float32",
          'all(r["sent"] == {"torch.float32": 4 * run["parameters"]} '
          'for r in run["runs"].values())'),
    Claim("07_overflow", "one rank's overflow makes every rank skip the step",
          'all(r["before averaging"]["skipped"] and r["before averaging"]["drift"] == 0 '
          'for r in ranks)', 2),
    Claim("08_batch", "ranks × micro-steps give the weights of one process with the large batch",
          'ranks[0]["large batch"]["gap"] < 1e-5', 2),
    Claim("08_batchnorm", "BatchNorm on N ranks is not BatchNorm of the full batch",
          'ranks[0]["gap"]["BatchNorm2d"]["weights"] > 1e-4', 2),
    Claim("08_batchnorm", "SyncBN written by hand is BatchNorm of the full batch",
          'ranks[0]["gap"]["HandMadeSyncBN"]["buffers"] < 1e-5', 2),
    Claim("08_batchnorm", "torch's SyncBatchNorm is, too (on the CPU it refuses)",
          'max(ranks[0]["SyncBatchNorm"].values()) < 1e-5', 2),
    Claim("09_train", "all ranks end with the same bits",
          'len({r["digest"] for r in ranks}) == 1', 2),
    Claim("09_parts", "resumed from a checkpoint that has everything: the same bits",
          'ranks[0]["nothing"]["gap"] == 0'),
    Claim("10_ledger", "DDP with Adam holds 16 bytes for each parameter, ZeRO-1 8 + 8/N",
          'abs((b := {s: sum(h[k] for k in ("parameters", "gradients", "optimizer")) / run["size"] '
          'for s, h in ranks[0].items()})["DDP"] - 16) < 1e-6 and '
          'abs(b["ZeRO-1"] - 8 - 8 / N) < 0.2 and abs(b["FSDP2"] - 16 / N) < 0.2', 2),
    Claim("10_ledger", "ZeRO-1, FSDP2 and tensor parallel train as DDP does",
          'all(held["gap to DDP"] < 1e-4 for r in ranks for held in r.values())', 2),
    Claim("10_activation", "of six ways to checkpoint activations under DDP one fails",
          '[said == "works" for said in ranks[0].values()] == [True, True, True, True, False, True]'
          ),
    Claim("10_two_devices", "a model on two GPUs inside DDP trains as one process does",
          'all(r["gap"] < 1e-6 for r in ranks)', 2),
    Claim("14_train", "the classifier to take away reaches 97 %, with the same weights everywhere",
          'run["accuracy"] >= 0.97 and len(set(run["digests"])) == 1'),
    Claim("14_killed", "after a kill it goes on at the checkpoint of step 100",
          'run["first"] == 100 and len(set(run["digests"])) == 1', 2),
    Claim("03_resnet_buckets", "ResNet-50's 25,557,032 parameters leave in the same buckets",
          'run["steps"][1] == run["steps"][2] and sum(b[0] for b in run["steps"][2]) == 25_557_032'
          ),
]  # fmt: skip


def judge(claim, run):
    """(held, not held or not run; why) for a script's result, or for the reason there is none."""
    if isinstance(run, str):
        return NOT_RUN, run
    n = run["where"]["world_size"]
    if n < claim.least:
        return NOT_RUN, f"needs {claim.least} ranks"
    try:
        fine = eval(claim.relation, {"run": run, "ranks": run.get("ranks"), "N": n})
    except Exception as error:  # a result of another kind than the lesson's is a finding, too
        return NOT_HELD, f"{type(error).__name__}: {error}"
    return (HELD, "") if fine else (NOT_HELD, "")
