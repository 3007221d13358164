"""The strips of the first screen: a row with dot and interval for each limit, on one common axis.

Drawn with positions in per cent, so that they fit any width, and with words for those who do not see them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pytest_llmbench.model import numbers
from pytest_llmbench.model.numbers import Entry, shown_unit, signed
from pytest_llmbench.reports.document import TestView
from pytest_llmbench.reports.first_screen import STATE_TONES, Held, Span
from pytest_llmbench.reports.markup import Html, details, element, fragment
from pytest_llmbench.reports.vocabulary import metric_label, metric_name

_SHARES = (0.01, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 10.0, 100.0)
_STEPS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0)
_MOST_TICKS = 6
_LEAST_WIDTH, _GREATEST_WIDTH = 1e-200, 1e200
"""Bounds of the width of an axis: beyond them no round numbers can be found for it."""
_SHOWN_ROWS = 12
"""Number of rows that are shown; the rest is folded. Those not kept come first, so only kept ones are folded
unless these are too many."""


@dataclass(frozen=True)
class Axis:
    """An axis from ``low`` to ``high``; values beyond are drawn at its end, and marked."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    scale: Callable[[float], float]

    def place(self, value: float) -> float:
        """The position of a value, in per cent of the width."""
        low, high = self.scale(self.low), self.scale(self.high)
        shown = min(max(value, self.low), self.high)  # before it is scaled: zero has no logarithm
        return 100 * (self.scale(shown) - low) / (high - low)

    def has(self, value: float) -> bool:
        return self.low <= value <= self.high


def limit_strip(held: Sequence[Held]) -> Html | None:
    """A strip with limits, on an axis of shares of the limit: left of 1 is kept, whichever way a limit
    points."""
    rows = sorted((one for one in held if one.allowed is None), key=lambda one: one.rank)
    if not rows:
        return None
    values = [end for one in rows for end in one.span if end is not None and end > 0]
    axis = _share_axis(values)
    return _strip(
        "Limits",
        "Each value as a share of its limit, with its interval: left of the line the limit is kept.",
        axis,
        [_row(one, axis, 1.0) for one in rows],
    )


def comparison_strip(held: Sequence[Held]) -> Html | None:
    """A forest plot of the comparisons that decide: the worsening, with what is allowed as a band."""
    rows = sorted((one for one in held if one.allowed is not None), key=lambda one: one.rank)
    if not rows:
        return None
    values = [end for one in rows for end in (*one.span, one.allowed, -(one.allowed or 0)) if end is not None]
    axis = _worsening_axis(values)
    return _strip(
        "Comparisons",
        "The change of each metric with its interval, worse to the right; the band is what is allowed.",
        axis,
        [_row(one, axis, one.allowed or 0.0) for one in rows],
    )


def metric_strips(test: TestView) -> list[Html]:
    """A strip with intervals, from zero, for each main figure of the test that was measured several times,
    such as for each level or filter."""
    groups: dict[tuple[str, str], list[str]] = {}
    for name in test.headlines:
        parts = metric_name(name)
        metric = test.metric(name)
        if metric is not None and metric["point"] is not None:
            groups.setdefault((parts.base, parts.statistic), []).append(name)
    return [
        strip
        for names in groups.values()
        if len(names) > 1 and (strip := _metric_strip(test, names)) is not None
    ]


def _metric_strip(test: TestView, names: Sequence[str]) -> Html | None:
    spans = {name: _span(test.entry["metrics"][name]) for name in names}
    values = [end for span in spans.values() for end in span if end is not None]
    low, high = min([0.0, *values]), max([0.0, *values])
    if not _LEAST_WIDTH < high - low < _GREATEST_WIDTH:
        return None
    unit = shown_unit(names[0], test.entry["metrics"][names[0]]["unit"])
    edge = 0.03 * (high - low)
    ticks = tuple((at, numbers.quantity(at, unit)) for at in _round_places(low, high))
    axis = Axis(low - edge, high + edge, ticks, float)
    label = metric_label(names[0].replace(f"[{metric_name(names[0]).qualifier}]", ""))
    rows = [_metric_row(test, name, spans[name], axis) for name in names]
    return element(
        "div", element("h4", f"{label}, with intervals"), element("div", rows, _foot(axis), class_="strip")
    )


def _span(metric: Entry) -> Span:
    """Point and interval of a metric. An estimate without an interval is a dot, not an open end."""
    if metric["lower"] is None and metric["upper"] is None:
        return Span(metric["point"], metric["point"], metric["point"])
    return Span(metric["lower"], metric["point"], metric["upper"])


