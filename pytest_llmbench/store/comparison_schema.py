"""The part of ``report.json`` about two arms compared, and what a baseline is matched by."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from pytest_llmbench.model.comparison import ComparisonVerdict
from pytest_llmbench.store.shape import Metric, Shape


class ComparisonEntry(Shape):
    """One metric of a candidate against a baseline, the run being the unit of replication."""

    metric: str
    unit: str
    better: Literal["lower", "higher"]
    baseline_name: str
    candidate_name: str
    baseline: list[float]
    """The metric in each run, in their order; runs in which it is undefined are left out."""
    candidate: list[float]
    paired: bool
    """Run i of both were measured side by side."""
    change: Metric
    """candidate / baseline - 1 with its interval; a share, unit ``1``: 0.05 is 5 % more."""
    margin: float
    """Worsening that is allowed; a share."""
    mde: float | None
    """The worsening that these runs would call regressed four times out of five; a share."""
    verdict: ComparisonVerdict
    reason: str
    gated: bool = False
    """Whether it decides about the outcome of the test."""


class OutputLengths(Shape):
    """Output tokens of the measured requests that ended well: how often each number came."""

    tokens: list[int] = Field(default=[])
    """Ascending."""
    requests: list[int] = Field(default=[])


__all__ = ["ComparisonEntry", "OutputLengths"]
