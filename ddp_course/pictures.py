"""What `plots.show` refuses: a picture that hides a part of what it was made to show."""

import re
from itertools import combinations

import numpy as np
from matplotlib.collections import Collection, PathCollection
from matplotlib.lines import Line2D
from matplotlib.patches import FancyArrowPatch, Patch
from matplotlib.text import Text

SLACK = 2.0  # pixels that a bounding box may be off: fonts have no sharp edges


def check(fig):
    """Raise if a reader could not see all of a figure.

    Parameters
    ----------
    fig : matplotlib.figure.Figure

    Raises
    ------
    ValueError
        Data of an artist lies outside its axes; text leaves the figure; two texts overlap; an axis
        with numbers has no label; the figure has no title. All of them, one a line.
    """
    fig.canvas.draw()
    faults = [fault for ax in fig.axes for fault in [*_unlabelled(ax), *_outside(ax)]]
    texts = list(_texts(fig))
    faults += _untitled(fig) + _text_outside(fig, texts) + _overlapping(texts)
    if faults:
        raise ValueError("this picture can't be read:\n- " + "\n- ".join(faults))


def _name(ax):
    return repr(next(filter(None, [*_titles(ax), ax.get_ylabel()]), "untitled axes"))


def _titles(ax):
    return [ax.get_title(side) for side in ("left", "center", "right")]


def _untitled(fig):
    parts = [fig, *fig.subfigs]
    if any(part.get_suptitle() for part in parts) or any(any(_titles(ax)) for ax in fig.axes):
        return []
    return ["the figure has no title"]


def _unlabelled(ax):
    if not ax.axison or not ax.get_visible():
        return
    for side, axis in (("x", ax.xaxis), ("y", ax.yaxis)):
        ticks = [t.get_text() for t in axis.get_ticklabels() if t.get_visible()]
        words = any(re.search("[A-Za-z]{2}", re.sub(r"\$.*?\$", "", text)) for text in ticks)
        if any(ticks) and not words and not axis.label.get_text():
            shared = getattr(ax, f"get_shared_{side}_axes")().get_siblings(ax)
            if not any(getattr(other, f"{side}axis").label.get_text() for other in shared):
                yield f"the {side} axis of {_name(ax)} has numbers and no label"


def _points(artist, ax):
    """Corners of what an artist draws, in data coordinates; nan where another system rules."""
    if isinstance(artist, Line2D):
        points, transform = artist.get_xydata(), artist.get_transform()  # words as numbers
    elif isinstance(artist, PathCollection):
        points, transform = artist.get_offsets(), artist.get_offset_transform()
    elif isinstance(artist, Collection):
        box = artist.get_datalim(ax.transData)
        points, transform = box.get_points(), ax.transData
        if not np.isfinite(points).all():
            return np.empty((0, 2))
    elif isinstance(artist, Patch) and not isinstance(artist, FancyArrowPatch):
        path = artist.get_path()
        transform = artist.get_transform()
        if not transform.contains_branch(ax.transData):
            return np.empty((0, 2))
        points = ax.transData.inverted().transform_path(transform.transform_path(path)).vertices
        transform = ax.transData
    else:
        return np.empty((0, 2))
    points = np.ma.filled(np.ma.asarray(points, float), np.nan)
    ruled = transform.contains_branch_seperately(ax.transData)  # matplotlib spells it so
    return np.where(ruled, points, np.nan)


def _outside(ax):
    if not ax.get_visible():
        return
    scales = [axis.get_transform() for axis in (ax.xaxis, ax.yaxis)]
    limits = [ax.get_xlim(), ax.get_ylim()]
    for artist in [*ax.lines, *ax.collections, *ax.patches]:
        if not artist.get_visible() or not artist.get_clip_on():
            continue
        points = _points(artist, ax)
        for column, scale, limit, side in zip(points.T, scales, limits, "xy"):
            with np.errstate(all="ignore"):
                values = scale.transform(column[np.isfinite(column)])
            low, high = sorted(scale.transform(np.array(limit)))
            room = 1e-6 * (high - low)
            values = values[np.isfinite(values)]
            if len(values) and (values.min() < low - room or values.max() > high + room):
                kind = type(artist).__name__
                yield (
                    f"{side} of a {kind} in {_name(ax)} goes from {values.min():.4g} to "
                    f"{values.max():.4g}, the axis from {low:.4g} to {high:.4g}"
                )


def _texts(fig):
    """Every text that is drawn, with its box in pixels."""
    hidden = {id(t) for ax in fig.axes for t in _not_drawn(ax)}
    renderer = fig.canvas.get_renderer()
    for text in fig.findobj(Text):
        if text.get_visible() and text.get_text().strip() and id(text) not in hidden:
            box = text.get_window_extent(renderer)
            if box.width and box.height:
                yield text, box


def _not_drawn(ax):
    """Labels of axes that are switched off, and of ticks beyond the limits: made, not drawn."""
    if not ax.get_visible():
        yield from ax.findobj(Text)
    for axis in (ax.xaxis, ax.yaxis):
        drawn = set() if not ax.axison else {id(t) for t in axis._update_ticks()}
        for tick in [*axis.get_major_ticks(), *axis.get_minor_ticks()]:
            if id(tick) not in drawn:
                yield from (tick.label1, tick.label2)
        if not ax.axison:
            yield from (axis.label, axis.offsetText)


def _text_outside(fig, texts):
    width, height = fig.canvas.get_width_height()
    return [
        f"the text {text.get_text()!r} leaves the figure"
        for text, box in texts
        if min(box.x0, box.y0, width - box.x1, height - box.y1) < -SLACK
    ]


def _overlapping(texts):
    faults = []
    for (one, a), (two, b) in combinations(texts, 2):
        wide = min(a.x1, b.x1) - max(a.x0, b.x0)
        high = min(a.y1, b.y1) - max(a.y0, b.y0)
        if wide > SLACK and high > SLACK:
            faults.append(f"the texts {one.get_text()!r} and {two.get_text()!r} overlap")
    return faults[:5]
