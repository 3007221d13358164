"""Cells that hold a number with its unit and its interval, or the reason why there is none."""

from __future__ import annotations

from pytest_llmbench.methodology.cells import NOT_MEASURED, number, share
from pytest_llmbench.model.estimate import Estimate


def cell(estimate: Estimate | None, *, interval: bool = False) -> str:
    """``127 ms``, with ``interval`` also ``127 ms [120, 135]``; ratios as percentages."""
    if estimate is None or estimate.point is None:
        why = "" if estimate is None else estimate.method
        return why if why.startswith(("not measurable", "no ")) else NOT_MEASURED
    ratio = estimate.unit == "ratio"
    text = share(estimate.point) if ratio else f"{number(estimate.point)} {estimate.unit}".rstrip()
    if not interval or (estimate.lower is None and estimate.upper is None):
        return text
    ends = [
        "open" if e is None else share(e) if ratio else number(e) for e in (estimate.lower, estimate.upper)
    ]
    return f"{text} [{ends[0]}, {ends[1]}]"


__all__ = ["cell"]
