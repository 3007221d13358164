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
from typing import Literal, NamedTuple

import numpy as np

from pytest_llmbench.metrics.latency import per_request
from pytest_llmbench.metrics.summary import distribution, estimate
from pytest_llmbench.metrics.throughput import Window, output_tokens_per_slice
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.numbers import Amount
from pytest_llmbench.model.records import MISSING, BoolColumn, IntColumn, Records
from pytest_llmbench.model.sentences import Note
from pytest_llmbench.stats.difference import (
    Bounded,
    difference_interval,
    paired_mean_interval,
    paired_percentile_interval,
    relative_change_interval,
)
from pytest_llmbench.stats.percentiles import PERCENTILES, percentile, percentile_worth, samples_required
from pytest_llmbench.stats.runs import OPEN, FloatArray, Interval, Samples, as_runs, pooled
from pytest_llmbench.stats.spectral import FEWEST_EFFECTIVE, spread

Kind = Literal["difference", "relative_change", "reduction", "ratio"]
STATISTICS = ("p50", "p95", "p99", "mean")
PAIRED_SLICES = 200
"""Number of slices of a window when rates are compared slice by slice."""
_HALF_AS_MANY_AGAIN = 1.5


@dataclass(frozen=True, eq=False)
class Pairs:
    """Latencies in ms of the requests that succeeded in both arms, run by run, in the baseline's order."""

    baseline: tuple[FloatArray, ...]
    candidate: tuple[FloatArray, ...]


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
        return Estimate.undefined(unit=unit, method=str(reason), n=n, reason=Reason.NOT_COMPUTABLE)
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
    method = f"two independent arms, MOVER; {candidate.method}"
    found = _estimate(one.point, two.point, interval, kind, n, method, unit, max(needs, default=None))
    grows_with, falls_with = (baseline, candidate) if kind == "reduction" else (candidate, baseline)
    given_up = baseline.given_up + candidate.given_up
    if grows_with.kind is EstimateKind.BOUND and falls_with.kind is not EstimateKind.BOUND:
        sort = EstimateKind.BOUND
    else:
        crude = EstimateKind.CRUDE in (baseline.kind, candidate.kind)
        sort = EstimateKind.CRUDE if crude else EstimateKind.SAMPLE
    reason = grows_with.reason if found.upper is None else None
    return replace(found, kind=sort, reason=reason, given_up=given_up)


def independent_changes(
    name: str,
    baseline: Samples,
    candidate: Samples,
    kind: Kind = "difference",
    *,
    statistics: Sequence[str] = STATISTICS,
    unit: str = "ms",
) -> dict[str, Estimate]:
    """``{name}.p50`` … between two independent arms, from their samples."""
    before = distribution(name, baseline, unit=unit)
    after = distribution(name, candidate, unit=unit)
    names = [f"{name}.{statistic}" for statistic in statistics]
    return {full: change(before[full], after[full], kind) for full in names}


def paired_throughput_reduction(baseline: Window, candidate: Window) -> Estimate:
    """1 - candidate / baseline of the output tokens per second, where both were sent the same requests.

    Equal slices of the two windows are paired: the variation of what was offered, which is the same in
    both, drops out.
    """
    before, after = (output_tokens_per_slice(window, PAIRED_SLICES) for window in (baseline, candidate))
    if before is None or after is None or before.sum() <= 0:
        why = "the baseline's" if before is None or before.sum() <= 0 else "the candidate's"
        return Estimate.undefined(
            unit="ratio", method=f"no token counts of {why} window", reason=Reason.NOT_MEASURABLE
        )
    interval = paired_mean_interval((before,), (after,), relative=True)
    means = float(before.mean()), float(after.mean())
    return _estimate(*means, interval, "reduction", PAIRED_SLICES, "paired slices of time", "ratio")


def in_both(one: Records, other: Records) -> tuple[Records, Records]:
    """The records of the requests, by index, that succeeded in both."""
    rows, others = _rows_of_both(one, other, one.ok, other.ok)
    return _only(one, rows), _only(other, others)


