"""A distribution as a set of Estimates: five percentiles, mean, minimum and maximum, each with its interval.

Requests of a run depend on each other through the queue, so every interval rests on the effective sample
size. Mean: Student's t on the long-run variance. Percentiles: order statistics at the effective size. Above,
P99 and P99.9 have the bound by the load of their queue where that is known. Ends that would be open are crude
ones (:mod:`~pytest_llmbench.stats.crude`) from forty samples on. Minimum and maximum are what was
observed and bound nothing. How often these intervals hold the truth: docs/reference/statistics.md.

Requests that the load generator gave up on: right-censored samples of their latency.

A deadline of ours, a budget or a stop cut them off, so all that is known of such a latency is that it would
have been longer. Points of latencies are those of the requests that ended well (AMB-37); of N requests k were
given up on, and of a percentile q, with T = N (1 - q/100) requests above it,

- T ≤ k: it is among the k. It is at least what it is with each of them as long as it was waited for, and has
  no upper end.
- else its upper end is that of the percentile of the others with T - k - δ above it,
  δ = √2 z (√T - √(T - k)): how many lie above varies with T and not with T - k, and √2 allows for requests
  that depend on each other.

The mean is at least what it is, and has no upper end.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pytest_llmbench.model.estimate import LEVEL, Estimate, EstimateKind, Reason
from pytest_llmbench.model.numbers import quantity
from pytest_llmbench.stats import crude as crude_ends
from pytest_llmbench.stats.backlog import NO_RISE, Backlog, Rise
from pytest_llmbench.stats.crude import CRUDELY, Crude, far_ends, mean_ends
from pytest_llmbench.stats.first_come import BY_LOAD, KnownQueue, known_queue
from pytest_llmbench.stats.percentiles import (
    PERCENTILES,
    Worth,
    bounded_by_higher,
    closed_by,
    in_order,
    ordered_interval,
    ordered_percentile,
    ordered_percentile_interval,
    percentile_worths,
    samples_required,
    series_memory,
)
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, Runs, Samples, as_runs, pooled
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE, Spread, normal_quantile, spread

STATISTICS: tuple[str, ...] = (*PERCENTILES, "mean", "min", "max")
_MOST_TIMES = 16
"""The largest factor by which more samples are recommended to tell a busy system from an overloaded one."""


Percentiles = Callable[[Sequence[float]], Sequence[Estimate]]
"""The estimates of these percentiles, the lowest first, of the requests that ended well."""
_DEPENDENT = math.sqrt(2.0)


def estimate(
    point: float,
    interval: Interval,
    n: int,
    method: str,
    unit: str = "ratio",
    *,
    required: int | None = None,
    kind: EstimateKind = EstimateKind.SAMPLE,
) -> Estimate:
    """The estimate of a figure. Point and ends may come from different statistics, so the interval is widened
    to hold the point. ``required``: the samples that would close an open end."""
    lower, upper = interval
    return Estimate(
        point=point,
        lower=None if lower is None else min(lower, point),
        upper=None if upper is None else max(upper, point),
        level=LEVEL,
        n=n,
        method=method,
        unit=unit,
        n_required=required if lower is None or upper is None else None,
        kind=kind,
    )


class GivenUp(NamedTuple):
    """The requests of a sample that were given up on, in the unit of its values."""

    at_least: FloatArray
    """How long each had lasted whose value is not known."""
    known: FloatArray
    """The values that were complete when their request was given up on."""

    @classmethod
    def of_unknown(cls, count: int) -> GivenUp:
        """Requests of which nothing is known."""
        return cls(np.zeros(count), np.empty(0))

    @property
    def total(self) -> int:
        return len(self.at_least) + len(self.known)


def with_given_up(
    estimates: Mapping[str, Estimate],
    gone: GivenUp,
    ordered: FloatArray,
    n: int,
    of_others: Percentiles,
) -> dict[str, Estimate]:
    """``estimates``, of :data:`PERCENTILES` and others, by statistic as far as they are known. ``ordered``:
    the values of the requests that ended well, in ascending order, or none where these are of no use; ``n``:
    how many requests ended well."""
    if not gone.total or not n:
        return dict(estimates)
    beyond = {name: _Beyond.of(q, estimates[name], gone, n) for name, q in PERCENTILES.items()}
    shifted = sorted({each.shifted for each in beyond.values() if each.shifted is not None})
    uppers = dict(zip(shifted, of_others(shifted), strict=True)) if shifted else {}
    lowest = np.sort(np.concatenate((ordered, gone.known, gone.at_least)))
    found = dict(estimates)
    for name, q in PERCENTILES.items():
        found[name] = beyond[name].bounded(estimates[name], q, uppers, lowest)
    if "mean" in found:
        found["mean"] = _with_gone(found["mean"], gone, n)
    return found


class _Beyond(NamedTuple):
    """How many requests lie above a percentile."""

    among: bool
    """Whether it lies among those that were given up on."""
    shifted: float | None
    """The percentile of the others whose upper end is its own; None where it has none."""
    above: int
    total: int

    @classmethod
    def of(cls, q: float, estimate: Estimate, gone: GivenUp, n: int) -> _Beyond:
        point = -math.inf if estimate.point is None else estimate.point
        above, total = len(gone.at_least) + int((gone.known > point).sum()), n + gone.total
        wanted = total * (1 - q / 100)
        left = wanted - above
        if left <= 0:
            return cls(True, None, above, total)
        varies = _DEPENDENT * normal_quantile(LEVEL) * (math.sqrt(wanted) - math.sqrt(left))
        beyond = min(left - varies, n * (1 - q / 100))
        return cls(False, 100 * (1 - beyond / n) if beyond > 0 else None, above, total)

    def bounded(
        self, estimate: Estimate, q: float, uppers: Mapping[float, Estimate], lowest: FloatArray
    ) -> Estimate:
        if not self.above or estimate.point is None:
            return estimate
        told = f"{self.above} of {self.total} requests that were given up on are above it"
        least = ordered_percentile_interval(lowest, q, effective_n=len(lowest) / 2)
        if self.among:
            point = max(estimate.point, float(np.percentile(lowest, q)))
            return replace(
                estimate, point=point, lower=_least(estimate.point, least.lower), upper=None,
                n_required=None, kind=EstimateKind.BOUND, method=f"a lower bound: {told}",
                given_up=self.above, reason=Reason.GIVEN_UP,
            )  # fmt: skip
        own = None if self.shifted is None else uppers[self.shifted]
        upper = None if own is None or own.upper is None else max(own.upper, estimate.point)
        return replace(
            estimate,
            lower=estimate.lower if least.lower is None else _least(estimate.lower, least.lower),
            upper=upper,
            n_required=None if own is None else own.n_required,
            kind=estimate.kind if own is None else own.kind,
            method=f"{estimate.method}; {told}",
            given_up=self.above,
            reason=Reason.GIVEN_UP if upper is None else None,
        )


def _least(*ends: float | None) -> float | None:
    return min((end for end in ends if end is not None), default=None)


def _with_gone(mean: Estimate, gone: GivenUp, n: int) -> Estimate:
    if mean.point is None:
        return mean
    every = n + gone.total
    others = float(gone.at_least.sum() + gone.known.sum())
    ends = (None if mean.lower is None else mean.lower * n + others, mean.lower)
    lower = _least(*(ends[1:] if ends[0] is None else (ends[0] / every, ends[1])))
    told = f"{gone.total} of {every} requests that were given up on are not in it"
    return replace(mean.at_least(Reason.GIVEN_UP, told), lower=lower, given_up=gone.total)


def distribution(
    family: str,
    samples: Samples,
    *,
    unit: str = "ms",
    backlog: Backlog | None = None,
    given_up: GivenUp | None = None,
) -> dict[str, Estimate]:
    """``{family}.p50`` … ``{family}.p99_9``, ``.mean``, ``.min``, ``.max`` of one run or of several.

    ``samples``: a vector in arrival order, or one per run (see :mod:`pytest_llmbench.stats.runs`). Several
    runs are pooled; no block straddles two of them. Without samples every estimate is undefined. Where an
    interval is open for want of samples, ``n_required`` says how many of this dependence would close it, as
    far as these tell.

    ``backlog``: of latencies, what each waited for a slot: where noise hides a queue, upper ends allow for
    it. ``given_up``: the requests of all runs whose value is not known since they were given up on.
    """
    runs = as_runs(samples)
    if not runs:
        undefined = Estimate.undefined(unit=unit, method="no samples")
        return {f"{family}.{statistic}": undefined for statistic in STATISTICS}
    sample = _Sample(runs, unit, backlog)
    estimates = dict(zip(PERCENTILES, sample.percentiles(tuple(PERCENTILES.values())), strict=True))
    estimates["mean"] = sample.mean
    if given_up is not None:
        n = len(sample.ordered)
        estimates = with_given_up(estimates, given_up, sample.ordered, n, sample.percentiles)
    estimates["min"] = sample.observed(float(sample.ordered[0]))
    estimates["max"] = sample.observed(float(sample.ordered[-1]))
    return {f"{family}.{statistic}": estimates[statistic] for statistic in STATISTICS}


@dataclass(frozen=True)
class _Sample:
    runs: Runs
    unit: str
    backlog: Backlog | None

    @cached_property
    def rise(self) -> Rise:
        return NO_RISE if self.backlog is None else self.backlog.rise(self.runs, LEVEL)

    @cached_property
    def queue(self) -> KnownQueue | None:
        return known_queue(self.runs, self.backlog)

    @cached_property
    def ordered(self) -> FloatArray:
        return np.sort(pooled(self.runs))

    @cached_property
    def lags(self) -> int:
        return series_memory(self.runs)

    @cached_property
    def spread(self) -> Spread | None:
        return spread(self.runs, lags=self.lags)

    @cached_property
    def mean(self) -> Estimate:
        point, of = float(np.mean(pooled(self.runs))), self.spread
        if of is None:
            return self._estimate(point, OPEN, "mean; no interval at n<10", FEWEST_EFFECTIVE)
        interval, crude = mean_ends(self.runs, of, level=LEVEL, rise=self.rise)
        method = f"mean at {_effective(of.worth)}, {of_quantiles(of)}"
        if crude:
            return self._estimate(point, interval, f"{method}{CRUDELY}", kind=EstimateKind.CRUDE)
        n = len(self.ordered)
        required = max(n + 1, math.ceil(FEWEST_EFFECTIVE * n / of.worth))
        if self.backlog is not None and self.backlog.load is not None and math.isinf(self.rise.mean):
            required = max(required, math.ceil(min(self.backlog.load.longer(LEVEL), _MOST_TIMES) * n))
        return self._estimate(point, interval, method, required)

    def percentiles(self, qs: Sequence[float]) -> list[Estimate]:
        worths = percentile_worths(self.runs, qs, lags=self.lags)
        bounds = [None if self.queue is None else self.queue.upper(q, LEVEL) for q in qs]
        crude = Crude.of(self.runs, self.spread, LEVEL, self.rise)
        own, others = [], []
        for q, worth, bound in zip(qs, worths, bounds, strict=True):
            lower, upper = ordered_interval(self.ordered, q, worth, level=LEVEL, rise=self.rise)
            far = far_ends(
                crude, self.runs, self.ordered, q, worth, lags=self.lags, level=LEVEL, rise=self.rise
            )
            if worth.samples < FEWEST_EFFECTIVE and far.lower is not None and far.lower > (lower or 0.0):
                lower = None  # the nearer end counts
            own.append(Interval(lower, upper if bound is None else bound))
            others.append(far)
        ends = in_order(bounded_by_higher(closed_by(own, others), bounds))
        return [self._percentile(*each) for each in zip(qs, worths, own, bounds, ends, strict=True)]

    def _percentile(
        self, q: float, worth: Worth, own: Interval, by_load: float | None, interval: Interval
    ) -> Estimate:
        """``own``: its ends without those of other percentiles and crude ones."""
        method = f"order statistics at {_effective(worth.samples)}"
        crude = (own.lower is None and interval.lower is not None) or (
            interval.upper is not None and (own.upper is None or interval.upper < own.upper)
        )
        if crude:
            method += CRUDELY
        elif by_load is not None:
            method += f", {BY_LOAD}"
        required = worth.required(samples_required(q, LEVEL), len(self.ordered), LEVEL)
        if interval.lower is not None:
            bounded = crude_ends.samples_required(q, lags=self.lags)
            # What a moment of these many does not bound, more of them need not either.
            required = min(required, bounded) if bounded > len(self.ordered) else required
        kind = EstimateKind.CRUDE if crude else EstimateKind.SAMPLE
        return self._estimate(ordered_percentile(self.ordered, q), interval, method, required, kind)

    def observed(self, value: float) -> Estimate:
        return self._estimate(value, OPEN, "observed", kind=EstimateKind.OBSERVED)

    def _estimate(
        self,
        point: float,
        interval: Interval,
        method: str,
        required: int | None = None,
        kind: EstimateKind = EstimateKind.SAMPLE,
    ) -> Estimate:
        return estimate(point, interval, len(self.ordered), method, self.unit, required=required, kind=kind)


def of_quantiles(of: Spread) -> str:
    """How wide the interval of a mean is taken, in words: the quantiles of Student's t, or resampling."""
    if of.resampled is None:
        return f"t with {quantity(of.freedom, 'count')} degrees of freedom"
    blocks = quantity(of.freedom + 1, "count")
    return f"studentised block bootstrap of {blocks} blocks, {len(of.resampled)} resamples"


def _effective(worth: float) -> str:
    return f"effective n={math.floor(worth)}"
