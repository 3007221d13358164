"""Plots as SVG text, drawn with matplotlib's object-oriented interface.

Nothing global changes: no pyplot, and the parameters that SVG output reads are set for the drawing only. The
same data gives the same bytes, and is drawn once: pytest-html and ``report.html`` show the same pictures.
Ink is ``currentColor``, so that a page decides about light and dark.
"""

from __future__ import annotations

import html
import io
import json
import re
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from pytest_llmbench.model.numbers import number, trimmed

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure
    from matplotlib.text import Text

_INK = "#010203"
"""A colour that nothing else uses; it is replaced by ``currentColor`` in the text."""
_SERIES = ("#2f7ed8", "#d9722e", "#3a9d5d", "#9563c4", "#c2526b", "#7a8594")
"""Colours of the series, readable on white and on near-black."""
_PARTS = {"wait in the generator": 5, "queue of the server": 0, "to the first token": 1, "output": 2}
"""Phase of a request → index of its colour, so that a phase has the same colour in every picture."""
_LIMIT = "#d64545"
_SIZE_INCHES = (5.6, 3.6)
"""Size of a figure in inches, which decides how large its text is: a telephone shows a plot 330 pixels
wide."""
_LABEL_GAP_PX = 13.0
_LEGEND_CHARACTERS = 66
"""Characters that fit into one row of the legend, without the samples of the lines."""
_LEGEND_ROW_INCHES = 0.18
_MARK_CHARACTERS = 16
"""Characters of a mark's label that fit; for a longer one the figure grows."""
_MARK_CHARACTER_INCHES = 0.075
_MOST_NAMED = 24
"""Most series in the legend."""
_FITS = ("fit", "power law", "straight line")
"""Beginnings of the names of fitted series."""
_MOST_MARKERS = 60
_LINEAR_TICKS_BELOW = 4.0
"""Ratio of the largest to the smallest value below which ticks at 1, 2 and 5 would leave a log axis almost
bare."""
_DENSE_TICKS_BELOW = 12.0
"""Ratio below which they would leave two or three ticks."""
_DECADE_TICKS_FROM = 2_000.0
_LARGEST = 1e15
"""Largest number that an axis can show; a logarithmic one shows none smaller than its inverse."""
_LONGEST_NAME = 40
"""Most characters in the name of an axis or a series; longer ones would leave no room for the drawing."""
_MOST_X_NAMES = 6
_MOST_KEPT = 128
"""Most drawings that are kept for a second page; each is some 20 kB."""
_ID = re.compile(r'<\w+ id="([^"]+)"')


def render(plot: Mapping[str, Any], plot_id: str, *, salt: str = "") -> str:
    """One plot of the report (``plots`` in the schema) as ``<svg>``.

    A fitted series (its name says so) is a dashed line without points. ``salt`` keeps the ids of two
    drawings on one page apart. A drawing that stands alone has two keys more: ``heading``, written above it,
    and ``x_names``, a name for each whole number on the x axis from 1.
    """
    svg = _drawing(json.dumps(plot))
    for name in set(_ID.findall(svg)):
        svg = svg.replace(name, name[0] + sha256(f"{salt}:{plot_id}:{name}".encode()).hexdigest()[:10])
    return svg


@lru_cache(maxsize=_MOST_KEPT)
def _drawing(told: str) -> str:
    """The drawing of a plot, given as JSON, with ids that two drawings may share."""
    plot = json.loads(told)
    for axis in ("x", "y"):
        least = 1 / _LARGEST if plot.get(f"{axis}_log") else 0.0
        if not all(value == 0 or least <= abs(value) <= _LARGEST for value in _values(plot, axis)):
            why = f"there are numbers beyond {number(_LARGEST)}, or too near to 0 for a logarithmic axis"
            return _not_drawn(plot, why)
    # Missing glyphs and deprecations of its own are no warnings of the suite, which may make errors of them.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return _as_inline_svg(_svg(plot), plot)
        except Exception as error:  # noqa: BLE001 - whatever it fails at, the report is worth more
            return _not_drawn(plot, f"matplotlib says {type(error).__name__}: {error}")


def _svg(plot: Mapping[str, Any]) -> str:
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    text = io.StringIO()
    with mpl.rc_context():
        mpl.rcdefaults()  # the user's matplotlibrc has no say in a report
        mpl.rcParams["svg.fonttype"] = "none"  # text stays text
        mpl.rcParams["text.parse_math"] = False  # a dollar sign is one
        mpl.rcParams["svg.hashsalt"] = ""
        figure = Figure(figsize=_SIZE_INCHES)
        FigureCanvasSVG(figure)
        _draw(figure, plot)
        figure.savefig(text, format="svg", transparent=True, metadata={"Date": None, "Creator": None})
    return text.getvalue()


def _lay_out(figure: Figure) -> None:
    """Lay out the figure by hand: with a layout engine ``savefig`` would draw it twice."""
    from matplotlib.layout_engine import ConstrainedLayoutEngine

    with suppress(ValueError):  # as matplotlib does when it draws
        ConstrainedLayoutEngine().execute(figure)


