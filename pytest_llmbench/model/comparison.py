"""Two arms compared on one metric: a candidate against a baseline, the run being the unit of replication.

Requests within a run share its weather (queue, cache, clock speed, neighbours), so differences between
builds are judged by how much whole runs differ, never by pooled requests (DESIGN §6).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from pytest_llmbench.model.estimate import Estimate

FEWEST_RUNS = 3
"""The fewest runs of each arm (METHODOLOGY §12): below them nothing is compared."""

Better = Literal["lower", "higher"]


class ComparisonVerdict(StrEnum):
    """From the whole interval of the worsening [lower, upper] and the margin m that is allowed."""

    REGRESSED = "regressed"
    """lower > m."""
    IMPROVED = "improved"
    """upper < 0."""
    EQUIVALENT = "equivalent"
    """-m <= lower and upper <= m."""
    NOT_WORSE = "not_worse"
    """upper <= m, while lower < -m."""
    INCONCLUSIVE = "inconclusive"
    """The interval straddles the margin, or is open, or there is none."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """One metric of a candidate against a baseline, the run being the unit of replication."""

    metric: str
    """Full name, ``ttft.p99``."""
    unit: str
    better: Better
    baseline_name: str
    candidate_name: str
    baseline: tuple[float, ...]
    """The metric in each run, in their order; runs in which it is undefined are left out."""
    candidate: tuple[float, ...]
    paired: bool
    """Run i of both were measured side by side, so what drifts drops out of their ratio."""
    change: Estimate
    """exp(mean log(candidate / baseline)) - 1 with its interval; a share, unit ``1``: 0.05 is 5 % more."""
    margin: float
    """Worsening that is allowed; a share, at least 0."""
    mde: float | None
    """Minimum detectable effect: the worsening beyond the margin that this many runs of this noise would call
    regressed four times out of five; a share. None (in JSON ``null``) where noise cannot be told."""
    verdict: ComparisonVerdict
    reason: str
    """The reason in words; for an inconclusive one what would decide it."""
    gated: bool = False
    """Whether a marker or an option asked for it: only then does it decide about the test's outcome."""
