"""Plots as SVG text, drawn with matplotlib's object-oriented interface.

Nothing global changes: no pyplot, and the parameters that SVG output reads are set for the drawing only. The
same data gives the same bytes. Ink is ``currentColor``, so that a page decides about light and dark.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from pytest_llmbench.reports.numbers import number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_INK = "#010203"
"""A colour that nothing else uses; it becomes ``currentColor`` in the text."""
_SERIES = ("#2f7ed8", "#d9722e", "#3a9d5d", "#9563c4", "#c2526b", "#7a8594")
"""Readable on white and on near-black."""
_LIMIT = "#d64545"
_SIZE_INCHES = (7.2, 3.8)
_LABEL_GAP_PX = 13.0


def render(plot: Mapping[str, Any], plot_id: str, *, salt: str = "") -> str:
    """One plot of the report (``{title, x_label, y_label, series, marks, step, x_log}``) as ``<svg>``.

    ``salt`` keeps the ids of two drawings on one page apart.
    """
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    text = io.StringIO()
    with mpl.rc_context():
        mpl.rcdefaults()  # the user's matplotlibrc has no say in a report
        mpl.rcParams["svg.fonttype"] = "none"  # text stays text
        mpl.rcParams["svg.hashsalt"] = f"{salt}:{plot_id}"
        figure = Figure(figsize=_SIZE_INCHES, layout="constrained")
        FigureCanvasSVG(figure)
        _draw(figure, plot)
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return _as_inline_svg(text.getvalue(), plot)


def _draw(figure: Figure, plot: Mapping[str, Any]) -> None:
    axes = figure.add_subplot()
    axes.set_xlabel(plot["x_label"], color=_INK)
    axes.set_ylabel(plot["y_label"], color=_INK)
    if plot.get("x_log") and _all_positive(plot):
        axes.set_xscale("log")
        _plain_log_ticks(axes)
    for colour, (name, series) in zip(_cycle(len(plot["series"])), plot["series"].items(), strict=True):
        style = {"drawstyle": "steps-post"} if plot.get("step") else {"marker": "o", "markersize": 4}
        axes.plot(series["x"], series["y"], label=name, color=colour, linewidth=1.8, **style)
    for name, x in plot["marks"].items():
        limit = name.startswith("limit")
        axes.axvline(x, color=_LIMIT if limit else _INK, linewidth=1.1, linestyle="--" if limit else ":")
    if plot.get("step"):
        axes.set_ylim(0, 1.02)
    axes.margins(x=0.02)
    axes.grid(True, which="major", color=_INK, alpha=0.14, linewidth=0.8)
    axes.tick_params(which="both", colors=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_INK)
    if len(plot["series"]) > 1:
        axes.legend(frameon=False, labelcolor=_INK)
    _label_marks(figure, axes, plot["marks"])


def _cycle(count: int) -> list[str]:
    return [_SERIES[i % len(_SERIES)] for i in range(count)]


def _all_positive(plot: Mapping[str, Any]) -> bool:
    values = [x for series in plot["series"].values() for x in series["x"]]
    return bool(values) and min([*values, *plot["marks"].values()]) > 0


def _plain_log_ticks(axes: Axes) -> None:
    """``20 50 100 200`` in place of powers of ten: a latency axis seldom spans two decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    axes.xaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=12))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: number(float(f"{value:.6g}"))))
    axes.xaxis.set_minor_locator(NullLocator())


def _label_marks(figure: Figure, axes: Axes, marks: Mapping[str, float]) -> None:
    """Upright labels on top of the axes, pushed apart where two marks lie close together."""
    if not marks:
        return
    # The layout depends on the labels and their places on the layout: measure with the labels in place.
    ordered = sorted(marks.items(), key=lambda mark: mark[1])
    above = axes.get_xaxis_transform()
    labels = [
        axes.text(x, 1.04, f"{name}  {number(x)}", transform=above, rotation=90, ha="center", va="bottom",
                  fontsize=8, color=_LIMIT if name.startswith("limit") else _INK)
        for name, x in ordered
    ]  # fmt: skip
    figure.draw_without_rendering()
    free_from = float("-inf")
    for label, (_, x) in zip(labels, ordered, strict=True):
        pixel = max(float(axes.transData.transform((x, 0.0))[0]), free_from)
        label.set_x(float(axes.transData.inverted().transform((pixel, 0.0))[0]))
        free_from = pixel + _LABEL_GAP_PX


def _as_inline_svg(text: str, plot: Mapping[str, Any]) -> str:
    """Only the ``<svg>`` element: no prolog, no metadata, titled and described for screen readers."""
    svg = text[text.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # ids that nothing refers to, the same in every drawing
    svg = svg.replace(_INK, "currentColor")
    head, rest = svg.split(">", 1)
    # The size comes from the page; the view box keeps the proportions.
    head = (
        re.sub(r' (?:width|height)="[^"]*"', "", head)
        + f' role="img" aria-label="{_attribute(plot["title"])}"'
    )
    return f"{head}>\n<title>{html.escape(plot['title'])}</title>\n<desc>{_description(plot)}</desc>{rest}"


def _description(plot: Mapping[str, Any]) -> str:
    points = ", ".join(f"{name} with {len(series['x'])} points" for name, series in plot["series"].items())
    marks = ", ".join(f"{name} at {number(x)}" for name, x in plot["marks"].items())
    text = f"{plot['y_label']} over {plot['x_label']}: {points}." + (f" Marked: {marks}." if marks else "")
    return html.escape(text)


def _attribute(text: str) -> str:
    return html.escape(text, quote=True)


__all__ = ["render"]
