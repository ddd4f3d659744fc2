"""Lesson 07: wrong answers, each with what the check must say, and other right ones."""

import torch
import torch.nn.functional as F

from wrong_answers import right, wrong


@wrong("amp_step", "from two float32 steps")
def clipped_before_unscale(model, x, y, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    with torch.amp.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm)
    scaler.step(optimizer)
    scaler.update()


@wrong("amp_step", "from two float32 steps")
def not_clipped(model, x, y, optimizer, scaler, max_norm):
    optimizer.zero_grad()
    with torch.amp.autocast("cpu", dtype=torch.float16):
        loss = F.mse_loss(model(x), y)
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)
    scaler.step(optimizer)
    scaler.update()


@wrong("amp_step", "weights off by nan")
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


@wrong("amp_step", "from two float32 steps")
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


@wrong("next_scale", "after step 2 of")
def good_reset_each_step(scale, good, overflow, interval):
    return (scale / 2, good) if overflow else (scale, 0)


@wrong("next_scale", "The first difference is after step")
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


@wrong("next_scale", "The first difference is after step 2 of [False, False, False].")
def counts_to_interval(scale, good, overflow, interval):
    if overflow:
        return (scale / 2, 0)
    return (scale * 2, 0) if good == interval else (scale, good + 1)


@wrong("next_scale", "The first difference is after step 0 of [True].")
def quarter(scale, good, overflow, interval):
    if overflow:
        return (scale / 4, 0)
    return (scale * 2, 0) if good + 1 == interval else (scale, good + 1)


@wrong("next_scale", "after step 5 of [False, False, False, False, False, False].")
def good_not_reset_on_growth(scale, good, overflow, interval):
    if overflow:
        return (scale / 2, 0)
    return (scale * 2 if good + 1 == interval else scale, good + 1)


@wrong("next_scale", "The first difference is after step 4 of [True, True, True, True, True].")
def never_below_64(scale, good, overflow, interval):
    if overflow:
        return (max(scale / 2, 64.0), 0)
    return (scale * 2, 0) if good + 1 == interval else (scale, good + 1)


@right("next_scale")
def by_modulo(scale, good, overflow, interval):
    good = 0 if overflow else good + 1
    return [scale * (0.5 if overflow else 2 if good % interval == 0 else 1), good % interval]