def pairs(family: str, baseline: Sequence[Records], candidate: Sequence[Records]) -> Pairs:
    """The paired latencies of the same requests, by their index in the sequence; the i-th runs of both arms
    together.

    ``family``: one of :data:`~pytest_llmbench.metrics.latency.FAMILIES`. ValueError for unequal numbers of
    runs.
    """
    if len(baseline) != len(candidate):
        raise ValueError(f"{len(baseline)} runs do not pair with {len(candidate)}")
    before, after = [], []
    for one, two in zip(baseline, candidate, strict=True):
        first, second = per_request(family, one), per_request(family, two)
        rows, others = _rows_of_both(one, two, ~np.isnan(first), ~np.isnan(second))
        order = np.argsort(rows)
        before.append(first[rows[order]])
        after.append(second[others[order]])
    return Pairs(tuple(before), tuple(after))


def paired_changes(
    name: str,
    arms: Pairs,
    kind: Kind = "difference",
    *,
    statistics: Sequence[str] = STATISTICS,
) -> dict[str, Estimate]:
    """``{name}.p50`` … between paired arms: differences of percentiles, not percentiles of differences."""
    return {f"{name}.{statistic}": _paired(arms, statistic, kind) for statistic in statistics}


def _paired(arms: Pairs, statistic: str, kind: Kind) -> Estimate:
    before, after = as_runs(arms.baseline), as_runs(arms.candidate)
    n, unit, relative = sum(map(len, before)), _unit(kind, "ms"), kind != "difference"
    if n == 0:
        return Estimate.undefined(unit=unit, method="no requests succeeded in both arms")
    q = PERCENTILES.get(statistic)
    every = pooled(before), pooled(after)
    one, two = (float(np.mean(arm)) if q is None else percentile(arm, q) for arm in every)
    reason = _undefined(one, two, kind)
    if reason is not None:
        return Estimate.undefined(unit=unit, method=reason, n=n, reason=Reason.NOT_COMPUTABLE)
    no_ratio = relative and min(float(arm.min()) for arm in every) <= 0
    if no_ratio:
        interval = OPEN
    elif q is None:
        interval = paired_mean_interval(before, after, relative=relative)
    else:
        interval = paired_percentile_interval(before, after, q, relative=relative)
    if q is None:
        of = spread([b - a for a, b in zip(before, after, strict=True)])
        worth, independent = (float(n) if of is None else of.worth), FEWEST_EFFECTIVE
    else:
        worth = min(percentile_worth(arm, q).samples for arm in (before, after))
        independent = samples_required(q)
    required = math.ceil(independent * n / worth)
    if required <= n:  # as many as the effective size asks for, and it is open all the same
        required = math.ceil(_HALF_AS_MANY_AGAIN * n)
    method = f"paired requests, effective n={math.floor(worth)}"
    return _estimate(one, two, interval, kind, n, method, unit, None if no_ratio else required)


def _unit(kind: Kind, unit: str) -> str:
    return unit if kind == "difference" else "ratio"


def _undefined(baseline: float | None, candidate: float | None, kind: Kind) -> str | None:
    if baseline is None or candidate is None:
        return f"the {'baseline' if baseline is None else 'candidate'} is undefined"
    if kind != "difference" and baseline <= 0:
        return "the baseline is zero"
    return None


def _estimate(
    baseline: float,
    candidate: float,
    interval: Interval,
    kind: Kind,
    n: int,
    method: str,
    unit: str,
    required: int | None = None,
) -> Estimate:
    """The estimate of a change. ``interval``: that of the difference, or of the relative change, from which
    the other kinds are derived."""
    point = candidate - baseline if kind == "difference" else candidate / baseline - 1
    if kind == "reduction":
        upper, lower = (None if end is None else -end for end in interval)
        point, interval = -point, Interval(lower, upper)
    elif kind == "ratio":
        point, interval = point + 1, Interval(*(None if end is None else end + 1 for end in interval))
    return estimate(point, interval, n, method, unit, required=required)


