"""Changes between two arms, a baseline and a candidate: cache off and on, guardrails off and on.

Four ways to put it: ``difference`` candidate - baseline; ``relative_change`` candidate / baseline - 1;
``reduction`` 1 - candidate / baseline, positive when the candidate is lower; ``ratio`` candidate / baseline.
All but the first have the unit ``ratio``. With an undefined arm the change is undefined, with an open one
it is open.

Independent arms are combined from their estimates, whatever these are of: percentiles, means, rates. Arms
that ran the same requests are compared in pairs, which is sharper: the spread of the requests drops out.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Literal

import numpy as np

from pytest_llmbench.metrics.summary import PERCENTILES, distribution
from pytest_llmbench.metrics.throughput import Window, output_tokens_per_slice
from pytest_llmbench.model.estimate import Estimate, IntervalKind
from pytest_llmbench.model.records import MISSING, IntColumn, Records
from pytest_llmbench.stats.difference import (
    Bounded,
    difference_interval,
    paired_mean_interval,
    paired_percentile_interval,
    relative_change_interval,
)
from pytest_llmbench.stats.order_statistics import samples_required
from pytest_llmbench.stats.percentile_intervals import percentile_worth
from pytest_llmbench.stats.percentiles import percentile
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, Samples, as_runs, pooled
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE, spread

Kind = Literal["difference", "relative_change", "reduction", "ratio"]
STATISTICS = ("p50", "p95", "p99", "mean")
SPANS: Mapping[str, tuple[str, str]] = MappingProxyType(
    {
        "ttft": ("submitted_ns", "first_content_ns"),
        "ttft_scheduled": ("scheduled_ns", "first_content_ns"),
        "e2e": ("submitted_ns", "last_content_ns"),
        "e2e_scheduled": ("scheduled_ns", "last_content_ns"),
    }
)
"""Family that can be paired → the two instants between which its latency runs."""
PAIRED_SLICES = 200
"""Number of slices of a window when rates are compared slice by slice."""
_NS_PER_MS = 1e6
_HALF_AS_MANY_AGAIN = 1.5


@dataclass(frozen=True, eq=False)
class Pairs:
    """Latencies in ms of the requests that succeeded in both arms, run by run, in the baseline's order."""

    baseline: tuple[FloatArray, ...]
    candidate: tuple[FloatArray, ...]
    unpaired: int
    """Number of requests measured in one arm only."""


def change(baseline: Estimate, candidate: Estimate, kind: Kind = "difference") -> Estimate:
    """The change between two independent estimates of the same kind of number.

    Throughput reduction, TTFT inflation, overhead of a percentile. ValueError for different units or levels.
    """
    if (baseline.unit, baseline.level) != (candidate.unit, candidate.level):
        raise ValueError(
            f"{baseline.unit} at {baseline.level} does not compare with {candidate.unit} at {candidate.level}"
        )
    unit, n = _unit(kind, baseline.unit), min(baseline.n, candidate.n)
    reason = _undefined(baseline.point, candidate.point, kind)
    if reason is not None or baseline.point is None or candidate.point is None:
        return Estimate.undefined(unit=unit, method=str(reason), level=baseline.level, n=n)
    one = Bounded(baseline.point, baseline.lower, baseline.upper)
    two = Bounded(candidate.point, candidate.lower, candidate.upper)
    if kind == "difference":
        interval = difference_interval(one, two)
    else:
        interval = relative_change_interval(one, two) if two.point > 0 else OPEN
    needs = [
        math.ceil(n * arm.n_required / arm.n)
        for arm in (baseline, candidate)
        if arm.n_required is not None and arm.n > 0
    ]
    found = _estimate(
        one.point, two.point, interval, kind,
        level=baseline.level, n=n, unit=unit, required=max(needs, default=None),
        method=f"two independent arms, MOVER; {candidate.method}",
    )  # fmt: skip
    crude = IntervalKind.CRUDE in (baseline.kind, candidate.kind)
    return replace(found, kind=IntervalKind.CRUDE) if crude else found


def independent_changes(
    name: str,
    baseline: Samples,
    candidate: Samples,
    kind: Kind = "difference",
    *,
    statistics: Sequence[str] = STATISTICS,
    unit: str = "ms",
    level: float = 0.95,
) -> dict[str, Estimate]:
    """``{name}.p50`` … between two independent arms, from their samples."""
    before = distribution(name, baseline, unit=unit, level=level)
    after = distribution(name, candidate, unit=unit, level=level)
    names = [f"{name}.{statistic}" for statistic in statistics]
    return {full: change(before[full], after[full], kind) for full in names}


def paired_throughput_reduction(baseline: Window, candidate: Window, *, level: float = 0.95) -> Estimate:
    """1 - candidate / baseline of the output tokens per second, where both were sent the same requests.

    Equal slices of the two windows are paired: the variation of what was offered, which is the same in
    both, drops out.
    """
    before, after = (output_tokens_per_slice(window, PAIRED_SLICES) for window in (baseline, candidate))
    if before is None or after is None or before.sum() <= 0:
        why = "the baseline's" if before is None or before.sum() <= 0 else "the candidate's"
        return Estimate.undefined(unit="ratio", method=f"no token counts of {why} window", level=level)
    interval = paired_mean_interval((before,), (after,), relative=True, level=level)
    return _estimate(
        float(before.mean()), float(after.mean()), interval, "reduction",
        level=level, n=PAIRED_SLICES, unit="ratio", required=None, method="paired slices of time",
    )  # fmt: skip


