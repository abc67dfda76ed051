"""The picture of a slow link: loss against time and against bytes. Needs matplotlib."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from benchmarks.curves import Curve

# told apart with any kind of colour vision (Okabe and Ito), and by their dashes and marks where there is no colour
_COLOURS = ("#000000", "#D55E00", "#0072B2", "#56B4E9", "#009E73", "#8A6D00", "#CC79A7", "#E69F00")
_DASHES = ("-", (0, (6, 2)), "-", (0, (4, 1.5)), "-", (0, (2.5, 1)), (0, (1.5, 1.2)), (0, (6, 1.5, 1.5, 1.5)))
_MARKS = ("o", "s", "^", "v", "D", "p", "P", "X")
_SIZE_INCHES = (11.0, 5.0)
_DOTS_PER_INCH = 130


def draw(file: Path, curves: Mapping[str, Curve], titles: Mapping[str, str], loss: float, title: str) -> None:
    """Write a PNG with a line for each of `curves`, in the order of `titles`. `loss` is what was to be reached."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, (by_time, by_bytes) = pyplot.subplots(1, 2, sharey=True, figsize=_SIZE_INCHES, layout="constrained")
    for number, name in enumerate(titles):
        if name not in curves:
            continue
        style = {
            "color": _COLOURS[number], "linestyle": _DASHES[number], "marker": _MARKS[number], "markersize": 4.5,
            "linewidth": 1.8, "label": titles[name],
        }  # fmt: skip
        points = curves[name].points[1:]  # before the first step there is no time, and no place on a logarithmic axis
        losses = [one.loss for one in points]
        marked = max(1, len(points) // 8)
        by_time.plot([one.seconds for one in points], losses, markevery=marked, **style)
        by_bytes.plot([one.sent_bytes / 1e6 for one in points], losses, markevery=marked, **style)
    for axes, label in ((by_time, "seconds since the first step"), (by_bytes, "megabytes sent by each host")):
        axes.set_xscale("log")
        axes.set_xlabel(label)
        axes.grid(visible=True, which="major", color="#dddddd")
        axes.axhline(loss, color="#666666", linewidth=1, linestyle=":")
        axes.spines[["top", "right"]].set_visible(False)
        axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    by_time.set_ylabel("loss on training samples")
    by_time.annotate(
        f"{loss:g}", (0, loss), xycoords=("axes fraction", "data"), xytext=(3, 2), textcoords="offset points",
        color="#666666", fontsize=9,
    )  # fmt: skip
    figure.suptitle(title)
    figure.legend(*by_time.get_legend_handles_labels(), loc="outside lower center", ncols=3, frameon=False)
    figure.savefig(file, dpi=_DOTS_PER_INCH)
    pyplot.close(figure)
