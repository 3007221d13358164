"""Intervals for the difference of two arms: candidate - baseline, and candidate / baseline - 1.

Independent arms: the arms' own intervals are combined by MOVER, the method of variance estimates recovery
(Zou and Donner 2008, Statistics in Medicine 27; for ratios on the logarithmic scale). With point p, lower l
and upper u of each arm, and the correlation r of the two points,

    lower = p2 - p1 - √((p2 - l2)² + (u1 - p1)² - 2 r (p2 - l2)(u1 - p1)),      upper likewise.

So a difference is as honest as its arms: unsymmetric where they are, open where one of them is open (the P99
of a sample too small for it), and aware of dependence where their intervals are. A positive r is the share of
errors that both arms make together, to the same side: the root is then that of

    (1 - r) ((p2 - l2)² + (u1 - p1)²) + r max(0, (p2 - l2) - (p1 - l1), (u1 - p1) - (u2 - p2))²,

which is the same for symmetric arms, and zero for arms that differ by a constant alone.

Paired arms (the same requests in both, in the same order): what both arms have in common drops out. Means:
Student's t on the long-run variance of the pairs' differences. Percentiles: MOVER over order statistics, r
being the long-run correlation of the indicators "above the arm's own percentile", of which the sampling
errors of percentiles consist (Bahadur 1966).
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from pytest_llmbench.stats.dependence import effective_size, exceedances
from pytest_llmbench.stats.percentiles import Worth, ordered_percentile_interval, percentile, percentile_worth
from pytest_llmbench.stats.runs import OPEN, Interval, Runs, Samples, as_runs, pooled
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE, spread, student_interval

_ROUNDING = 1e-12
"""Relative difference among pairs that counts as rounding."""


class Bounded(NamedTuple):
    """An estimated value with the ends of its interval; ``None``: open at that end."""

    point: float
    lower: float | None
    upper: float | None


def difference_interval(baseline: Bounded, candidate: Bounded, *, correlation: float = 0.0) -> Interval:
    """Interval of candidate - baseline, by MOVER."""
    point = candidate.point - baseline.point
    before, after = _legs(baseline), _legs(candidate)
    down = _leg(after.down, before.up, after.up, before.down, correlation)
    up = _leg(after.up, before.down, after.down, before.up, correlation)
    return Interval(None if down is None else point - down, None if up is None else point + up)


def relative_change_interval(baseline: Bounded, candidate: Bounded, *, correlation: float = 0.0) -> Interval:
    """Interval of candidate / baseline - 1, by MOVER on logarithms. Both points must be positive.

    A lower end of an arm at or below zero bounds its logarithm nowhere: the ratio is then open above
    (baseline) or reaches down to zero (candidate).
    """
    if baseline.point <= 0 or candidate.point <= 0:
        raise ValueError("a ratio on the logarithmic scale needs positive values")
    lower, upper = difference_interval(_logarithm(baseline), _logarithm(candidate), correlation=correlation)
    if lower is None and candidate.lower is not None and baseline.upper is not None:
        lower = -math.inf
    return Interval(
        None if lower is None else math.exp(lower) - 1, None if upper is None else math.exp(upper) - 1
    )


def paired_mean_interval(
    baseline: Samples, candidate: Samples, *, relative: bool = False, level: float = 0.95
) -> Interval:
    """Interval of the difference (or relative change) of the means of pairs.

    Relative: mean candidate / mean baseline - 1, of which a pair contributes (candidate - ratio · baseline) /
    mean baseline; the baseline's mean must be positive. Open at fewer than 30 effective pairs.
    """
    before, after = _pairs(baseline, candidate)
    if not before:
        return OPEN
    scale = float(pooled(before).mean()) if relative else 1.0
    ratio = float(pooled(after).mean()) / scale if relative else 1.0
    around = tuple((b - ratio * a) / scale for a, b in zip(before, after, strict=True))
    largest = max(float(np.max(np.abs(run))) for run in (*before, *after)) / scale
    if (
        max(float(run.max()) for run in around) - min(float(run.min()) for run in around)
        < _ROUNDING * largest
    ):
        exact = ratio - 1 if relative else float(pooled(around).mean())
        return Interval(exact, exact)
    of = spread(around)
    if of is None or of.worth < FEWEST_EFFECTIVE:
        return OPEN
    return student_interval(ratio - 1 if relative else float(pooled(around).mean()), of, level=level)


def paired_percentile_interval(
    baseline: Samples, candidate: Samples, q: float, *, relative: bool = False, level: float = 0.95
) -> Interval:
    """Interval of the difference (or relative change) of the q-th percentiles of paired samples.

    Open where one arm's sample does not support the percentile.
    """
    before, after = _pairs(baseline, candidate)
    if not before:
        return OPEN
    combine = relative_change_interval if relative else difference_interval
    # One worth for both, the lesser: legs of different ranks do not cancel where the arms differ by little.
    worth = min((percentile_worth(arm, q) for arm in (before, after)), key=lambda of: of.discounted(level))
    return combine(
        _bounded(before, q, level, worth),
        _bounded(after, q, level, worth),
        correlation=long_run_correlation(exceedances(before, q), exceedances(after, q)),
    )


def long_run_correlation(first: Samples, second: Samples) -> float:
    """Correlation of the means of two series observed together; 0 where one of them is constant."""
    one, two = _pairs(first, second)
    own, other = _variance_of_mean(one), _variance_of_mean(two)
    if own <= 0 or other <= 0:
        return 0.0
    # On one scale, so that the sum and the difference of the two lose no digits.
    one = tuple(run / math.sqrt(own) for run in one)
    two = tuple(run / math.sqrt(other) for run in two)
    both = _variance_of_mean(tuple(a + b for a, b in zip(one, two, strict=True)))
    apart = _variance_of_mean(tuple(a - b for a, b in zip(one, two, strict=True)))
    return min(1.0, max(-1.0, (both - apart) / 4))


class _Legs(NamedTuple):
    down: float | None
    up: float | None


def _legs(value: Bounded) -> _Legs:
    return _Legs(
        None if value.lower is None else value.point - value.lower,
        None if value.upper is None else value.upper - value.point,
    )


def _leg(
    own: float | None,
    other: float | None,
    own_back: float | None,
    other_back: float | None,
    correlation: float,
) -> float | None:
    """How far the difference may be off in one direction: by ``own`` of the candidate that way, and by
    ``other`` of the baseline the other way. ``_back``: their legs to the opposite sides. None: open."""
    if own is None or other is None:
        return None
    if correlation <= 0 or own_back is None or other_back is None:
        return math.sqrt(max(0.0, own**2 + other**2 - 2 * correlation * own * other))
    common = max(0.0, own - other_back, other - own_back)
    return math.sqrt((1 - correlation) * (own**2 + other**2) + correlation * common**2)


def _logarithm(value: Bounded) -> Bounded:
    ends = [None if end is None or end <= 0 else math.log(end) for end in (value.lower, value.upper)]
    return Bounded(math.log(value.point), *ends)


def _pairs(baseline: Samples, candidate: Samples) -> tuple[Runs, Runs]:
    before, after = as_runs(baseline), as_runs(candidate)
    if [len(run) for run in before] != [len(run) for run in after]:
        raise ValueError("paired samples differ in length")
    return before, after


def _bounded(runs: Runs, q: float, level: float, worth: Worth) -> Bounded:
    """A percentile with its interval by plain order statistics: whether a stretch is a quiet one is the same
    for both arms."""
    every = np.sort(pooled(runs))
    point, usable = percentile(every, q), worth.usable(len(every), level)
    lower, upper = ordered_percentile_interval(every, q, level=level, effective_n=usable)
    return Bounded(
        point,
        None if lower is None else min(lower, point),
        None if upper is None else max(upper, point),
    )


def _variance_of_mean(runs: Runs) -> float:
    return float(np.var(pooled(runs))) / effective_size(runs) if runs else 0.0
