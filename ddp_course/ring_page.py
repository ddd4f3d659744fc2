"""Two pages within a page, for lesson 05: a player of schedules, and a calculator.

Both run in the reader's browser, without a kernel and without a network, in JupyterLab and in the
book. The schedules are those of `ring`; the calculator's formulas are `ring.what_if`'s.
"""

import numpy as np
from IPython.display import HTML, display

from ddp_course import evidence, pages, ring

RANKS = range(2, 9)
RECORDED = (
    "Recorded links: the smallest message's time as fixed cost, the largest one's busbw as B."
)


def player_page():
    """HTML of the player: choose an algorithm and 2 to 8 ranks, and step through.

    Returns
    -------
    str
    """
    made = {"ring": ring.ring, "star": ring.star, "tree": ring.tree,
            "halving-doubling": ring.halving_doubling}  # fmt: skip
    schedules = {name: {n: _plain(make(n)) for n in RANKS} for name, make in made.items()}
    schedules["two-level"] = {
        n: _plain(ring.two_level(n, per_node=n // 2)) for n in RANKS if n > 3 and n % 2 == 0
    }
    buttons = {"first": "First step", "previous": "Previous step", "next": "Next step",
               "last": "Last step"}  # fmt: skip
    signs = dict(zip(buttons, ("|◀", "◀", "▶", "▶|")))
    controls = "".join(
        f'<button type="button" data-is="{name}" aria-label="{label}">{signs[name]}</button>'
        for name, label in buttons.items()
    )
    return pages.page(
        "ring_player",
        f"""<div class="controls">
<label>algorithm <select data-is="algorithm"></select></label>
<label>ranks <select data-is="ranks"></select></label>
{controls}<button type="button" data-is="play">Play</button></div>
<svg data-is="picture" role="img" xmlns="http://www.w3.org/2000/svg"></svg>
<p data-is="text" aria-live="polite">Run this cell to start the player.</p>""",
        schedules,
    )


def calculator_page():
    """HTML of the calculator: what would an all-reduce take on other links?

    Returns
    -------
    str
    """
    fields = {"ranks": "ranks", "per_node": "ranks in a node", "megabytes": "buffer, MB",
              "fixed_us": "fixed cost of a call, µs", "alpha_in_us": "α inside, µs",
              "GBps_in": "B inside, GB/s", "alpha_between_us": "α between, µs",
              "GBps_between": "B between, GB/s"}  # fmt: skip
    inputs = "".join(
        f'<label>{label} <input data-is="{name}" type="number" step="any"></label>'
        for name, label in fields.items()
    )
    return pages.page(
        "ring_calculator",
        f"""<div class="controls"><label>links <select data-is="preset"></select></label>
{inputs}</div>
<svg data-is="picture" role="img" viewBox="0 0 720 100" xmlns="http://www.w3.org/2000/svg"></svg>
<p data-is="text" aria-live="polite">Run this cell to start the calculator.</p>
<small>{RECORDED}</small>""",
        presets(),
    )


def presets():
    """Links to start from: lesson 06's slow one, an example, and the recorded sweeps.

    Returns
    -------
    dict of str to dict
        By name: ranks, ranks in a node, and the links, in the calculator's units.
    """
    links = ("alpha_in_us", "GBps_in", "alpha_between_us", "GBps_between")

    def preset(n, per_node, fixed, *values):
        sizes = {"ranks": n, "per_node": per_node, "megabytes": 100, "fixed_us": fixed}
        return sizes | dict(zip(links, values))

    found = {
        "an example: fast inside, slow between": preset(64, 8, 20, 1, 300, 5, 25),
        "lesson 06's slow link": preset(2, 1, 0, 3000, 0.12, 3000, 0.12),
    }
    rows = evidence.load("nccl_allreduce_sweeps").rows
    for system in dict.fromkeys(r["system"] for r in rows):
        some = [r for r in rows if r["system"] == system and r["time_us"] and r["busbw_GBps"]]
        few, many = (f(some, key=lambda r: r["bytes"]) for f in (min, max))
        name = f"recorded: {few['gpus']} {few['gpu']} in {few['nodes']} node(s)"
        speed = round(many["busbw_GBps"], 1)
        found[name] = preset(few["gpus"], few["gpus"] // few["nodes"], few["time_us"],
                             0, speed, 0, speed)  # fmt: skip
    return found


def player():
    """Display the player."""
    display(HTML(player_page()))


def calculator():
    """Display the calculator."""
    display(HTML(calculator_page()))


def _plain(schedule):
    """A schedule as lists: [src, dst, chunk, whether it is added] for each message."""
    steps = []
    for step in schedule.steps:
        columns = (step.src, step.dst, step.chunk, np.broadcast_to(step.add, step.src.shape))
        steps.append(np.stack(columns, axis=1).astype(int).tolist())
    return {"chunks": schedule.chunks, "steps": steps}
