"""Lesson 07: wrong answers, each with what the check must say, and other right ones."""

import torch
import torch.nn.functional as F

from wrong_answers import right, wrong


@wrong("amp_step", "a gradient is 0.00012 long")
def clipped_before_unscale(model, x, y, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    with torch.amp.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()


@wrong("amp_step", "step 0: off by")
def not_clipped(model, x, y, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    with torch.amp.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


@wrong("amp_step", "the optimizer took 2 steps instead of 0")
def optimizer_steps_itself(model, x, y, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    with torch.amp.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    optimizer.step()
    scaler.update()


@wrong("amp_step", "is it under float16 autocast?")
def bfloat16(model, x, y, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    with torch.amp.autocast("cpu", dtype=torch.bfloat16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()


@wrong("amp_step", "step 0: off by")
def wrong_loss(model, x, y, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    with torch.amp.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), -y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()


@wrong("next_scale", "after step 2 of")
def never_grows(scale, good, overflow, interval):
    return (scale / 2, 0) if overflow else (scale, good + 1)


@wrong("next_scale", "in the count of good steps, is after step 0")
def good_reset_each_step(scale, good, overflow, interval):
    return (scale / 2, good) if overflow else (scale, 0)


@wrong("next_scale", "in the count of good steps, is after step")
def good_kept_after_overflow(scale, good, overflow, interval):
    if overflow:
        return scale / 2, good
    return (scale * 2, 0) if good + 1 == interval else (scale, good + 1)


@right("amp_step")
def zero_at_end(model, x, y, optimizer, scaler, max_norm):
    with torch.autocast("cpu", dtype=torch.float16):
        out = model(x)
    scaler.scale(F.mse_loss(out.float(), y)).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()
    optimizer.zero_grad()


@wrong("next_scale", "is after step 2 of [False, False, False].")
def counts_to_interval(scale, good, overflow, interval):
    if overflow:
        return (scale / 2, 0)
    return (scale * 2, 0) if good == interval else (scale, good + 1)


@wrong("next_scale", "is after step 0 of [True].")
def quarter(scale, good, overflow, interval):
    if overflow:
        return (scale / 4, 0)
    return (scale * 2, 0) if good + 1 == interval else (scale, good + 1)


@wrong("next_scale", "in the count of good steps, is after step 2")
def good_not_reset_on_growth(scale, good, overflow, interval):
    if overflow:
        return (scale / 2, 0)
    return (scale * 2 if good + 1 == interval else scale, good + 1)


@wrong("next_scale", "is after step 4 of [True, True, True, True, True].")
def never_below_64(scale, good, overflow, interval):
    if overflow:
        return (max(scale / 2, 64.0), 0)
    return (scale * 2, 0) if good + 1 == interval else (scale, good + 1)


@right("next_scale")
def by_modulo(scale, good, overflow, interval):
    good = 0 if overflow else good + 1
    return [scale * (0.5 if overflow else 2 if good % interval == 0 else 1), good % interval]


@wrong("amp_step", "step 1: off by")
def never_zeroed(model, x, y, optimizer, scaler, max_norm):
    with torch.amp.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()


@wrong("amp_step", "backward ran under autocast")
def backward_inside(model, x, y, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    with torch.amp.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
        scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()


@wrong("amp_step", "scale 4096 afterwards")
def no_update(model, x, y, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    with torch.amp.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
    scaler.step(optimizer)
    if not loss.isinf():
        scaler.update(scaler.get_scale())
    else:
        scaler.update(2.0**12)


@wrong("amp_step", "the optimizer took 1 steps instead of 2")
def every_second_step(model, x, y, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    with torch.amp.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if model.weight.abs().max() < 0.25001:
        scaler.step(optimizer)
    scaler.update()


@right("amp_step")
def clipped_at_the_scale(model, x, y, optimizer, scaler, max_norm):
    """The same length without unscale_: the limit is scaled instead."""
    optimizer.zero_grad(set_to_none=False)
    with torch.autocast(device_type="cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm * scaler.get_scale())
    scaler.step(optimizer)
    scaler.update()


@right("amp_step")
def zero_through_the_model(model, x, y, optimizer, scaler, max_norm):
    model.zero_grad()
    autocast = torch.amp.autocast("cpu", dtype=torch.half)
    with autocast:
        loss = F.mse_loss(model(x), y)
    scaled = scaler.scale(loss)
    scaled.backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(list(model.parameters()), max_norm=max_norm)
    scaler.step(optimizer)
    scaler.update()


@right("amp_step")
def own_clipping(model, x, y, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    with torch.amp.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    grads = [p.grad for p in model.parameters()]
    norm = torch.cat([g.flatten() for g in grads]).norm()
    if norm > max_norm:
        for g in grads:
            g.mul_(max_norm / norm)
    scaler.step(optimizer)
    scaler.update()


@right("amp_step")
def gradients_by_hand(model, x, y, optimizer, scaler, max_norm):
    with torch.amp.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    for p, g in zip(
        model.parameters(), torch.autograd.grad(scaler.scale(loss), model.parameters())
    ):
        p.grad = g
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()


@right("next_scale")
def as_in_torch(scale, good, overflow, interval):
    if overflow:
        scale, good = scale * 0.5, 0
    else:
        good += 1
        if good == interval:
            scale, good = scale * 2.0, 0
    return scale, good


@right("next_scale")
def nested(scale, good, overflow, interval):
    return (
        (scale / 2, 0)
        if overflow
        else ((2 * scale, 0) if good >= interval - 1 else (scale, good + 1))
    )


@right("next_scale")
def tensors(scale, good, overflow, interval):
    if overflow:
        return torch.as_tensor(scale) / 2, torch.tensor(0)
    grown = (good + 1) // interval
    return torch.as_tensor(scale) * 2**grown, torch.as_tensor((good + 1) % interval)


@right("next_scale")
def with_match(scale, good, overflow, interval):
    match overflow, good + 1 == interval:
        case True, _:
            return 0.5 * scale, 0
        case False, True:
            return 2 * scale, 0
    return scale, good + 1


def steps(log):
    return list(zip(log[0], log[0][1:]))


def right_one(log, *, skip=(), longest=5, most=4):
    """The solution, with one of its questions left out or its limits moved."""
    if "ranks" not in skip and any(a["scale"] != b["scale"] for a, b in zip(*log)):
        return "scales differ"
    if "norm" not in skip and any(most < row["norm"] < float("inf") for row in log[0]):
        return "clipped before unscale_"
    if "update" not in skip and any(
        a["skipped"] and a["scale"] == b["scale"] for a, b in steps(log)
    ):
        return "update() is missing"
    flags = "".join("x" if row["skipped"] else "." for row in log[0])
    return "forward overflows" if "x" * (longest + 1) in flags else "nothing"


@wrong("diagnose", "Compare the two ranks' rows")
def one_rank_only(log):
    return right_one(log, skip=("ranks",))


@wrong("diagnose", "How large is the norm")
def norms_ignored(log):
    return right_one(log, skip=("norm",))


@wrong("diagnose", "What happens to the scale after a skipped step?")
def updates_ignored(log):
    return right_one(log, skip=("update",))


@wrong("diagnose", "is a healthy scaler")
def any_skip_is_a_fault(log):
    return right_one(log, longest=0)


@wrong("diagnose", "Halving did not help")
def skips_are_fine(log):
    return right_one(log, longest=30)


@wrong("diagnose", "is a healthy scaler")
def infinite_norms_count(log):
    if any(row["norm"] > 4 for row in log[0]):
        return "clipped before unscale_"
    return right_one(log)


@wrong("diagnose", "Return one of nothing")
def in_own_words(log):
    return {"nothing": "healthy"}.get(right_one(log), right_one(log))


@right("diagnose")
def a_little_looser(log):
    return right_one(log, longest=6, most=10)


@right("diagnose")
def by_columns(log):
    scales = [[row["scale"] for row in rows] for rows in log]
    if scales[0] != scales[1]:
        return "scales differ"
    if len(set(scales[0])) == 1:
        return "update() is missing"
    if sorted(row["norm"] for row in log[0] if not row["skipped"])[-1] > 100:
        return "clipped before unscale_"
    return "forward overflows" if sum(row["skipped"] for row in log[1]) > 8 else "nothing"


@right("diagnose")
def by_the_smallest_scale(log):
    if any(len({row["scale"] for row in rows}) > 1 for rows in zip(*log)):
        return "scales differ"
    rows = log[1]
    if any(row["norm"] != float("inf") and row["norm"] > 1000 for row in rows):
        return "clipped before unscale_"
    if all(row["scale"] == rows[0]["scale"] for row in rows):
        return "update() is missing"
    return "nothing" if min(row["scale"] for row in rows) > 2**10 else "forward overflows"


@right("diagnose")
def with_tensors(log):
    scale = torch.tensor([[row["scale"] for row in rows] for rows in log])
    norm = torch.tensor([row["norm"] for row in log[0]])
    skipped = torch.tensor([row["skipped"] for row in log[0]])
    if (scale[0] != scale[1]).any():
        return "scales differ"
    if (norm[norm.isfinite()] > 4).any():
        return "clipped before unscale_"
    if (scale[0, 1:] == scale[0, :-1])[skipped[:-1]].any():
        return "update() is missing"
    return "forward overflows" if skipped.unfold(0, 6, 1).all(1).any() else "nothing"


@right("diagnose")
def other_order(log):
    if len({tuple(row["scale"] for row in rows) for rows in log}) == 2:
        return "scales differ"
    rows, run = log[0], 0
    if not any(a["scale"] != b["scale"] for a, b in steps(log)):
        return "update() is missing"
    for row in rows:
        run = run + 1 if row["skipped"] else 0
        if run == 8:
            return "forward overflows"
    return "clipped before unscale_" if min(row["norm"] for row in rows) > 4 else "nothing"


@wrong("amp_step", "the optimizer took")
def asks_the_loss(model, x, y, optimizer, scaler, max_norm):
    """A finite loss whose gradients overflow: this steps, and destroys the weights."""
    optimizer.zero_grad()
    with torch.amp.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    if loss.isfinite():
        optimizer.step()
    scaler.update()


@wrong("diagnose", "Compare the two ranks' rows")
def first_row_only(log):
    if log[0][0]["scale"] != log[1][0]["scale"]:
        return "scales differ"
    return right_one(log, skip=("ranks",))


@wrong("diagnose", "is a healthy scaler")
def two_skips_in_a_row(log):
    return right_one(log, longest=1)


@wrong("next_scale", "in the scale, is after step")
def never_below_one(scale, good, overflow, interval):
    if overflow:
        return max(scale / 2, 1.0), 0
    return (scale * 2, 0) if good + 1 == interval else (scale, good + 1)
