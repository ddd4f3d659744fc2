"""One look for every figure: safe colours, a second cue, and where it was measured."""

from itertools import cycle, islice

import matplotlib as mpl
import matplotlib.pyplot as plt
from IPython.display import display

from ddp_course import pictures

# Petroff's six: told apart with every common kind of colour blindness.
COLOURS = mpl.color_sequences["petroff6"]
MARKERS = ("o", "s", "^", "D", "v", "P")
HATCHES = ("", "///", "...", "xxx", "\\\\\\", "+++")


def style():
    """Set the course's defaults: size, grid, colours with a marker to each."""
    mpl.rcParams.update(
        {
            "figure.figsize": (8, 3.6),
            "figure.dpi": 100,
            "figure.constrained_layout.use": True,
            "axes.prop_cycle": mpl.cycler(color=COLOURS) + mpl.cycler(marker=MARKERS),
            "axes.grid": True,
            "axes.axisbelow": True,
            "axes.titlelocation": "left",
            "axes.spines.top": False,
            "axes.spines.right": False,
            "grid.alpha": 0.3,
            "font.size": 10,
        }
    )


def stamp(fig, where):
    """Write under the figure where its numbers were measured.

    Parameters
    ----------
    fig : matplotlib.figure.Figure
    where : dict or str
        From ``results.load(...)["where"]``, or what `evidence.cite` says of a recording.
    """
    if isinstance(where, str):
        text = where
    else:
        text = (
            f"torch {where['torch']}, {where['world_size']} ranks, {where['backend']}, "
            f"{where['device']}, {where['cores']} cores, {where['threads']} threads a rank"
        )
    fig.supxlabel(text, fontsize=7.5, color="0.4", x=0.99, ha="right")


def bars(ax, labels, values, *, errors=None, fmt="{:.3g}", horizontal=True):
    """Draw labelled bars, each with its own colour and hatch, the value at its end.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    labels : list of str
    values : list of float
    errors : list of (low, high), optional
        Whiskers: distances below and above the value.
    fmt : str
        Format of the value.
    horizontal : bool
        Long labels read better sideways.
    """
    colours = islice(cycle(COLOURS), len(values))
    hatches = islice(cycle(HATCHES), len(values))
    err = None if errors is None else [list(side) for side in zip(*errors)]
    draw, key = (ax.barh, "xerr") if horizontal else (ax.bar, "yerr")
    made = draw(labels, values, color=list(colours), edgecolor="white", **{key: err})
    for bar, hatch in zip(made, hatches):
        bar.set_hatch(hatch)
    ax.bar_label(made, [fmt.format(v) for v in values], padding=4)
    ax.margins(**{"x" if horizontal else "y": 0.15})
    ax.grid(False, axis="y" if horizontal else "x")
    if horizontal:
        ax.invert_yaxis()


def buffers(ax, ranks, title, colours=None):
    """Draw what every rank holds: a row of boxes for each rank.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    ranks : list of list of str
        Text in each box, by rank; "" leaves the box out.
    title : str
    colours : list of list of int or None, optional
        Index into COLOURS by box: whose data it is; None: a mixture of all. Default: the rank's
        own.
    """
    for r, boxes in enumerate(ranks):
        for i, text in enumerate(boxes):
            if text == "":
                continue
            whose = colours[r][i] if colours else r
            box = mpl.patches.Rectangle((i, -r), 0.92, 0.8, linewidth=0)
            if whose is None:
                box.set(facecolor="1.0", edgecolor="0.75", hatch="////")
            else:
                box.set(facecolor=COLOURS[whose % len(COLOURS)], alpha=0.35)
            ax.add_patch(box)
            behind = {"facecolor": "1.0", "edgecolor": "none", "pad": 1} if whose is None else None
            ax.text(i + 0.46, 0.4 - r, text, ha="center", va="center", bbox=behind)
        ax.text(-0.1, 0.4 - r, f"rank {r}", ha="right", va="center", fontsize=9)
    ax.set(xlim=(-0.9, max(map(len, ranks))), ylim=(-len(ranks) + 0.9, 0.9), title=title)
    ax.axis("off")


