"""Numbers as people read them. What is undefined is said in words and never printed as zero."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

NOT_MEASURED = "not measured"


def number(value: float | None) -> str:
    """Three to five significant digits, without exponents for anything one meets in a report."""
    if value is None:
        return NOT_MEASURED
    if value == int(value) and abs(value) < 1e9:
        return str(int(value))
    size = abs(value)
    if size < 0.1:
        return f"{value:.3g}"
    return f"{value:.{2 if size < 10 else 1 if size < 1000 else 0}f}"


def quantity(value: float | None, unit: str) -> str:
    """A value with its unit; a ratio reads as a percentage."""
    if value is None:
        return NOT_MEASURED
    if unit == "ratio":
        return percentage(value)
    return f"{number(value)} {unit}".rstrip()


def percentage(share: float) -> str:
    """At most two decimals, and never ``100 %`` for anything less."""
    text = f"{share * 100:.2f}".rstrip("0").rstrip(".")
    if text == "100" and share < 1:
        return "> 99.99 %"
    if text == "0" and share > 0:
        return "< 0.01 %"
    return f"{text} %"


def interval(lower: float | None, upper: float | None, unit: str = "") -> str:
    """``[498, 561]``; open ends read ``> 498 ms``, ``< 561 ms`` or ``open``. A ratio reads in per cent.

    A closed interval stands beside its value and leaves the unit to it.
    """
    if lower is None and upper is None:
        return "open"
    if upper is None:
        return f"> {quantity(lower, unit)}"
    if lower is None:
        return f"< {quantity(upper, unit)}"
    if unit == "ratio":
        return f"[{percentage(lower).removesuffix(' %')}, {percentage(upper).removesuffix(' %')}]"
    return f"[{number(lower)}, {number(upper)}]"


def estimate(metric: Mapping[str, Any] | None) -> str:
    """A metric or objective of the report: ``524 ms [498, 561]``, or ``524 ms (> 498 ms)`` when open."""
    if metric is None or metric["point"] is None:
        return NOT_MEASURED
    point = quantity(metric["point"], metric["unit"])
    lower, upper = metric["lower"], metric["upper"]
    if lower is None or upper is None:
        return f"{point} ({interval(lower, upper, metric['unit'])})"
    return f"{point} {interval(lower, upper, metric['unit'])}"


def against(value: float, limit: float, unit: str) -> str:
    """``value`` with as many digits as it takes to tell it from ``limit``: no ``500 ms <= 500 ms: fail``."""
    text = quantity(value, unit)
    factor, symbol = (100, "%") if unit == "ratio" else (1, unit)
    shown, bound = text.split()[0], limit * factor
    if value == limit or shown in ("<", ">") or float(shown) != bound:
        return text
    for digits in range(4, 17):
        shown = f"{value * factor:.{digits}g}"
        if float(shown) != bound:
            break
    return f"{shown} {symbol}".rstrip()


def duration(seconds: float | None) -> str:
    """``51.2 s``, ``5 min 3 s``."""
    if seconds is None:
        return NOT_MEASURED
    if seconds < 120:
        return f"{number(seconds)} s"
    minutes, rest = divmod(round(seconds), 60)
    return f"{minutes} min {rest} s"


__all__ = ["NOT_MEASURED", "against", "duration", "estimate", "interval", "number", "percentage", "quantity"]
