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


@wrong("step_bytes", "run the cell with `formula` again and add up its rows.")
def swapped(parameters, inputs, outputs, n):
    dp = 2 * (n - 1) * parameters + (n - 1) / n * (inputs + 2 * outputs)
    return (2 * (n - 1) / n * parameters, dp)


@wrong("step_bytes", "run the cell with `formula` again and add up its rows.")
def outputs_once(parameters, inputs, outputs, n):
    return (
        2 * (n - 1) * parameters + (n - 1) / n * (inputs + outputs),
        2 * (n - 1) / n * parameters,
    )


@wrong("step_bytes", "run the cell with `formula` again and add up its rows.")
def whole_batch_leaves(parameters, inputs, outputs, n):
    return (2 * (n - 1) * parameters + inputs + 2 * outputs, 2 * (n - 1) / n * parameters)


@right("step_bytes")
def as_a_list(parameters, inputs, outputs, n):
    sent = sum(parameters + inputs / n + outputs / n for _ in range(n - 1))
    back = sum(outputs / n + parameters for _ in range(n - 1))
    return [sent + back, 2 * parameters - 2 * parameters / n]