def _not_drawn(plot: Mapping[str, Any], why: str) -> str:
    """A text in place of a plot that says why it is not drawn."""
    title, words = html.escape(plot["title"]), html.escape(f"not drawn: {why}")
    text = f'<text x="0" y="24" font-size="14" fill="currentColor">{words}</text>'
    return f'<svg viewBox="0 0 640 40" role="img"><title>{title}</title>{text}</svg>'


def _draw(figure: Figure, plot: Mapping[str, Any]) -> None:
    axes = figure.add_subplot()
    axes.set_xlabel(_name(plot["x_label"]), color=_INK)
    axes.set_ylabel(_name(plot["y_label"]), color=_INK)
    x_values, y_values = _values(plot, "x"), _values(plot, "y")
    if plot.get("x_log") and _all_positive(x_values):
        axes.set_xscale("log")
        _plain_log_ticks(axes.xaxis, x_values)
    if plot.get("y_log") and _all_positive(y_values):
        axes.set_yscale("log")
        _plain_log_ticks(axes.yaxis, y_values)
    if rows := plot.get("rows"):  # horizontal bars, one for each name
        for place, (name, series) in enumerate(plot["series"].items()):
            colour = _SERIES[_PARTS.get(name, place) % len(_SERIES)]
            starts, ends, places = series["x"][::2], series["x"][1::2], series["y"][::2]
            axes.hlines(places, starts, ends, label=_name(name), colors=colour, linewidth=7)
        axes.set_yticks(range(len(rows)), [_name(name) for name in rows])
        axes.set_ylim(len(rows) - 0.5, -0.5)
    else:
        _draw_series(axes, plot)
    for name, x in plot["marks"].items():
        limit = name.startswith("limit")
        axes.axvline(x, color=_LIMIT if limit else _INK, linewidth=1.1, linestyle="--" if limit else ":")
    _bound(axes, plot, x_values, y_values)
    if names := plot.get("x_names", ()):
        shown = range(1, len(names) + 1, -(-len(names) // _MOST_X_NAMES))
        axes.set_xticks(shown, [_name(names[at - 1]) for at in shown], fontsize=8)
    figure.suptitle(_name(plot.get("heading", "")), color=_INK, fontsize=10)
    axes.grid(True, which="major", color=_INK, alpha=0.14, linewidth=0.8)
    axes.tick_params(which="both", colors=_INK)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(_INK)
    if len(plot["series"]) > 1:
        _legend(figure, axes)
    labels = _label_marks(figure, axes, plot["marks"], at_names=bool(names))
    _lay_out(figure)
    if _pushed_apart(axes, labels):
        _lay_out(figure)


def _legend(figure: Figure, axes: Axes) -> None:
    """Put the legend below the drawing, in as many columns as fit; beyond two rows the figure grows."""
    handles, names = axes.get_legend_handles_labels()
    handles, names = handles[:_MOST_NAMED], names[:_MOST_NAMED]
    columns = max(1, min(3, _LEGEND_CHARACTERS // max(map(len, names), default=1)))
    rows = -(-len(names) // columns)
    figure.set_figheight(figure.get_figheight() + _LEGEND_ROW_INCHES * max(rows - 2, 0))
    figure.legend(
        handles, names, frameon=False, labelcolor=_INK, fontsize=9, loc="outside lower left", ncols=columns
    )


def _name(text: str) -> str:
    """A name on one line, cut if it is very long."""
    flat = " ".join(text.split())
    return flat if len(flat) <= _LONGEST_NAME else flat[: _LONGEST_NAME - 1] + "…"


def _draw_series(axes: Axes, plot: Mapping[str, Any]) -> None:
    """Draw lines, points and confidence bands; a histogram (steps that rise and fall) is filled."""
    bands = plot.get("bands") or {}
    for colour, (name, series) in zip(
        [_SERIES[i % len(_SERIES)] for i in range(len(plot["series"]))], plot["series"].items(), strict=True
    ):
        style: dict[str, Any] = {}
        if plot.get("step"):
            style = {"drawstyle": "steps-post"}
            if not _ascends(series["y"]):
                axes.fill_between(
                    series["x"], series["y"], step="post", color=colour, alpha=0.22, linewidth=0
                )
        elif name.lower().startswith(_FITS):
            style = {"linestyle": "--"}
        elif len(series["x"]) <= _MOST_MARKERS:
            style = {"marker": "o", "markersize": 4}
        if name in bands:
            band = bands[name]
            axes.fill_between(
                band["x"], band["lower"], band["upper"], color=colour, alpha=0.18, linewidth=0,
                step="post" if plot.get("step") else None,
            )  # fmt: skip
        axes.plot(series["x"], series["y"], label=_name(name), color=colour, linewidth=1.8, **style)


def _bound(axes: Axes, plot: Mapping[str, Any], x_values: Sequence[float], y_values: Sequence[float]) -> None:
    """Set the ranges of the axes. Distributions run from 0 to 1; other linear heights from 0, unless all are
    far above it. Counts, and numbers of turns, have no ticks in between."""
    from matplotlib.ticker import MaxNLocator

    axes.margins(x=0.02)
    if plot.get("rows"):
        return
    for axis, values in ((axes.xaxis, x_values), (axes.yaxis, y_values)):
        if axis.get_scale() == "linear" and all(value == int(value) for value in values):
            axis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if plot.get("step") and all(_ascends(series["y"]) for series in plot["series"].values()):
        axes.set_ylim(0, 1.02)
    elif axes.get_yscale() == "linear" and y_values and 0 <= min(y_values) < max(y_values) / 2:
        axes.set_ylim(bottom=0)


def _values(plot: Mapping[str, Any], axis: str) -> list[float]:
    """All values that have to fit on an axis."""
    values = [value for series in plot["series"].values() for value in series[axis]]
    for band in (plot.get("bands") or {}).values():
        values += band["x"] if axis == "x" else [*band["lower"], *band["upper"]]
    return values + (list(plot["marks"].values()) if axis == "x" else [])


def _ascends(values: Sequence[float]) -> bool:
    return all(later >= earlier for earlier, later in pairwise(values))


def _all_positive(values: Sequence[float]) -> bool:
    return bool(values) and min(values) > 0


def _plain_log_ticks(axis: Axis, values: Sequence[float]) -> None:
    """Put ticks at ``20 50 100 200`` in place of powers of ten: a latency axis seldom spans two decades."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    span = max(values) / min(values)
    if span < _LINEAR_TICKS_BELOW:
        axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    else:
        dense = (1.0, 2.0, 3.0, 5.0, 7.0) if span < _DENSE_TICKS_BELOW else (1.0, 2.0, 5.0)
        subs = dense if span < _DECADE_TICKS_FROM else (1.0,)
        axis.set_major_locator(LogLocator(base=10, subs=subs, numticks=12))
    axis.set_major_formatter(FuncFormatter(lambda value, _: trimmed(value)))
    axis.set_minor_locator(NullLocator())


def _label_marks(figure: Figure, axes: Axes, marks: Mapping[str, float], *, at_names: bool) -> list[Text]:
    """Put upright labels on top of the axes, from left to right; for long ones the figure grows.
    ``at_names``: the numbers on the axis have names, so a mark needs none."""
    ordered = sorted(marks.items(), key=lambda mark: mark[1])
    texts = [_name(name) if at_names else f"{_name(name)}  {number(x)}" for name, x in ordered]
    longer = max(0, max(map(len, texts), default=0) - _MARK_CHARACTERS)
    figure.set_figheight(figure.get_figheight() + _MARK_CHARACTER_INCHES * longer)
    above = axes.get_xaxis_transform()
    return [
        axes.text(x, 1.04, text, transform=above, rotation=90, ha="center",
                  va="bottom", fontsize=8, color=_LIMIT if name.startswith("limit") else _INK)
        for text, (name, x) in zip(texts, ordered, strict=True)
    ]  # fmt: skip


def _pushed_apart(axes: Axes, labels: Sequence[Text]) -> bool:
    """Push the labels of marks that are close together apart; whether there were any. Their places follow
    from the layout, and it from them."""
    free_from, moved = float("-inf"), False
    for label in labels:
        pixel = float(axes.transData.transform((label.get_position()[0], 0.0))[0])
        if pixel < free_from:
            pixel, moved = free_from, True
            label.set_x(float(axes.transData.inverted().transform((pixel, 0.0))[0]))
        free_from = pixel + _LABEL_GAP_PX
    return moved


def _as_inline_svg(text: str, plot: Mapping[str, Any]) -> str:
    """The ``<svg>`` element alone: no prolog, no metadata, titled and described for screen readers."""
    svg = text[text.index("<svg") :]
    before, begun, rest = svg.partition("<metadata>")
    svg = before + (rest.partition("</metadata>")[2] if begun else "")
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # ids that nothing refers to, the same in every drawing
    svg = svg.replace(_INK, "currentColor")
    head, rest = svg.split(">", 1)
    # The size comes from the page; the view box keeps the proportions.
    head = (
        re.sub(r' (?:width|height)="[^"]*"', "", head)
        + f' role="img" aria-label="{html.escape(plot["title"], quote=True)}"'
    )
    points = ", ".join(f"{name} with {len(series['x'])} points" for name, series in plot["series"].items())
    marks = ", ".join(f"{name} at {number(x)}" for name, x in plot["marks"].items())
    told = f"{plot['y_label']} over {plot['x_label']}: {points}." + (f" Marked: {marks}." if marks else "")
    title, told = html.escape(plot["title"]), html.escape(told)
    return f"{head}>\n<title>{title}</title>\n<desc>{told}</desc>{rest}"