def in_both(one: Records, other: Records) -> tuple[Records, Records]:
    """The records of the requests, by index, that succeeded in both."""
    common = np.intersect1d(one.index[one.ok], other.index[other.ok])
    return (
        one.select(one.ok & np.isin(one.index, common)),
        other.select(other.ok & np.isin(other.index, common)),
    )


def pairs(family: str, baseline: Sequence[Records], candidate: Sequence[Records]) -> Pairs:
    """The paired latencies of the same requests, by their index in the sequence; the i-th runs of both arms
    together.

    ``family``: one of :data:`SPANS`. ValueError for unequal numbers of runs.
    """
    if len(baseline) != len(candidate):
        raise ValueError(f"{len(baseline)} runs do not pair with {len(candidate)}")
    before, after, unpaired = [], [], 0
    for one, two in zip(baseline, candidate, strict=True):
        first_index, first = _measured(one, family)
        second_index, second = _measured(two, family)
        _, places, others = np.intersect1d(first_index, second_index, return_indices=True)
        order = np.argsort(places)
        before.append(first[places[order]])
        after.append(second[others[order]])
        unpaired += len(first) + len(second) - 2 * len(order)
    return Pairs(tuple(before), tuple(after), unpaired)


def paired_changes(
    name: str,
    arms: Pairs,
    kind: Kind = "difference",
    *,
    statistics: Sequence[str] = STATISTICS,
    level: float = 0.95,
) -> dict[str, Estimate]:
    """``{name}.p50`` … between paired arms: differences of percentiles, not percentiles of differences."""
    return {f"{name}.{statistic}": _paired(arms, statistic, kind, level) for statistic in statistics}


def _paired(arms: Pairs, statistic: str, kind: Kind, level: float) -> Estimate:
    before, after = as_runs(arms.baseline), as_runs(arms.candidate)
    n, unit, relative = sum(map(len, before)), _unit(kind, "ms"), kind != "difference"
    if n == 0:
        return Estimate.undefined(unit=unit, method="no requests succeeded in both arms", level=level)
    q = PERCENTILES.get(statistic)
    every = pooled(before), pooled(after)
    one, two = (float(np.mean(arm)) if q is None else percentile(arm, q) for arm in every)
    reason = _undefined(one, two, kind)
    if reason is not None:
        return Estimate.undefined(unit=unit, method=reason, level=level, n=n)
    no_ratio = relative and min(float(arm.min()) for arm in every) <= 0
    if no_ratio:
        interval = OPEN
    elif q is None:
        interval = paired_mean_interval(before, after, relative=relative, level=level)
    else:
        interval = paired_percentile_interval(before, after, q, relative=relative, level=level)
    worth, required = _worth(before, after, q, level)
    return _estimate(
        one, two, interval, kind,
        level=level, n=n, unit=unit,
        required=None if no_ratio else _more_than(n, math.ceil(required * n / worth)),
        method=f"paired requests, effective n={math.floor(worth)}",
    )  # fmt: skip


def _more_than(n: int, required: int) -> int:
    """The number of pairs that would close an open end. If there are as many as the effective size asks for
    and it is open all the same, half as many again."""
    return required if required > n else math.ceil(_HALF_AS_MANY_AGAIN * n)


def _worth(
    before: tuple[FloatArray, ...], after: tuple[FloatArray, ...], q: float | None, level: float
) -> tuple[float, int]:
    """The effective number of pairs, and how many independent ones would close the interval."""
    if q is None:
        of = spread([b - a for a, b in zip(before, after, strict=True)])
        return (float(sum(map(len, before))) if of is None else of.worth), FEWEST_EFFECTIVE
    worth = min(percentile_worth(arm, q).samples for arm in (before, after))
    return worth, samples_required(q, level)


def _measured(records: Records, family: str) -> tuple[IntColumn, FloatArray]:
    start, end = (getattr(records, name) for name in SPANS[family])
    mask = records.ok & (start != MISSING) & (end != MISSING)
    return records.index[mask], np.asarray((end - start)[mask] / _NS_PER_MS, dtype=np.float64)


def _unit(kind: Kind, unit: str) -> str:
    return unit if kind == "difference" else "ratio"


def _undefined(baseline: float | None, candidate: float | None, kind: Kind) -> str | None:
    if baseline is None or candidate is None:
        return f"the {'baseline' if baseline is None else 'candidate'} is undefined"
    if kind != "difference" and baseline <= 0:
        return "the baseline is zero"
    return None


def _estimate(
    baseline: float, candidate: float, interval: Interval, kind: Kind,
    *, level: float, n: int, unit: str, required: int | None, method: str,
) -> Estimate:  # fmt: skip
    """The estimate of a change. ``interval``: that of the difference, or of the relative change, from which
    the other kinds are derived."""
    point = candidate - baseline if kind == "difference" else candidate / baseline - 1
    lower, upper = interval
    lower = None if lower is None else min(lower, point)
    upper = None if upper is None else max(upper, point)
    if kind == "reduction":
        point, lower, upper = -point, _negated(upper), _negated(lower)
    elif kind == "ratio":
        point, lower, upper = point + 1, _raised(lower), _raised(upper)
    open_end = lower is None or upper is None
    return Estimate(
        point=point, lower=lower, upper=upper, level=level, n=n, method=method, unit=unit,
        n_required=required if open_end else None,
    )  # fmt: skip


def _negated(end: float | None) -> float | None:
    return None if end is None else -end


def _raised(end: float | None) -> float | None:
    return None if end is None else end + 1
