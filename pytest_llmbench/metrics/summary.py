"""A distribution as a set of Estimates: five percentiles, mean, minimum and maximum, each with its interval.

Requests of a run depend on each other through the queue, so every interval rests on the effective sample
size. Mean: Student's t on the long-run variance. Percentiles: order statistics at the effective size. Above,
P99 and P99.9 have the bound by the load of their queue where that is known. Ends that would be open are crude
ones (:mod:`~pytest_llmbench.stats.crude`) from a hundred samples on. Minimum and maximum are what was
observed and bound nothing. How often these intervals hold the truth: docs/reference/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from types import MappingProxyType

import numpy as np

from pytest_llmbench.model.estimate import Estimate, IntervalKind
from pytest_llmbench.stats import crude as crude_ends
from pytest_llmbench.stats import order_statistics
from pytest_llmbench.stats.backlog import NO_RISE, Backlog, Rise
from pytest_llmbench.stats.crude import CRUDELY, Crude, far_ends, mean_ends
from pytest_llmbench.stats.percentile_intervals import (
    Worth,
    bounded_by_higher,
    closed_by,
    in_order,
    ordered_interval,
    percentile_worths,
    series_memory,
)
from pytest_llmbench.stats.percentiles import ordered_percentile
from pytest_llmbench.stats.queues.first_come import BY_LOAD, KnownQueue, known_queue
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, Runs, Samples, as_runs, pooled
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE, Spread, spread

PERCENTILES: Mapping[str, float] = MappingProxyType(
    {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}
)
STATISTICS: tuple[str, ...] = (*PERCENTILES, "mean", "min", "max")
OBSERVED = "observed"
_MOST_TIMES = 16
"""The largest factor by which more samples are recommended to tell a busy system from an overloaded one."""


def distribution(
    family: str,
    samples: Samples,
    *,
    unit: str = "ms",
    level: float = 0.95,
    backlog: Backlog | None = None,
) -> dict[str, Estimate]:
    """``{family}.p50`` … ``{family}.p99_9``, ``.mean``, ``.min``, ``.max`` of one run or of several.

    ``samples``: a vector in arrival order, or one per run (see :mod:`pytest_llmbench.stats.runs`). Several
    runs are pooled; no block straddles two of them. Without samples every estimate is undefined. Where an
    interval is open for want of samples, ``n_required`` says how many of this dependence would close it, as
    far as these tell.

    ``backlog``: of latencies, what each waited for a slot: where noise hides a queue, upper ends allow for
    it.
    """
    runs = as_runs(samples)
    if not runs:
        undefined = Estimate.undefined(unit=unit, method="no samples", level=level)
        return {f"{family}.{statistic}": undefined for statistic in STATISTICS}
    sample = _Sample(runs, unit, level, backlog)
    estimates = dict(zip(PERCENTILES, sample.percentiles(tuple(PERCENTILES.values())), strict=True))
    estimates["mean"] = sample.mean
    estimates["min"] = sample.observed(float(sample.ordered[0]))
    estimates["max"] = sample.observed(float(sample.ordered[-1]))
    return {f"{family}.{statistic}": estimates[statistic] for statistic in STATISTICS}


@dataclass(frozen=True)
class _Sample:
    runs: Runs
    unit: str
    level: float
    backlog: Backlog | None = None

    @cached_property
    def rise(self) -> Rise:
        return NO_RISE if self.backlog is None else self.backlog.rise(self.runs, self.level)

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
        interval, crude = mean_ends(self.runs, of, level=self.level, rise=self.rise)
        method = f"mean at {_effective(of.worth)}, {of_quantiles(of)}"
        if crude:
            return self._estimate(point, interval, f"{method}{CRUDELY}", kind=IntervalKind.CRUDE)
        required = self._inflated(FEWEST_EFFECTIVE, of.worth)
        if self.backlog is not None and self.backlog.load is not None and math.isinf(self.rise.mean):
            longer = min(self.backlog.load.longer(self.level), _MOST_TIMES)
            required = max(required, math.ceil(longer * len(self.ordered)))
        return self._estimate(point, interval, method, required)

    def percentiles(self, qs: Sequence[float]) -> list[Estimate]:
        worths = percentile_worths(self.runs, qs, lags=self.lags)
        bounds = [None if self.queue is None else self.queue.upper(q, self.level) for q in qs]
        crude = Crude.of(self.runs, self.spread, self.level, self.rise)
        own, others = [], []
        for q, worth, bound in zip(qs, worths, bounds, strict=True):
            lower, upper = ordered_interval(self.ordered, q, worth, level=self.level, rise=self.rise)
            far = far_ends(
                crude, self.runs, self.ordered, q, lags=self.lags, level=self.level, rise=self.rise
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
        independent = order_statistics.samples_required(q, self.level)
        required = worth.required(independent, len(self.ordered), self.level)
        if interval.lower is not None:
            bounded = crude_ends.samples_required(q, lags=self.lags)
            # What a moment of these many does not bound, more of them need not either.
            required = min(required, bounded) if bounded > len(self.ordered) else required
        kind = IntervalKind.CRUDE if crude else IntervalKind.SAMPLE
        return self._estimate(ordered_percentile(self.ordered, q), interval, method, required, kind)

    def observed(self, value: float) -> Estimate:
        return self._estimate(value, OPEN, OBSERVED)

    def _inflated(self, independent: int, worth: float) -> int:
        """How many samples, as dependent as these, are worth that many independent ones; at least one more
        than there are."""
        return max(len(self.ordered) + 1, math.ceil(independent * len(self.ordered) / worth))

    def _estimate(
        self,
        point: float,
        interval: Interval,
        method: str,
        required: int | None = None,
        kind: IntervalKind = IntervalKind.SAMPLE,
    ) -> Estimate:
        lower, upper = interval
        # Both ends and the point come from different order statistics or resamples; keep them in order.
        lower = None if lower is None else min(lower, point)
        upper = None if upper is None else max(upper, point)
        open_end = lower is None or upper is None
        return Estimate(
            point=point,
            lower=lower,
            upper=upper,
            level=self.level,
            n=len(self.ordered),
            method=method,
            unit=self.unit,
            n_required=required if open_end else None,
            kind=kind,
        )


def of_quantiles(of: Spread) -> str:
    """How wide the interval of a mean is taken, in words: the quantiles of Student's t, or resampling."""
    if of.resampled is None:
        return f"t with {of.freedom:.0f} degrees of freedom"
    return f"studentised block bootstrap of {of.freedom + 1:.0f} blocks, {len(of.resampled)} resamples"


def _effective(worth: float) -> str:
    return f"effective n={math.floor(worth)}"