FEWEST_ALIKE = 20
"""Fewest replies from which two machines are told apart."""
LEAST_UNEXPLAINED = 0.03
"""The difference of two variants that one engine shows, from idle to full. Beyond it a difference is chance
as far as its own 95 % interval reaches."""
VOID_UNEXPLAINED = 0.25
"""Difference from which two variants are certainly no pair, so that their difference is no figure."""


@dataclass(frozen=True, slots=True)
class Unexplained:
    """A difference between two variants that what is switched between them does not explain."""

    what: Note
    """What differs, of what and from what."""
    size: float
    """The relative difference, as the factor by which one is larger less 1; 0 for none."""
    half_width: float
    """That of the 95 % interval of ``size``."""

    @property
    def limit(self) -> float:
        """The largest size that is chance."""
        return max(self.half_width, LEAST_UNEXPLAINED)

    @property
    def ok(self) -> bool:
        return self.size <= self.limit

    @property
    def voids(self) -> bool:
        return not self.ok and self.size > VOID_UNEXPLAINED


def unlike_machines(name: str, baseline: Records, candidate: Records) -> Unexplained | None:
    """How far the decoding steps of two variants differ. ``name``: of the candidate."""
    return _apart("unlike_steps", name, step_time_ratio(baseline, candidate))


def unlike_prefill(name: str, baseline: Records, candidate: Records) -> Unexplained | None:
    """How far TTFT differs where the cache did not help."""
    return _apart("unlike_prefill", name, missed_ttft_ratio(baseline, candidate))


def _apart(case: str, name: str, ratio: Ratio | None) -> Unexplained | None:
    if ratio is None:
        return None
    what = Note.of(case, variant=name, times=ratio.point)
    return Unexplained(what, _factor(ratio.point), ratio.half_width)


def faster_with_more(name: str, baseline: Records, candidate: Records) -> Unexplained | None:
    """How much faster the candidate is, though it does what the baseline does, and more. 0 where chance
    explains it."""
    change = e2e_of_equal_replies(baseline, candidate)
    if change is None or change.point is None or change.upper is None:
        return None
    what = Note.of("faster_with_more", variant=name, change=Amount(change.point, "ratio"))
    size, surely = (1 / (1 + end) - 1 for end in (change.point, change.upper))
    return Unexplained(what, max(size, 0.0) if surely > 0 else 0.0, max(size - surely, 0.0))


def gained_throughput(metrics: Mapping[str, Estimate]) -> list[Unexplained]:
    """The throughput that filters add, by the reductions among the metrics: they can only take some."""
    found = []
    for name, reduction in metrics.items():
        if not name.startswith("throughput_reduction[") or reduction.point is None:
            continue
        upper = 0.0 if reduction.upper is None else reduction.upper
        size, half = (-reduction.point, upper - reduction.point) if upper < 0 else (0.0, 0.0)
        what = Note.of("gained_throughput", metric=name, reduction=Amount(reduction.point, "ratio"))
        found.append(Unexplained(what, size, half))
    return found


def unlike_configurations(records: Mapping[str, Records]) -> list[Unexplained | None]:
    """What tells guardrail configurations apart that no filter explains, at one load level: decoding steps
    other with the input filter than without, and replies that come sooner where more is filtered.

    ``records``: by configuration. Filters of the output hold chunks back, so its steps are not seen. Only
    where it was not run with the input filter alone are the usual gaps of all filters looked at: they are not
    shorter than without any.
    """
    more = {
        "input_filter": ("baseline",),
        "output_filter": ("baseline",),
        "full": ("baseline", "input_filter", "output_filter"),
    }
    found = [
        faster_with_more(f"{name} after {less}", records[less], records[name])
        for name, lesser in more.items()
        for less in lesser
        if name in records and less in records
    ]
    if "baseline" in records and "input_filter" in records:
        found.append(unlike_machines("input_filter", records["baseline"], records["input_filter"]))
    elif "baseline" in records and "full" in records:
        gaps = step_time_ratio(records["baseline"], records["full"], among=0.5)
        if gaps is not None:
            what = Note.of("unlike_gaps", times=gaps.point)
            size = _factor(gaps.point) if gaps.point < 1 else 0.0
            found.append(Unexplained(what, size, gaps.half_width))
    return found