def _metric_row(test: TestView, name: str, span: Span, axis: Axis) -> Html:
    zero = element("i", class_="zero", style=f"left:{axis.place(0.0):.2f}%")
    return element(
        "div",
        element("span", metric_name(name).qualifier or "all", class_="strip-name"),
        element(
            "span",
            zero,
            _whiskers(span, axis, "plain"),
            class_="strip-axis",
            role="img",
            aria_label=f"{name}: {test.claim(name)}",
        ),
        element("span", test.claim(name), class_="strip-value"),
        class_="strip-row",
    )


def _share_axis(values: Sequence[float]) -> Axis:
    low = min([0.5, *values])
    high = max([1.25, *values])
    low = max(low * 0.9, _SHARES[0])
    high = min(high * 1.1, _SHARES[-1])
    ticks = tuple((share, f"{numbers.number(share)}") for share in _SHARES if low <= share <= high)
    return Axis(low, high, ticks, math.log)


def _worsening_axis(values: Sequence[float]) -> Axis:
    low, high = max(min([-0.02, *values]), -1.0), min(max([0.02, *values]), 2.0)
    low, high = low - 0.05 * (high - low), high + 0.05 * (high - low)
    return Axis(low, high, tuple((at, signed(at)) for at in _round_places(low, high)), float)


def _round_places(low: float, high: float) -> list[float]:
    """Round numbers for the ticks of an axis: at most :data:`_MOST_TICKS` multiples of 1, 2 or 5 times a
    power of ten."""
    power = 10.0 ** math.floor(math.log10(high - low) - 1)
    step = next(power * step for step in _STEPS if (high - low) / (power * step) <= _MOST_TICKS)
    return [round(at * step, 12) for at in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _strip(title: str, caption: str, axis: Axis, rows: Sequence[Html]) -> Html:
    return element(
        "section",
        element("h2", title, class_="plain"),
        element("p", caption, class_="meta"),
        element("div", rows[:_SHOWN_ROWS], _foot(axis), class_="strip"),
        details(f"and {len(rows) - _SHOWN_ROWS} more", rows[_SHOWN_ROWS:]) if rows[_SHOWN_ROWS:] else None,
        class_="strips",
    )


def _foot(axis: Axis) -> Html:
    ticks = [
        element("span", text, class_="tick", style=f"left:{axis.place(value):.2f}%")
        for value, text in axis.ticks
    ]
    return element(
        "div",
        element("span", class_="strip-name"),
        element("span", ticks, class_="strip-axis ticks", aria_hidden="true"),
        element("span", class_="strip-value"),
        class_="strip-row strip-foot",
    )


def _row(one: Held, axis: Axis, bound: float) -> Html:
    tone = STATE_TONES[one.state]
    distance = f" ({one.distance})" if one.distance and one.allowed is None else ""
    return element(
        "div",
        element("span", element("b", one.test.name), " ", element("code", one.limit), class_="strip-name"),
        element(
            "span",
            _bound(one, axis, bound),
            _whiskers(one.span, axis, tone),
            class_="strip-axis",
            role="img",
            aria_label=f"{one.limit}: {one.measured}{distance}, {one.word}",
        ),
        element(
            "span", one.measured, distance, " ", element("em", one.word, class_=tone), class_="strip-value"
        ),
        class_="strip-row",
        data_verdict=one.test.headline,
        data_search=f"{one.test.nodeid} {one.limit}".lower(),
    )


def _bound(one: Held, axis: Axis, bound: float) -> Html:
    at = axis.place(bound)
    if one.allowed is None:
        return element("i", class_="bound", style=f"left:{at:.2f}%")
    zero = element("i", class_="zero", style=f"left:{axis.place(0.0):.2f}%")
    if one.state == "shown":
        return zero
    return fragment(element("i", class_="allowed", style=f"left:0;width:{at:.2f}%"), zero)


def _whiskers(span: Span, axis: Axis, tone: str) -> Html | None:
    """The interval as a bar, its point as a dot; an end that is open, or beyond the axis, has an arrow."""
    if span == (None, None, None):
        return element("small", "no share of this limit can be drawn")
    low = axis.low if span.low is None else span.low
    high = axis.high if span.high is None else span.high
    left, right = axis.place(low), axis.place(high)
    ends = "".join(
        name
        for name, end in ((" open-low", span.low), (" open-high", span.high))
        if end is None or not axis.has(end)
    )
    style = f"left:{left:.2f}%;width:{right - left:.2f}%"
    dot = (
        None
        if span.point is None
        else element("i", class_=f"dot {tone}", style=f"left:{axis.place(span.point):.2f}%")
    )
    return fragment(element("i", class_=f"bar {tone}{ends}", style=style), dot)
