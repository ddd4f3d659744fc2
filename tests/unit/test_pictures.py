"""What a reader couldn't see is refused, and what is fine is not."""

import matplotlib.pyplot as plt
import pytest

from ddp_course import pictures, plots


def picture(**axes):
    plots.style()
    fig, ax = plt.subplots(figsize=(6, 3))
    ax.set(**{"title": "A finding", "xlabel": "steps", "ylabel": "ms"} | axes)
    return fig, ax


def frozen_top():
    """What two lessons had: ``set(ylim=0)`` inside a loop over axes that share their y."""
    fig, axes = plt.subplots(1, 2, sharey=True, figsize=(6, 3))
    for ax, high in zip(axes, (1, 5)):
        ax.scatter([0, 1], [0.5, high])
        ax.set(ylim=0, title="A finding", xlabel="steps", ylabel="ms")
    return fig


def line_outside():
    fig, ax = picture()
    ax.plot([1, 2, 3])
    ax.set_ylim(0, 2)
    return fig


def bars_on_a_log_axis():
    fig, ax = picture()
    ax.barh(["a", "b"], [1, 100])
    ax.set_xscale("log")
    return fig


def error_bar_outside():
    fig, ax = picture()
    ax.errorbar([0, 1], [1, 2], yerr=[1, 5])
    ax.set_ylim(0, 3)
    return fig


def text_outside():
    fig, ax = picture()
    fig.set_layout_engine("none")  # ours would make room for it
    ax.text(0.99, 0.5, "a text that does not fit into the figure any more at all")
    return fig


def long_title():
    return picture(title="A finding that takes so many words that the figure is too narrow for it")[
        0
    ]


def labels_overlap():
    fig, ax = picture()
    ax.text(0.5, 0.5, "first label")
    ax.text(0.52, 0.52, "second label")
    return fig


def ticks_overlap():
    fig, ax = picture()
    ax.set_xticks([0.1, 0.12, 0.14], ["a long label", "another one", "a third"])
    return fig


@pytest.mark.parametrize("draw, says", [
    (frozen_top, "y of a PathCollection"),
    (line_outside, "y of a Line2D in 'A finding' goes from 1 to 3, the axis from 0 to 2"),
    (bars_on_a_log_axis, "x of a Rectangle"),
    (error_bar_outside, "y of a LineCollection"),
    (text_outside, "leaves the figure"),
    (long_title, "leaves the figure"),
    (labels_overlap, "'first label' and 'second label' overlap"),
    (ticks_overlap, "overlap"),
    (lambda: picture(xlabel="")[0], "the x axis of 'A finding' has numbers and no label"),
    (lambda: picture(title="")[0], "the figure has no title"),
])  # fmt: skip
def test_refused(draw, says):
    fig = draw()
    with pytest.raises(ValueError, match="can't be read") as error:
        plots.show(fig, "what it would show, in a sentence")
    assert says in str(error.value)
    plt.close(fig)


def all_inside():
    fig, ax = picture()
    ax.plot([1, 2, 3], label="measured")
    ax.axhline(2, color="0.5")
    ax.axvspan(0, 1, alpha=0.2)
    ax.legend()
    return fig


def off_axes_without_labels():
    fig, ax = plt.subplots(figsize=(4, 2))
    plots.buffers(ax, [["1", "2"], ["3", "4"]], "a drawing")
    return fig


def words_need_no_label():
    fig, ax = picture(ylabel="")
    plots.bars(ax, ["one way", "another"], [1, 2])
    return fig


def words_on_an_axis():
    fig, ax = picture(ylabel="")
    ax.plot([1, 2], ["one way", "another"], "o")
    return fig


def outside_on_purpose():
    fig, ax = picture()
    ax.plot([1, 2, 3], clip_on=False)
    ax.set_ylim(0, 2.9)
    return fig


def title_of_the_figure():
    fig, ax = picture(title="")
    fig.suptitle("A finding")
    return fig


@pytest.mark.parametrize("draw", [
    all_inside, off_axes_without_labels, words_need_no_label, words_on_an_axis,
    outside_on_purpose, title_of_the_figure,
])  # fmt: skip
def test_accepted(draw):
    fig = draw()
    pictures.check(fig)
    plt.close(fig)
