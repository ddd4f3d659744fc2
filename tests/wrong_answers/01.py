"""Lesson 01: wrong answers, each with what the check must say, and other right ones."""

from wrong_answers import right, wrong


@wrong("step_bytes", "Return two numbers")
def one_number(parameters, inputs, outputs, n):
    return 2 * (n - 1) / n * parameters


@wrong("step_bytes", "Look at DP:")
def dp_by_n(parameters, inputs, outputs, n):
    return 2 * n * parameters, 2 * (n - 1) / n * parameters


@wrong("step_bytes", "Look at DDP:")
def ddp_one_phase_only(parameters, inputs, outputs, n):
    dp = 2 * (n - 1) * parameters + (n - 1) / n * (inputs + 2 * outputs)
    return dp, (n - 1) / n * parameters
