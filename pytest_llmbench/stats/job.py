"""The figure of a finite job, and where it would lie if the job were run again.

A job is measured exactly: its P99 is the P99 of these requests and has no sampling error. What varies is the
run, so the run is the unit of replication, and a figure spreads as a share of itself: its logarithm is taken
as normal (Student 1908, Biometrika 6). The point is the geometric mean of the runs' figures, and the interval
point · exp(±h):

- three runs or more: h = t(K - 1) · max(s, floor) / √K, s the standard deviation of the K logarithms. The
  floor of 1.2 % holds below five runs, since so few may come out alike by chance.
- fewer, with a spread saved of n earlier runs or sessions: h = t(n - 1) · max(s, 3 %) / √K.
- fewer, with nothing saved: h = ln(factor). No single run shows the noise between runs (a common factor
  cancels in its halves, batches and waves), so a spread is assumed: the factor is chosen for the kind of the
  figure (:mod:`~pytest_llmbench.metrics.jobs`).

What came in none of the runs the interval does not know: five runs miss what happens in 45 % of the runs once
in twenty times. How often these rules pass a limit falsely: ``benchmarks/bench_jobs.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from pytest_llmbench.model.draft import FEWEST_RUNS
from pytest_llmbench.model.estimate import EstimateKind, SavedSpread
from pytest_llmbench.stats.runs import FloatArray
from pytest_llmbench.stats.spectral import student_quantile

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


def job_interval(
    runs: Sequence[float], factor: float, *, saved: SavedSpread | None = None, level: float = 0.95
) -> JobInterval:
    """The interval of a figure from its values in all runs, which must be positive. ``factor``: greater than
    1, the spread that is assumed where neither the runs nor ``saved`` tell it."""
    logs = np.log(np.asarray(runs, dtype=np.float64))
    count, mean = len(logs), float(np.mean(logs))
    if count < FEWEST_RUNS and saved is not None and saved.count > 1:
        kind, spread = EstimateKind.SAVED_SPREAD, max(saved.deviation, _LEAST_SAVED)
        half = student_quantile(saved.count - 1, level) * spread / math.sqrt(count)
    else:
        kind = EstimateKind.RUNS if count >= FEWEST_RUNS else EstimateKind.ASSUMED_SPREAD
        half = float(half_widths(logs, factor, level=level))
    point = float(runs[0]) if count == 1 else math.exp(mean)
    lower, upper = (math.exp(min(mean + leg, _MOST_LOG)) for leg in (-half, half))
    return JobInterval(point, min(lower, point), max(upper, point), kind, half)


def half_widths(logs: FloatArray, factor: float, *, level: float = 0.95) -> FloatArray:
    """h of figures by their own runs, or by ``factor`` where there are fewer than three. ``logs``: one row of
    logarithms for each run."""
    count = len(logs)
    if count < FEWEST_RUNS:
        return np.full(logs.shape[1:], math.log(factor))
    spread = np.maximum(np.std(logs, axis=0, ddof=1), _FLOOR if count < _FREE_FROM else 0.0)
    return np.asarray(student_quantile(count - 1, level) * spread / math.sqrt(count))
