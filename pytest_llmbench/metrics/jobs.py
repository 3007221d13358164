"""The metrics of a finite job: exact in each run, with the interval of what the next run of it would give.

Latencies, durations and rates spread as a share of themselves. The share
of good requests does not: how many keep their limits may change from all to none with a little less speed.
Its interval is that of their latencies: of one run the share if all were longer or shorter by such a factor.

A job is measured exactly: its P99 is the P99 of these requests and has no sampling error. What varies is the
run, so the run is the unit of replication, and a figure spreads as a share of itself: its logarithm is taken
as normal (Student 1908, Biometrika 6). The point is the geometric mean of the runs' figures, and the interval
point · exp(±h):

- three runs or more: h = t(K - 1) · max(s, floor) / √K, s the standard deviation of the K logarithms. The
  floor of 1.2 % holds below five runs, since so few may come out alike by chance.
- fewer, with a spread saved of n earlier runs or sessions: h = t(n - 1) · max(s, 3 %) / √K.
- fewer, with nothing saved: h = ln(factor). No single run shows the noise between runs (a common factor
  cancels in its halves, batches and waves), so a spread is assumed: the factor is chosen for the kind of the
  figure.

What came in none of the runs the interval does not know: five runs miss what happens in 45 % of the runs once
in twenty times. How often these rules pass a limit falsely: ``benchmarks/bench_jobs.py``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.metrics.definitions import definition
from pytest_llmbench.metrics.throughput import Limits
from pytest_llmbench.model.draft import FEWEST_RUNS
from pytest_llmbench.model.estimate import LEVEL, ByRun, Estimate, EstimateKind, SavedSpread
from pytest_llmbench.model.numbers import percentage, trimmed
from pytest_llmbench.model.records import Records
from pytest_llmbench.stats.latencies import Ends
from pytest_llmbench.stats.look_samples import scores
from pytest_llmbench.stats.runs import FloatArray
from pytest_llmbench.stats.spectral import student_quantile

_SPREADING = ("ms", "s", "tok/s", "req/s", "J")
"""Units of figures that spread as a share of themselves."""
_STEADY_FIGURE, _TAIL, _FAR_TAIL = 1.5, 1.75, 2.5
"""Factor by which a figure of one run may be off where nothing is known of the system's noise: throughput, a
duration, a mean, P50; a tail; the far tail of gaps between tokens, which one pause of the engine decides. A
limit 2, 2 and 3 times away is decided by 99 of 100 runs that are up to 5 % off (benchmarks/bench_jobs.py)."""
_OF_QUEUES, _TAIL_OF_QUEUES = 2.0, 3.0
"""The same of latencies in an open loop: of means and P50, and of tails."""
_CENTRAL = ("mean", "p50", "min")
_FAR = ("p99_9", "max", "std")
_SCORES = (1e-9, 1e9)
"""Bounds of the scores of requests; a failed one has the largest."""
_GOOD_RATES = {"goodput": "request_throughput", "output_token_goodput": "output_token_throughput"}
_GAPS = ("itl", "tpot", "output_itl", "jitter", "longest_pause")


def assumed_factor(metric: str, *, open_loop: bool = False) -> float | None:
    """The factor for a full metric name; None for figures that do not spread as a share of themselves.

    ``open_loop``: requests arrive by a schedule. Waits of a queue amplify the noise of the speed (3 % become
    22 to 33 % of TTFT at 90 % load), so latencies have a larger factor.
    """
    try:
        row = definition(metric)
    except SuiteError:  # a metric that a hook named
        return None
    if row.unit not in _SPREADING and not (row.of_machine and row.unit == "tokens"):
        return None
    statistic = metric.rpartition(".")[2] if row.is_family else "mean"
    if statistic in _CENTRAL:
        factor = _STEADY_FIGURE
    elif statistic in _FAR or (statistic == "p99" and row.name in _GAPS):
        factor = _FAR_TAIL
    else:
        factor = _TAIL
    if open_loop and row.is_family:
        return _OF_QUEUES if factor == _STEADY_FIGURE else _TAIL_OF_QUEUES
    return factor


def job_metrics(
    metrics: Mapping[str, Estimate],
    by_run: ByRun,
    spreads: Mapping[str, SavedSpread],
    *,
    open_loop: bool = False,
) -> dict[str, Estimate]:
    """The metrics of all runs with the intervals of a job. ``by_run``: empty for a single run.

    A figure that is undefined, zero or negative in a run, one that does not spread as a share of itself, and
    one that requests given up on leave without an upper end, stays as it is.
    """
    found = dict(metrics)
    for name, estimate in metrics.items():
        factor = assumed_factor(name, open_loop=open_loop)
        values = [value for value in by_run.get(name, (estimate.point,)) if value is not None and value > 0]
        if factor is None or not values or len(values) < len(by_run.get(name, (0,))):
            continue
        if estimate.given_up and estimate.upper is None:
            continue
        own = job_interval(values, factor, saved=spreads.get(name))
        beyond = estimate.upper if estimate.given_up else None
        found[name] = replace(
            estimate,
            point=own.point,
            lower=own.lower,
            upper=own.upper if beyond is None or own.upper is None else max(own.upper, beyond),
            method=_method(own.kind, len(values), factor, spreads.get(name)),
            n_required=None,
            kind=own.kind,
            runs=len(values),
        )
    return found


def _method(kind: EstimateKind, runs: int, factor: float, saved: SavedSpread | None) -> str:
    of = "exact in its run" if runs == 1 else f"geometric mean of {runs} runs"
    if kind is EstimateKind.RUNS:
        return f"{of}, t with {runs - 1} degrees of freedom on logarithms"
    if kind is EstimateKind.SAVED_SPREAD and saved is not None:
        unit = "sessions" if saved.of_sessions else "runs"
        return f"{of}, spread of {percentage(saved.deviation)} between {saved.count} earlier {unit}"
    return f"{of}, assumed to spread by a factor of {trimmed(factor)}"


def job_share(share: Estimate, every: Sequence[FloatArray]) -> Estimate:
    """A share of scores that are at most 1 with the interval of a job. ``every``: the scores of each run.

    A score is the largest share of its limits that a request, or a session, used. The interval reaches from
    the highest quantile of the scores whose whole interval is at most 1 to the highest that may be: all
    requests just within a limit are many that a little less speed would put beyond it.
    """
    fewest = min(map(len, every), default=0)
    if share.point is None or not fewest:
        return share
    ranks = [np.ceil(np.arange(1, fewest + 1) * (len(own) / fewest)).astype(int) - 1 for own in every]
    by_rank = [np.clip(np.sort(own)[rank], *_SCORES) for own, rank in zip(every, ranks, strict=True)]
    logs = np.log(np.array(by_rank))
    half, mean = half_widths(logs, _TAIL), np.mean(logs, axis=0)
    surely, maybe = np.maximum.accumulate(mean + half) <= 0.0, mean - half <= 0.0
    point = float(np.mean([np.mean(own <= 1.0) for own in every]))
    lower = min(point, float(np.mean(surely)))
    upper = max(point, float(np.max(np.flatnonzero(maybe), initial=-1) + 1) / fewest)
    kind = EstimateKind.RUNS if len(every) >= FEWEST_RUNS else EstimateKind.ASSUMED_SPREAD
    method = f"{_method(kind, len(every), _TAIL, None)}, of latencies"
    told = replace(share, point=point, lower=lower, upper=upper, method=method, n_required=None)
    return replace(told, kind=kind, runs=len(every))


def job_goodput(
    metrics: Mapping[str, Estimate], runs: Sequence[Records], limits_ms: Limits
) -> dict[str, Estimate]:
    """``metrics`` with the interval of a job for ``goodput_share`` (:func:`job_share`), and rates of good
    requests that reach as far as that share."""
    every = [scores(limits_ms, Ends.of_records(run.select(run.judged))) for run in runs]
    share = job_share(metrics["goodput_share"], every)
    found = {**metrics, "goodput_share": share}
    point, lower, upper = share.point, share.lower, share.upper
    if point is None or lower is None or upper is None or not share.runs:
        return found
    for name, of in _GOOD_RATES.items():
        rate, most = metrics[name], metrics[of].upper
        if rate.lower is not None and rate.upper is not None and rate.point is not None and most is not None:
            least = rate.point * lower / point if point > 0 else rate.lower
            found[name] = replace(rate, lower=min(rate.lower, least), upper=max(rate.upper, most * upper))
    return found


_FLOOR, _FREE_FROM = 0.012, 5
"""Least spread of so few runs that they may be alike by chance, and from how many runs on there is none."""
_LEAST_SAVED = 0.03
"""Least spread that is taken from earlier runs: the system may have become noisier since."""
_MOST_LOG = 700.0


class JobInterval(NamedTuple):
    point: float
    lower: float
    upper: float
    kind: EstimateKind
    half: float
    """h: the half-width on logarithms. A limit farther away than that is decided."""


def job_interval(runs: Sequence[float], factor: float, *, saved: SavedSpread | None = None) -> JobInterval:
    """The interval of a figure from its values in all runs, which must be positive. ``factor``: greater than
    1, the spread that is assumed where neither the runs nor ``saved`` tell it."""
    logs = np.log(np.asarray(runs, dtype=np.float64))
    count, mean = len(logs), float(np.mean(logs))
    if count < FEWEST_RUNS and saved is not None and saved.count > 1:
        kind, spread = EstimateKind.SAVED_SPREAD, max(saved.deviation, _LEAST_SAVED)
        half = student_quantile(saved.count - 1, LEVEL) * spread / math.sqrt(count)
    else:
        kind = EstimateKind.RUNS if count >= FEWEST_RUNS else EstimateKind.ASSUMED_SPREAD
        half = float(half_widths(logs, factor))
    point = float(runs[0]) if count == 1 else math.exp(mean)
    lower, upper = (math.exp(min(mean + leg, _MOST_LOG)) for leg in (-half, half))
    return JobInterval(point, min(lower, point), max(upper, point), kind, half)


def half_widths(logs: FloatArray, factor: float) -> FloatArray:
    """h of figures by their own runs, or by ``factor`` where there are fewer than three. ``logs``: one row of
    logarithms for each run."""
    count = len(logs)
    if count < FEWEST_RUNS:
        return np.full(logs.shape[1:], math.log(factor))
    spread = np.maximum(np.std(logs, axis=0, ddof=1), _FLOOR if count < _FREE_FROM else 0.0)
    return np.asarray(student_quantile(count - 1, LEVEL) * spread / math.sqrt(count))
