"""The interval of one watched objective from its values so far, as in reports, at the level of the look.

Most looks decide nothing, and load is running while they are taken: a quick interval, at an effective size by
batch means, says first whether the careful one is worth its time.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.plan import Watched
from pytest_llmbench.stats.backlog import NO_RISE, Backlog, Rise
from pytest_llmbench.stats.block_bootstrap import chosen
from pytest_llmbench.stats.crude import CRUDELY, Crude, far_ends, mean_ends
from pytest_llmbench.stats.dependence import exceedances
from pytest_llmbench.stats.interim.samples import waited
from pytest_llmbench.stats.order_statistics import percentile_interval, samples_required
from pytest_llmbench.stats.percentile_intervals import (
    ordered_interval,
    percentile_worth,
    series_memory,
)
from pytest_llmbench.stats.percentiles import percentile
from pytest_llmbench.stats.proportion import exact_share_interval, share_within
from pytest_llmbench.stats.queues.first_come import BY_LOAD, known_queue
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, as_runs
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE, spread

FEWEST_RARE = 10.0
"""Fewest effective requests, on the rarer side of a percentile or a share, with which an early look decides:
with fewer it cannot be known how they come in clusters. 200 effective requests for P95, 1000 for P99."""

Size = Callable[[FloatArray, float], float]


class Judged(NamedTuple):
    estimate: Estimate
    worth: float
    """Effective number of requests."""


def estimate(
    watched: Watched,
    values: FloatArray,
    tail: float,
    size: Size | None = None,
    *,
    backlog: Backlog | None = None,
) -> Judged:
    """The estimate with its interval of level 1 - 2 ``tail``, from the values in the order of the sequence
    (NaN: no sample).

    ``size``: of how many independent values a series is worth, for a quick interval; default: the methods of
    reports. ``backlog``: of all values, in ms.
    """
    there = ~np.isnan(values)
    own = waited(watched, backlog)
    if own is not None:
        own = own.only(there)
    # Whatever the session has chosen: the measuring process and the report must come to one verdict.
    with chosen("analytic"):
        return _estimate(watched, values[there], own, tail, size)


def _estimate(
    watched: Watched, values: FloatArray, backlog: Backlog | None, tail: float, size: Size | None
) -> Judged:
    unit = watched.objective.unit
    if not len(values):
        return Judged(Estimate.undefined(unit=unit, method="no samples", level=1 - 2 * tail), 0.0)
    if watched.is_share:
        return _share(watched, values, backlog, tail, size)
    if watched.percentile is None:
        return _mean(watched, values, backlog, tail, size)
    return _percentile(watched, values, backlog, tail, watched.percentile, size)


def is_decided(watched: Watched, found: Estimate) -> bool:
    """Whether the limit is decided by the rule of the gate: the whole interval lies on one side of it."""
    limited = watched.objective
    good, bad = (found.upper, found.lower) if limited.is_ceiling else (found.lower, found.upper)
    return (good is not None and limited.holds(good)) or (bad is not None and not limited.holds(bad))


def may_be_decided(watched: Watched, values: FloatArray, tail: float) -> bool:
    """Whether independent requests would decide the limit; dependent ones tell less. Cheap, and mostly
    enough."""
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
    """Whether the effective sample is large enough for an early look."""
    return judged.worth * watched.rarity >= FEWEST_RARE


def _percentile(
    watched: Watched, values: FloatArray, backlog: Backlog | None, tail: float, q: float, size: Size | None
) -> Judged:
    finite, top = _finite(values, watched.objective.limit)
    ordered, level = np.sort(finite), 1 - 2 * tail
    how, kind = "", EstimateKind.SAMPLE
    if size is None:
        lags = series_memory(finite)
        of = percentile_worth(finite, q, lags=lags)
        rise = _rise(finite, backlog, tail)
        worth, (lower, upper) = of.samples, ordered_interval(ordered, q, of, level=level, rise=rise)
        # What failed or was given up on is in no law of a queue, and beyond no bound by a moment.
        cut = bool(np.isinf(values).any())
        queue = None if cut else known_queue(finite, backlog)
        known = None if queue is None else queue.upper(q, level)
        if known is not None:
            upper, how = known, f", {BY_LOAD}"
        if lower is None or upper is None:
            runs = as_runs(finite)
            crude = Crude.of(runs, spread(runs, lags=lags), level, rise)
            far = far_ends(crude, runs, ordered, q, of, lags=lags, level=level, rise=rise)
            lower = far.lower if lower is None else lower
            upper = far.upper if upper is None and not cut else upper
            how, kind = f"{how}{CRUDELY}", EstimateKind.CRUDE
        needed = of.required(samples_required(q, level), len(values), level)
    else:
        worth = size(exceedances(finite, q)[0], tail)
        lower, upper = percentile_interval(ordered, q, level=level, effective_n=worth)
        needed = math.ceil(samples_required(q, level) * len(values) / worth)
    point: float | None = percentile(ordered, q)
    failed = int(np.count_nonzero(np.isinf(values)))
    method = f"order statistics at effective n={math.floor(worth)}{how}"
    if failed:
        method += f", {failed} failed requests over the limit"
        # Of those it is known that they are over it, and no more: the lower end may say so, a point may not.
        point = None if point is None or point > top else point
        upper = None if upper is None or upper > top else upper
    required = needed if lower is None or upper is None else None
    found = _ordered(watched, point, lower, upper, tail, len(values), method, required)
    return Judged(replace(found, kind=kind), worth)


def _finite(values: FloatArray, limit: float) -> tuple[FloatArray, float]:
    """The values with failed requests just above the limit and all others, and the largest of the others."""
    failed = np.isinf(values)
    top = float(np.max(values[~failed], initial=0.0))
    return np.where(failed, np.nextafter(max(limit, top), np.inf), values), top


def _mean(
    watched: Watched, values: FloatArray, backlog: Backlog | None, tail: float, size: Size | None
) -> Judged:
    if np.isinf(values).any():
        method = "a mean with failed requests over the limit is undefined"
        undefined = Estimate.undefined(
            unit=watched.objective.unit,
            method=method,
            level=1 - 2 * tail,
            n=len(values),
            reason=Reason.NOT_COMPUTABLE,
        )
        return Judged(undefined, 0.0)
    mean, kind = float(np.mean(values)), EstimateKind.SAMPLE
    if size is None:
        worth, interval, crude = _careful_mean(values, backlog, tail)
        kind = EstimateKind.CRUDE if crude else kind
    else:
        worth = size(values, tail)
        interval = OPEN if worth < FEWEST_EFFECTIVE else _quick_mean(values, tail, worth)
    method = f"mean at effective n={math.floor(worth)}"
    found = _ordered(watched, mean, *interval, tail, len(values), method)
    return Judged(replace(found, kind=kind), worth)


def _careful_mean(values: FloatArray, backlog: Backlog | None, tail: float) -> tuple[float, Interval, bool]:
    """The effective number of values, the interval of their mean, and whether it has a crude end."""
    runs = as_runs(values)
    of = spread(runs, lags=series_memory(runs))
    if of is None:
        return 1.0, OPEN, False
    return of.worth, *mean_ends(runs, of, level=1 - 2 * tail, rise=_rise(values, backlog, tail))


def _rise(values: FloatArray, backlog: Backlog | None, tail: float) -> Rise:
    return NO_RISE if backlog is None else backlog.rise(values, 1 - 2 * tail)


def _quick_mean(values: FloatArray, tail: float, worth: float) -> Interval:
    from scipy.special import ndtri

    half = -float(ndtri(tail)) * float(np.std(values)) / math.sqrt(max(worth - 1, 1.0))
    return Interval(float(np.mean(values)) - half, float(np.mean(values)) + half)


def _share(
    watched: Watched, values: FloatArray, backlog: Backlog | None, tail: float, size: Size | None
) -> Judged:
    good, n = int(np.count_nonzero(values <= 1.0)), len(values)
    finite, _ = _finite(values, 1.0)
    lower: float | None
    upper: float | None
    kind = EstimateKind.SAMPLE
    if size is None:
        found = share_within(finite, level=1 - 2 * tail, backlog=backlog)
        worth, (lower, upper) = (1.0, OPEN) if found is None else (found.worth, found.interval)
        kind = EstimateKind.CRUDE if found is not None and found.crude else kind
    else:
        worth = size(exceedances(finite, 100.0 * good / n)[0], tail)
        lower, upper = exact_share_interval(good, n, tail=tail, effective_n=worth)
    method = f"Clopper-Pearson interval at effective n={math.floor(worth)}"
    judged = _ordered(watched, good / n, lower, upper, tail, n, method)
    return Judged(replace(judged, kind=kind), worth)


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
    """The estimate, with point and ends in order: they come from different order statistics."""
    if point is not None:
        lower = None if lower is None else min(lower, point)
        upper = None if upper is None else max(upper, point)
    return Estimate(point, lower, upper, 1 - 2 * tail, n, method, watched.objective.unit, required)
