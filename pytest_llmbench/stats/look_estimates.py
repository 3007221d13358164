"""The interval of one watched objective from its values so far: quickly, without a bootstrap."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.looks import Watched
from pytest_llmbench.stats.dependence import exceedances
from pytest_llmbench.stats.order_statistics import percentile_interval, samples_required
from pytest_llmbench.stats.percentiles import percentile
from pytest_llmbench.stats.runs import FloatArray
from pytest_llmbench.stats.sequential import cautious_size, exact_share_interval

FEWEST_RARE = 10.0
"""An early look decides on so many effective requests on the rarer side of a percentile or a share: of fewer
it cannot be known how they come in clusters. 200 effective requests for P95, 1000 for P99."""

Size = Callable[[FloatArray, float], float]


class Judged(NamedTuple):
    estimate: Estimate
    worth: float
    """Effective requests."""


def estimate(watched: Watched, values: FloatArray, tail: float, size: Size | None = None) -> Judged:
    """Interval of level 1 - 2 ``tail`` from the values in the order of the sequence (NaN: no sample).

    ``size`` says of how many independent values a series is worth; default :func:`cautious_size`.
    """
    size = size or cautious_size
    values = values[~np.isnan(values)]
    unit = watched.objective.unit
    if not len(values):
        return Judged(Estimate.undefined(unit=unit, method="no samples", level=1 - 2 * tail), 0.0)
    if watched.is_share:
        return _share(watched, values, tail, size)
    if watched.percentile is None:
        return _mean(watched, values, tail, size)
    return _percentile(watched, values, tail, watched.percentile, size)


def is_decided(watched: Watched, found: Estimate) -> bool:
    """The rule of the gate: the whole interval lies on one side of the limit."""
    limited = watched.objective
    good, bad = (found.upper, found.lower) if limited.is_ceiling else (found.lower, found.upper)
    return (good is not None and limited.holds(good)) or (bad is not None and not limited.holds(bad))


def may_be_decided(watched: Watched, values: FloatArray, tail: float) -> bool:
    """Whether independent requests would decide it; dependent ones tell less. Cheap, and mostly enough."""
    values = values[~np.isnan(values)]
    if not len(values):
        return False
    n, limit = len(values), watched.objective.limit
    if watched.is_share:
        good = int(np.count_nonzero(values <= 1.0))
        lower, upper = exact_share_interval(good, n, tail=tail)
        return not lower <= limit <= upper
    if watched.percentile is None:
        return True
    from scipy.special import bdtr, bdtrc

    below, share = int(np.count_nonzero(values <= limit)), watched.percentile / 100
    return bool(bdtr(below, n, share) <= tail or bdtrc(below - 1, n, share) <= tail)


def is_enough(watched: Watched, judged: Judged) -> bool:
    """For an early look."""
    return judged.worth * watched.rarity >= FEWEST_RARE


def _percentile(watched: Watched, values: FloatArray, tail: float, q: float, size: Size) -> Judged:
    finite, top = _finite(values, watched.objective.limit)
    worth = size(exceedances(finite, q)[0], tail)
    ordered = np.sort(finite)
    level = 1 - 2 * tail
    lower, upper = percentile_interval(ordered, q, level=level, effective_n=worth)
    point: float | None = percentile(ordered, q)
    failed = int(np.count_nonzero(np.isinf(values)))
    method = f"order statistics at effective n={math.floor(worth)}"
    if failed:
        method += f", {failed} failed requests over the limit"
        # Of those it is known that they are over it, and no more: the lower end may say so, a point may not.
        point = None if point is None or point > top else point
        upper = None if upper is None or upper > top else upper
    required = math.ceil(samples_required(q, level) * len(values) / worth)
    open_end = lower is None or upper is None
    return Judged(
        _ordered(watched, point, lower, upper, tail, len(values), method, required if open_end else None),
        worth,
    )


def _finite(values: FloatArray, limit: float) -> tuple[FloatArray, float]:
    """Failed requests as values just over the limit and over all others; and the largest of those."""
    failed = np.isinf(values)
    top = float(np.max(values[~failed], initial=0.0))
    return np.where(failed, np.nextafter(max(limit, top), np.inf), values), top


def _mean(watched: Watched, values: FloatArray, tail: float, size: Size) -> Judged:
    if np.isinf(values).any():
        method = "a mean with failed requests over the limit is undefined"
        undefined = Estimate.undefined(
            unit=watched.objective.unit, method=method, level=1 - 2 * tail, n=len(values)
        )
        return Judged(undefined, 0.0)
    from scipy.special import ndtri

    worth, mean = size(values, tail), float(np.mean(values))
    method = f"mean at effective n={math.floor(worth)}"
    if worth < 2 * FEWEST_RARE:
        return Judged(_ordered(watched, mean, None, None, tail, len(values), method), worth)
    half = -float(ndtri(tail)) * float(np.std(values)) / math.sqrt(worth - 1)
    return Judged(_ordered(watched, mean, mean - half, mean + half, tail, len(values), method), worth)


def _share(watched: Watched, values: FloatArray, tail: float, size: Size) -> Judged:
    good, n = int(np.count_nonzero(values <= 1.0)), len(values)
    finite, _ = _finite(values, 1.0)
    worth = size(exceedances(finite, 100.0 * good / n)[0], tail)
    lower, upper = exact_share_interval(good, n, tail=tail, effective_n=worth)
    method = f"Clopper-Pearson interval at effective n={math.floor(worth)}"
    return Judged(_ordered(watched, good / n, lower, upper, tail, n, method), worth)


def _ordered(
    watched: Watched,
    point: float | None,
    lower: float | None,
    upper: float | None,
    tail: float,
    n: int,
    method: str,
    required: int | None = None,
) -> Estimate:
    """Ends and point come from different order statistics: they are kept in order."""
    if point is not None:
        lower = None if lower is None else min(lower, point)
        upper = None if upper is None else max(upper, point)
    return Estimate(point, lower, upper, 1 - 2 * tail, n, method, watched.objective.unit, required)


__all__ = ["FEWEST_RARE", "Judged", "estimate", "is_decided", "is_enough", "may_be_decided"]
