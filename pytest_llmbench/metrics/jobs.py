"""The metrics of a finite job: exact in each run, with the interval of what the next run of it would give.

Latencies, durations and rates spread as a share of themselves (:mod:`~pytest_llmbench.stats.job`). Shares of
requests do not: how many requests keep a limit may change from all to none with a little less speed. Their
interval is that of the requests' latencies: the share if all were twice as long, and half as long.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.metrics.definitions import definition
from pytest_llmbench.metrics.goodput import Limits, good
from pytest_llmbench.model.estimate import ByRun, Estimate, IntervalKind, SavedSpread
from pytest_llmbench.model.records import Records
from pytest_llmbench.stats.job import FEWEST_RUNS, job_interval
from pytest_llmbench.stats.proportion import exact_share_interval
from pytest_llmbench.stats.spectral import student_quantile

_SPREADING = ("ms", "s", "tok/s", "req/s")
"""Units of figures that spread as a share of themselves."""
_STEADY_FIGURE, _TAIL, _FAR_TAIL = 1.5, 2.0, 3.0
"""Factor by which a figure of one run may be off where nothing is known of the system's noise: throughput, a
duration, a mean, P50; a tail; the far tail of gaps between tokens, which one pause of the engine decides. In
simulated jobs of nine servers, with 3 % of noise between runs, a limit at the truth is passed by none, 0.4 %
and 0.2 % of runs."""
_CENTRAL = ("mean", "p50", "min")
_FAR = ("p99_9", "max", "std")
_GAPS = ("itl", "tpot", "output_itl", "jitter", "longest_pause")


def assumed_factor(metric: str, *, open_loop: bool = False) -> float | None:
    """The factor for a full metric name; None for figures that do not spread as a share of themselves.

    ``open_loop``: requests arrive by a schedule. Waits of a queue amplify the noise of the speed (3 % become
    22 to 33 % of TTFT at 90 % load), so the factor of latencies is the next larger one.
    """
    try:
        row = definition(metric)
    except SuiteError:  # a metric that a hook named
        return None
    if row.unit not in _SPREADING:
        return None
    statistic = metric.rpartition(".")[2] if row.is_family else "mean"
    if statistic in _CENTRAL:
        factor = _STEADY_FIGURE
    elif statistic in _FAR or (statistic == "p99" and row.name in _GAPS):
        return _FAR_TAIL
    else:
        factor = _TAIL
    if open_loop and row.is_family:
        return _TAIL if factor == _STEADY_FIGURE else _FAR_TAIL
    return factor


def job_metrics(
    metrics: Mapping[str, Estimate],
    by_run: ByRun,
    spreads: Mapping[str, SavedSpread],
    *,
    open_loop: bool = False,
) -> dict[str, Estimate]:
    """The metrics of all runs with the intervals of a job. ``by_run``: empty for a single run.

    A figure that is undefined, zero or negative in a run, and one that does not spread as a share of itself,
    stays as it is.
    """
    found = dict(metrics)
    for name, estimate in metrics.items():
        factor = assumed_factor(name, open_loop=open_loop)
        values = [value for value in by_run.get(name, (estimate.point,)) if value is not None and value > 0]
        if factor is None or not values or len(values) < len(by_run.get(name, (0,))):
            continue
        own = job_interval(values, factor, saved=spreads.get(name), level=estimate.level)
        found[name] = replace(
            estimate,
            point=own.point,
            lower=own.lower,
            upper=own.upper,
            method=_method(own.kind, len(values), factor, spreads.get(name)),
            n_required=None,
            kind=own.kind,
            runs=len(values),
        )
    return found


def _method(kind: IntervalKind, runs: int, factor: float, saved: SavedSpread | None) -> str:
    of = "exact in its run" if runs == 1 else f"geometric mean of {runs} runs"
    if kind is IntervalKind.RUNS:
        return f"{of}, t with {runs - 1} degrees of freedom on logarithms"
    if kind is IntervalKind.SAVED_SPREAD and saved is not None:
        unit = "sessions" if saved.of_sessions else "runs"
        return f"{of}, spread of {saved.deviation:.1%} between {saved.count} earlier {unit}"
    return f"{of}, assumed to spread by a factor of {factor:g}"


def job_goodput(
    metrics: Mapping[str, Estimate], runs: Sequence[Records], limits_ms: Limits
) -> dict[str, Estimate]:
    """``metrics`` with the interval of a job for ``goodput_share``, and rates of good requests no lower than
    that share allows.

    Fewer than three runs: the share if every latency were twice, or half, as long. More: Student's t over the
    shares of the runs, and at least Clopper and Pearson's interval of all their requests.
    """
    share = metrics["goodput_share"]
    judged = [run.select(run.judged) for run in runs]
    counts = [len(run) for run in judged]
    if share.point is None or not all(counts):
        return dict(metrics)
    shares = [float(np.mean(good(run, limits_ms))) for run in judged]
    point = float(np.mean(shares))
    if len(shares) < FEWEST_RUNS:
        kind = IntervalKind.ASSUMED_SPREAD
        shorter, longer = ([(name, limit * by) for name, limit in limits_ms] for by in (1 / _TAIL, _TAIL))
        lower = min(float(np.mean(good(run, shorter))) for run in judged)
        upper = max(float(np.mean(good(run, longer))) for run in judged)
        method = f"exact in its run, latencies assumed to spread by a factor of {_TAIL:g}"
    else:
        kind, count = IntervalKind.RUNS, len(shares)
        half = student_quantile(count - 1, share.level) * float(np.std(shares, ddof=1)) / math.sqrt(count)
        good_ones = round(sum(own * of for own, of in zip(shares, counts, strict=True)))
        exact = exact_share_interval(good_ones, sum(counts), tail=(1 - share.level) / 2)
        lower, upper = max(0.0, min(point - half, exact[0])), min(1.0, max(point + half, exact[1]))
        method = f"mean of {count} runs, t with {count - 1} degrees of freedom"
    found = dict(metrics)
    inside = replace(share, point=point, lower=min(lower, point), upper=max(upper, point))
    found["goodput_share"] = replace(inside, method=method, n_required=None, kind=kind, runs=len(shares))
    for name in ("goodput", "output_token_goodput"):
        rate = metrics[name]
        if rate.point is not None and rate.lower is not None and len(shares) < FEWEST_RUNS and point > 0:
            found[name] = replace(rate, lower=min(rate.lower, rate.point * lower / point))
    return found
