"""Table cells of the tests: estimates as finished text."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason

NOT_MEASURED = "not measured"
INDICATIVE_BELOW: Mapping[str, int] = {"p99": 1_000, "p99_9": 10_000}
"""Statistic → number of samples below which it is tagged ``indicative`` outside the TTFT test (AMB-47)."""
_STEP = 1e-4


def number(value: float, digits: int | None = None) -> str:
    """Three or four significant digits without exponents, or exactly ``digits`` decimals."""
    if digits is None:
        size = abs(value)
        digits = 3 if 0 < size < 1 else 2 if size < 10 else 1 if size < 1000 else 0
    return f"{value:.{digits}f}"


def share(value: float) -> str:
    """A share as a percentage, never rounded to 0 or 100 % from outside them."""
    rounded = round(value, 4)
    if rounded == 0 and value > 0:
        return f"< {_STEP:.2%}"
    if rounded == 1 and value < 1:
        return f"> {1 - _STEP:.2%}"
    return f"{value:.2%}" if value not in (0.0, 1.0) else f"{value:.0%}"


def value(estimate: Estimate | None, *, digits: int | None = None, unit: str | None = None) -> str:
    """The point with its unit (``unit`` replaces the estimate's own), or words if it is undefined."""
    if estimate is None or estimate.point is None:
        return NOT_MEASURED
    shown = estimate.unit if unit is None else unit
    return f"{number(estimate.point, digits)} {shown}".rstrip()


def undefined(estimate: Estimate | None) -> str:
    """Why an estimate is undefined, in words."""
    if estimate is None or estimate.reason is not Reason.NOT_MEASURABLE:
        return NOT_MEASURED
    return f"not measurable: {estimate.method}"


def factor(estimate: Estimate) -> str:
    """A ratio that is no share, as a factor: ``× 1.25``."""
    text = value(estimate, digits=2, unit="")
    return text if text == NOT_MEASURED else f"× {text}"


def tail(estimate: Estimate | None, statistic: str) -> str:
    """The value, tagged where the sample is too small for such a percentile (AMB-47)."""
    text = value(estimate)
    few = estimate is not None and estimate.n < INDICATIVE_BELOW.get(statistic, 0)
    return f"{text} (indicative)" if few and text != NOT_MEASURED else text


def interval(estimate: Estimate | None, *, digits: int | None = None) -> str:
    """The interval without its unit, or its known end, or of how many samples the value is; empty for an
    undefined estimate."""
    return _interval(estimate, lambda value: number(value, digits))


def _interval(estimate: Estimate | None, shown: Callable[[float], str]) -> str:
    if estimate is None or estimate.point is None:
        return ""
    if estimate.kind is EstimateKind.OBSERVED:
        return "as observed"
    lower, upper = estimate.lower, estimate.upper
    if lower is not None and upper is not None:
        return f"{shown(lower)} … {shown(upper)}"
    if lower is not None:
        return f"> {shown(lower)}"
    return f"of {estimate.n}" if upper is None else f"< {shown(upper)}"


def share_value(estimate: Estimate | None) -> str:
    return NOT_MEASURED if estimate is None or estimate.point is None else share(estimate.point)


def share_interval(estimate: Estimate | None) -> str:
    """The interval of a share, as percentages."""
    return _interval(estimate, share)


def cell(estimate: Estimate | None, *, interval: bool = False, statistic: str = "") -> str:
    """Value and unit, ``127 ms``; with ``interval`` also that, ``127 ms [120, 135]``; ratios as
    percentages. ``statistic``: which it is, so that a tail of few samples is tagged."""
    if estimate is None or estimate.point is None:
        return undefined(estimate)
    ratio = estimate.unit == "ratio"
    text = share(estimate.point) if ratio else tail(estimate, statistic)
    if not interval or (estimate.lower is None and estimate.upper is None):
        return text
    ends = _interval(estimate, share if ratio else number).replace(" …", ",")
    return f"{text} [{ends}]"
