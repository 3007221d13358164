"""Numbers and cells of tables as text for people, in one notation. Undefined ones are words, never zero.

A part of the plain dict of a report is what renderers take.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, NamedTuple

from pytest_llmbench.model.draft import SAMPLES_REQUIRED
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason

Entry = Mapping[str, Any]


NOT_MEASURED = "not measured"
NOT_KNOWN = "not known"
PLAIN = "plain"
"""Unit of a ratio that is not shown as a percentage: a fairness index, an exponent, a coefficient."""
WORTH_TELLING = 0.01
"""Share of a value from which on the uncertainty of the measuring machine is shown beside it."""
_UNDEFINED = {Reason.NOT_MEASURABLE: "not measurable", Reason.NOT_REACHED: "not reached"}
_NO_PERCENTAGE = frozenset(
    {
        "itl_tail_ratio",
        "itl_tail_variation",
        "jain_index",
        "class_jain_index",
        "ttft_inflation",
        "preemptions_per_request",
        "prefill_exponent",
        "prefill_exponent_fit",
        "prefill_linear_fit",
        "job_slowdown",
        "job_llm_slowdown",
        "speedup",
    }
)
_SYMBOLS = {"ratio": "%", "count": "", PLAIN: "", "us/token": "µs/token"}


def shown_unit(name: str, unit: str) -> str:
    """The unit in which a metric is printed: not every ratio is a percentage."""
    plain = unit == "ratio" and re.split(r"[\[.]", name, maxsplit=1)[0] in _NO_PERCENTAGE
    return PLAIN if plain else unit


def number(value: float | None) -> str:
    """A number with three to five significant digits, without exponents for anything usual in a report."""
    if value is None:
        return NOT_MEASURED
    if not math.isfinite(value):
        return str(value)
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    size = abs(value)
    if size < 0.1 or size >= 1e15:
        return f"{value:.3g}"
    return f"{value:.{2 if size < 10 else 1 if size < 1000 else 0}f}"


def trimmed(value: float) -> str:
    """A number as it was given, with at most six digits and none that is needless: ``0.5``, ``512.35``.

    Names of loads and levels are made with it, by which saved baselines are compared: it stays as it is.
    """
    return f"{value:g}"


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit; a ratio as a percentage, a count without decimals."""
    if value is None:
        return NOT_MEASURED
    return f"{_bare(value, unit)} {_SYMBOLS.get(unit, unit)}".rstrip()


def _bare(value: float, unit: str) -> str:
    if unit == "ratio":
        return percentage(value).removesuffix(" %")
    if unit == PLAIN and math.isfinite(value) and value != int(value):
        # Four significant digits, more where they would read 1 for what is not quite 1.
        return next(text for digits in range(4, 18) if float(text := f"{value:.{digits}g}") != 1)
    if unit == "count" and (value == 0 or abs(value) >= 1):
        return f"{value:.0f}"
    return number(value)


def percentage(share: float) -> str:
    """A share as a percentage, with at most two decimals, and never ``100 %`` for anything less."""
    text = f"{share * 100:.2f}".rstrip("0").rstrip(".")
    if text == "100" and share < 1:
        return "> 99.99 %"
    if share == 0:
        return "0 %"
    if text in ("0", "-0"):
        return "< 0.01 %" if share > 0 else "> -0.01 %"
    return f"{text} %"


def percent_label(percent: float) -> str:
    """A share of a capacity in names of levels and metrics, ``80%``: ``itl[80%].p99``."""
    return f"{trimmed(percent)}%"


def interval(lower: float | None, upper: float | None, unit: str = "", n: int | None = None) -> str:
    """An interval, ``[498, 561]``; with an open end ``> 498 ms`` or ``< 561 ms``; with two, of how many
    samples its value is: ``of 50 samples``. Ratios are in per cent.

    A closed interval stands beside its value and leaves the unit to it.
    """
    if lower is None and upper is None:
        return "no interval" if n is None else f"of {counted(n, 'sample')}"
    if upper is None:
        return f"> {quantity(lower, unit)}"
    if lower is None:
        return f"< {quantity(upper, unit)}"
    return f"[{_bare(lower, unit)}, {_bare(upper, unit)}]"


def estimate(metric: Mapping[str, Any] | None) -> str:
    """A metric of the report, ``524 ms [498, 561]``, or ``524 ms (> 498 ms)`` if open above; with how far the
    measuring machine may have put it off."""
    if metric is None or metric["point"] is None:
        return undefined(metric)
    value, ends = point(metric), interval_of(metric)
    value += f" {ends}" if ends.startswith("[") else f" ({ends})" if ends else ""
    return value + machine_doubt(metric, metric["unit"])


def machine_doubt(metric: Mapping[str, Any], unit: str) -> str:
    """The uncertainty of the measuring machine, ``, by the machine up to 5.1 ms too high``; empty below a
    hundredth of the value."""
    sides = {"high": metric.get("too_high_by") or 0.0, "low": metric.get("too_low_by") or 0.0}
    worth = WORTH_TELLING * abs(metric["point"])
    told = [f"{quantity(by, unit)} too {way}" for way, by in sides.items() if by > 0 and by >= worth]
    return f", by the machine up to {' or '.join(told)}" if told else ""


def point(metric: Mapping[str, Any]) -> str:
    """The value of a metric, ``524 ms``, or ``at least 524 ms``; in words if it is undefined."""
    if metric["point"] is None:
        return undefined(metric)
    least = "at least " if metric.get("kind") == EstimateKind.BOUND else ""
    return least + quantity(metric["point"], metric["unit"])