def moves(ax, n, arrows, title, names="GPU"):
    """Draw which device sends to which in one phase: a column of boxes and arrows between them.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    n : int
        Devices.
    arrows : list of (int, int)
        From, to. An arrow from a device to itself fills its box: it computes.
    title : str
    names : str
        What a box is called, before its number.
    """
    busy = {a for a, b in arrows if a == b}
    for i in range(n):
        box = mpl.patches.Rectangle(
            (-0.35, -i - 0.3), 0.7, 0.6, facecolor=COLOURS[0] if i in busy else "1.0",
            alpha=0.5 if i in busy else 1.0, edgecolor="0.4",
        )  # fmt: skip
        ax.add_patch(box)
        ax.text(0, -i, f"{names} {i}", ha="center", va="center", fontsize=8)
    for a, b in arrows:
        if a != b:
            side = 1 if b > a else -1
            arrow = mpl.patches.FancyArrowPatch(
                (0.35 * side, -a), (0.35 * side, -b), arrowstyle="-|>", mutation_scale=11,
                connectionstyle="arc3,rad=-0.45", color=COLOURS[1 if b > a else 4],
            )  # fmt: skip
            ax.add_patch(arrow)
    ax.set(xlim=(-1.5, 1.5), ylim=(-n + 0.4, 0.6))
    ax.set_title(title, fontsize=9, loc="center")
    ax.axis("off")


def ledger(ax, rows, samples, labels, title):
    """Draw who drew which sample: a row for each epoch or variant, a column for each sample.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    rows : list of list of list of int
        rows[i][rank]: the samples that the rank drew in row i.
    samples : int
        Columns.
    labels : list of str
        One a row.
    title : str

    A box has the colour and number of its rank; "+" marks a sample drawn again, "…" one drawn more
    than twice, an empty place one that nobody drew.
    """
    for y, ranks in enumerate(rows):
        owners = [[] for _ in range(samples)]
        for rank, drawn in enumerate(ranks):
            for i in drawn:
                owners[i].append(rank)
        for i, who in enumerate(owners):
            if who:
                box = mpl.patches.Rectangle(
                    (i, -y), 0.92, 0.8, facecolor=COLOURS[who[0] % len(COLOURS)], alpha=0.35,
                    hatch="////" if len(who) > 1 else "", edgecolor="0.3", linewidth=0,
                )  # fmt: skip
                ax.add_patch(box)
                names = "+".join(map(str, who if len(who) < 3 else sorted(set(who))))
                names += "…" if len(who) > 2 else ""
                size = 10 if len(names) < 4 else 7
                ax.text(i + 0.46, 0.4 - y, names, ha="center", va="center", fontsize=size)
    ax.set(xlim=(0, samples), ylim=(-len(rows) + 0.9, 1), title=title, xlabel="sample")
    ax.set_xticks([i + 0.46 for i in range(samples)], range(samples))
    ax.set_yticks([0.4 - y for y in range(len(rows))], labels)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def contributions(ax, parts, title, written=()):
    """Draw whose numbers are in which chunk: a row of boxes for each rank.

    A box has a place for each rank, filled in that rank's colour if its numbers are in the sum.

    Parameters
    ----------
    ax : matplotlib.axes.Axes
    parts : uint64 array, shape (n, chunks)
        From `ring.State`.
    title : str
    written : iterable of (rank, chunk)
        Boxes that the last step wrote: they get a thick frame.
    """
    n, chunks = parts.shape
    for r in range(n):
        for c in range(chunks):
            for who in range(n):
                if int(parts[r, c]) >> who & 1:
                    place = (c + who * 0.86 / n, -r)
                    colour = COLOURS[who % len(COLOURS)]
                    ax.add_patch(mpl.patches.Rectangle(place, 0.86 / n, 0.8, facecolor=colour))
    for r in range(n):
        for c in range(chunks):
            new = (r, c) in written
            frame = mpl.patches.Rectangle(
                (c, -r), 0.86, 0.8, fill=False,
                edgecolor="0" if new else "0.7", linewidth=2.2 if new else 0.8,
            )  # fmt: skip
            ax.add_patch(frame)
    ax.set(xlim=(-0.1, chunks), ylim=(-n + 0.85, 1))
    ax.set_title(title, fontsize=9)
    ax.set_xticks([c + 0.43 for c in range(chunks)], range(chunks), fontsize=8)
    ax.set_yticks([0.4 - r for r in range(n)], [f"rank {r}" for r in range(n)], fontsize=8)
    ax.grid(False)
    ax.spines[:].set_visible(False)
    ax.tick_params(length=0)


def show(fig, alt):
    """Display a figure with a text for those who can't see it, and close it.

    Parameters
    ----------
    fig : matplotlib.figure.Figure
    alt : str
        What the figure shows, in a sentence.

    Raises
    ------
    ValueError
        A reader could not see all of it: see `pictures.check`.
    """
    pictures.check(fig)
    display(fig, metadata={"image/png": {"alt": alt}})
    plt.close(fig)