def _factor(ratio: float) -> float:
    return max(ratio, 1 / ratio) - 1


class Ratio(NamedTuple):
    """A ratio of two arms, with the half-width of its 95 % interval, relative."""

    point: float
    half_width: float


_CHUNKS, _FASTEST = 20, 0.1
_BLOCKS, _STUDENT = 10, 2.262
"""Blocks of a run, in time, that are left out in turn; and the 97.5 % quantile of Student's t for them."""
_Steps = tuple[IntColumn, FloatArray]


def step_time_ratio(baseline: Records, candidate: Records, *, among: float = _FASTEST) -> Ratio | None:
    """Time of a decoding step of the candidate / that of the baseline, at equal numbers of replies in
    progress.

    A cache or an input filter changes what is computed before the first token and who is in the batch, not
    what a step costs. The step of a reply is its gap at P10, which no prompt of another prolongs; that of a
    number in progress the P10 of its replies (``among``: that percentile, of both). The ratio is the median
    over these numbers, by their replies; its interval a jackknife over blocks. None: fewer than
    :data:`FEWEST_ALIKE` replies can be compared, or chunks come in bursts.
    """
    before, after = _steps(baseline, among), _steps(candidate, among)
    whole, compared = _ratio(before, after, among)
    if compared < FEWEST_ALIKE:
        return None
    parts = [
        _ratio(_without_block(before, block), _without_block(after, block), among) for block in range(_BLOCKS)
    ]
    logs = np.log([ratio for ratio, count in parts if count])
    spread_of = math.sqrt((len(logs) - 1) * float(np.var(logs))) if len(logs) == _BLOCKS else math.inf
    return Ratio(whole, math.expm1(min(_STUDENT * spread_of, 1.0)))


def _ratio(before: _Steps, after: _Steps, among: float) -> tuple[float, int]:
    """The median over the numbers in progress of the ratios of their steps, and how many replies it is of."""
    (one, slow, many), (two, fast, others) = (_by_number(*each, among) for each in (before, after))
    _, first, second = np.intersect1d(one, two, return_indices=True)
    weights = np.minimum(many[first], others[second])
    if not len(weights):
        return 1.0, 0
    ratios = fast[second] / slow[first]
    order = np.argsort(ratios)
    reached = np.cumsum(weights[order])
    return float(ratios[order[np.searchsorted(reached, reached[-1] / 2)]]), int(reached[-1])


def _by_number(beside: IntColumn, steps: FloatArray, among: float) -> tuple[IntColumn, FloatArray, IntColumn]:
    """The numbers in progress that occur, the percentile of the steps at each, and how many there are."""
    order = np.lexsort((steps, beside))
    numbers, first, count = np.unique(beside[order], return_index=True, return_counts=True)
    at = first + among * (count - 1)
    low = at.astype(np.int64)
    high, ordered = np.minimum(low + 1, first + count - 1), steps[order]
    return numbers, ordered[low] + (at - low) * (ordered[high] - ordered[low]), count


def _without_block(steps: _Steps, block: int) -> _Steps:
    size = len(steps[0])
    kept = np.arange(size) * _BLOCKS // max(size, 1) != block
    return steps[0][kept], steps[1][kept]