def tagged(text: str, name: str, metric: Mapping[str, Any]) -> str:
    """``text`` of a metric of that name, ``indicative`` where the sample is too small for such a percentile
    (AMB-47)."""
    few = metric["point"] is not None and metric["n"] < SAMPLES_REQUIRED.get(name.rpartition(".")[2], 0)
    return f"{text}, indicative" if few else text


def interval_of(metric: Mapping[str, Any]) -> str:
    """The interval of a metric; empty where it has none by nature, or no value."""
    lower, upper = metric["lower"], metric["upper"]
    exact = lower == upper == metric["point"] or metric.get("kind") == EstimateKind.OBSERVED
    if exact or metric["point"] is None:
        return ""
    return interval(lower, upper, metric["unit"], metric.get("n"))


def change(metric: Mapping[str, Any]) -> str:
    """A change with its interval: ``+5.1 % [+4.2 %, +6 %]``; open ends are named as such."""
    if metric["point"] is None:
        return NOT_MEASURED
    ends = ("open" if end is None else signed(end) for end in (metric["lower"], metric["upper"]))
    return f"{signed(metric['point'])} [{', '.join(ends)}]"


def counted(count: int, noun: str) -> str:
    """A number of things: ``1 test``, ``2 tests``."""
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def money(amount: float, currency: str) -> str:
    """An amount of money: ``1,234.50 USD``; below a cent ``0.003 USD``."""
    return f"{amount:,.2f} {currency}" if amount >= 0.01 or amount == 0 else f"{amount:.1g} {currency}"


def distance(share: float) -> str:
    """How far a value is from its limit, as a share of it: ``+51 %``, ``-1.2 %``."""
    away = 100 * share
    digits = 0 if abs(away) >= 10 else 1 if abs(away) >= 0.1 else 3
    return "at the limit" if away == 0 else f"{away:+,.{digits}f} %"


def signed(share: float) -> str:
    text = percentage(share)
    return text if text.startswith(("-", "<", ">")) or share == 0 else f"+{text}"


def undefined(metric: Mapping[str, Any] | None) -> str:
    """Why a number is undefined: ``not measurable: no server data``."""
    reason = (metric or {}).get("reason")
    return (
        f"{_UNDEFINED.get(reason, NOT_MEASURED)}: {metric['method']}" if metric and reason else NOT_MEASURED
    )


def against(value: float, limit: float, unit: str) -> str:
    """``value`` with as many digits as it takes to tell it from ``limit``: no ``500 ms <= 500 ms: fail``."""
    text = quantity(value, unit)
    factor = 100 if unit == "ratio" else 1
    shown, bound = text.split()[0], limit * factor
    if value == limit or shown in ("<", ">") or float(shown) != bound:
        return text
    for digits in range(4, 17):
        shown = f"{value * factor:.{digits}g}"
        if float(shown) != bound:
            break
    return f"{shown} {_SYMBOLS.get(unit, unit)}".rstrip()


def rough_duration(seconds: float) -> str:
    """A planned or unfinished duration: ``47 s``, ``12 min``, ``1.5 h``."""
    if seconds < 600:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5_400 else f"{seconds / 3_600:.1f} h"


def duration(seconds: float | None) -> str:
    """A duration: ``51.2 s``, ``5 min 3 s``."""
    if seconds is None:
        return NOT_MEASURED
    if seconds < 120:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


class Amount(NamedTuple):
    """A number that is no estimate. None: not measured."""

    value: float | None
    unit: str


@dataclass(frozen=True, slots=True)
class Figure:
    """An estimate by the name of its metric, which tells how it is shown. None: not measured."""

    name: str
    estimate: Estimate | None
    part: Literal["value", "interval", "both", "change"] = "value"
    reported_from: int = 0
    """Fewest samples with which the TTFT test may state it. Elsewhere fewer make it indicative (AMB-47)."""

    @property
    def text(self) -> str:
        of = self.estimate
        if of is None:
            return "" if self.part == "interval" else NOT_MEASURED
        if of.defined and of.n < self.reported_from:
            return "" if self.part == "interval" else f"n < {self.reported_from}, not reported"
        metric = {each.name: getattr(of, each.name) for each in fields(Estimate)}
        metric["unit"] = shown_unit(self.name, of.unit)
        if self.part == "interval":
            return interval_of(metric)
        if self.part == "change":
            return change(metric)
        text = estimate(metric) if self.part == "both" else point(metric)
        return text if self.reported_from else tagged(text, self.name, metric)


Cell = str | int | Amount | Figure
Row = tuple[Cell, ...]


def text_of(cell: Cell) -> str:
    if isinstance(cell, Figure):
        return cell.text
    return quantity(*cell) if isinstance(cell, Amount) else str(cell)


def cells(
    metrics: Mapping[str, Estimate], names: Iterable[str], part: Literal["value", "both"] = "value"
) -> tuple[Figure, ...]:
    """The metrics of these names, as cells."""
    return tuple(Figure(name, metrics.get(name), part) for name in names)


def with_intervals(rows: Iterable[tuple[str, Cell]]) -> tuple[Row, ...]:
    """Rows of a title, a value and its interval, of rows of a title and a value."""
    return tuple(
        (title, cell, replace(cell, part="interval") if isinstance(cell, Figure) else "")
        for title, cell in rows
    )