def _steps(records: Records, among: float) -> _Steps:
    """Number of replies in progress in the middle of each reply of 20 chunks or more, and its gap at a
    percentile."""
    streamed = records.ok & (records.first_content_ns != MISSING)
    starts, ends = (
        np.sort(column[streamed]) for column in (records.first_content_ns, records.last_content_ns)
    )
    chunks = np.diff(records.chunk_offsets)
    taken = np.flatnonzero(streamed & (chunks >= _CHUNKS))
    beside, steps = list[int](), list[float]()
    for first, count in zip(records.chunk_offsets[taken].tolist(), chunks[taken].tolist(), strict=True):
        at_ns = records.chunk_ns[first : first + count]
        fastest, usual, step = np.quantile(np.diff(at_ns), (_FASTEST, 0.5, among))
        if fastest <= 0 or 2 * fastest < usual:  # chunks come in bursts, so their gaps are no steps
            continue
        middle_ns = (at_ns[0] + at_ns[-1]) // 2
        beside.append(int(np.searchsorted(starts, middle_ns, "right") - np.searchsorted(ends, middle_ns)))
        steps.append(float(step))
    return np.array(beside, dtype=np.int64), np.array(steps)


def missed_ttft_ratio(without: Records, with_cache: Records) -> Ratio | None:
    """TTFT with a prefix cache / without, at the median of the requests that took next to nothing from it and
    that in both runs no other prompt was ahead of: what a cache does not change. The interval is that of the
    median, by ranks.

    None: there are fewer than :data:`FEWEST_ALIKE`.
    """
    first, second = _rows_of_both(without, with_cache, without.ok, with_cache.ok)
    one, two = (records.first_content_ns[rows] for records, rows in ((without, first), (with_cache, second)))
    missed = np.maximum(with_cache.cached_tokens[second], 0) * _UNHELPED < with_cache.input_tokens[second]
    missed &= (one != MISSING) & (two != MISSING)
    missed &= _alone(without, first) & _alone(with_cache, second)
    before, after = one - without.submitted_ns[first], two - with_cache.submitted_ns[second]
    missed &= (before > 0) & (after > 0)
    ratios = np.sort(after[missed] / before[missed])
    count = len(ratios)
    if count < FEWEST_ALIKE:
        return None
    point, reach = float(np.median(ratios)), 0.98 * math.sqrt(count)  # half of the normal's 1.96
    low, high = ratios[int(count / 2 - reach)], ratios[min(math.ceil(count / 2 + reach), count - 1)]
    return Ratio(point, float(max(point / low, high / point)) - 1)


def _rows_of_both(
    one: Records, other: Records, held: BoolColumn, other_held: BoolColumn
) -> tuple[IntColumn, IntColumn]:
    """The rows, in each, of the requests that are held in both, by their index."""
    first, second = np.flatnonzero(held), np.flatnonzero(other_held)
    _, rows, others = np.intersect1d(one.index[first], other.index[second], return_indices=True)
    return first[rows], second[others]


_UNHELPED = 10
"""A request that took less than this part of its prompt from the cache was not helped by it."""


def _alone(records: Records, rows: IntColumn) -> BoolColumn:
    """Whether no other request waited for its first token when that of each row was sent."""
    sent = records.submitted_ns != MISSING
    first_ns = np.where(records.first_content_ns == MISSING, records.finished_ns, records.first_content_ns)
    at_ns = records.submitted_ns[rows]
    begun = np.searchsorted(np.sort(records.submitted_ns[sent]), at_ns)
    return np.asarray(begun <= np.searchsorted(np.sort(first_ns[sent]), at_ns, "right"))


def e2e_of_equal_replies(baseline: Records, candidate: Records) -> Estimate | None:
    """The change of end-to-end latency at P50, relative, over the requests whose replies have as many tokens
    in both arms. None: there are fewer than :data:`FEWEST_ALIKE`."""
    first, second = _rows_of_both(baseline, candidate, baseline.ok, candidate.ok)
    tokens = baseline.output_tokens[first]
    alike = (tokens == candidate.output_tokens[second]) & (tokens > 0)
    if alike.sum() < FEWEST_ALIKE:
        return None
    arms = pairs("e2e", [_only(baseline, first[alike])], [_only(candidate, second[alike])])
    return paired_changes("e2e", arms, "relative_change", statistics=("p50",))["e2e.p50"]


def _only(records: Records, rows: IntColumn) -> Records:
    mask = np.zeros(len(records), dtype=bool)
    mask[rows] = True
    return records.select(mask)
