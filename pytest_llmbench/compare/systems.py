"""Several systems side by side (section 6 of the draft).

The unit of replication is the run: a figure of a system is the geometric mean over its runs, with Student's
interval on logarithms; a difference is the paired log ratio of ``regression.py``, system against the first.
Mann-Whitney on all requests stands beside it as supporting evidence: it takes requests for independent, so it
decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from pytest_llmbench.compare.comparability import Identity, made_otherwise, mann_whitney
from pytest_llmbench.compare.limits import SHOWN_MARGIN, ByRun, is_shown
from pytest_llmbench.compare.regression import LARGEST_LOG, better_of, compared
from pytest_llmbench.metrics.definitions import metric_unit
from pytest_llmbench.model.estimate import Estimate, Reason
from pytest_llmbench.model.judgement import Comparison
from pytest_llmbench.model.numbers import Cell, Figure, Row, number
from pytest_llmbench.model.result import Plot, Table
from pytest_llmbench.stats.runs import FloatArray
from pytest_llmbench.stats.spectral import student_quantile

LEVEL = 0.95
PER_GPU, PER_COST = "tokens per GPU-second", "tok/s per dollar-hour"
_THROUGHPUT = "output_token_throughput"


@dataclass(frozen=True)
class System:
    """The measurements of one system after its runs."""

    name: str
    by_run: ByRun
    samples: Mapping[str, FloatArray] = field(default_factory=dict)
    """Samples of the requests of all runs by latency family, for the supporting test."""
    accelerators: int | None = None
    dollars_per_hour: float | None = None
    price_date: str | None = None
    made: Identity = field(default_factory=dict)
    """How its metrics were made."""

    def throughput_by(self, divisor: float | None) -> tuple[float, ...] | None:
        """Output tokens per second over ``divisor``, by run; None where either is not known."""
        values = [value for value in self.by_run.get(_THROUGHPUT, ()) if value is not None]
        if divisor is None or divisor <= 0 or len(values) < len(self.by_run.get(_THROUGHPUT, ())):
            return None
        return tuple(value / divisor for value in values)


def against_first(
    systems: Sequence[System], metrics: Sequence[str] = (), margin: float = SHOWN_MARGIN
) -> tuple[Comparison, ...]:
    """Comparisons of every further system with the first, in the metrics asked for, or in those shown for a
    test."""
    first, found = systems[0], []
    for other in systems[1:]:
        names = (first.name, other.name)
        wanted = metrics or [name for name in other.by_run if name in first.by_run and is_shown(name)]
        for name in wanted:
            better = better_of(name)
            if better is not None:
                arms = [_values(name, each.by_run) for each in (first, other)]
                why = made_otherwise(name, first.made, other.made)
                about: Any = {"margin": margin, "names": names, "paired": True, "unlike": why}
                found.append(compared(name, metric_unit(name), better, *arms, **about))
    return tuple(found)


def _values(name: str, by_run: ByRun) -> Sequence[float | None]:
    return by_run.get(name) or (None,) * max((len(values) for values in by_run.values()), default=0)


def of_runs(values: Sequence[float | None], unit: str) -> Estimate:
    """Geometric mean over runs, exp(mean ± t s / √K) of the logarithms; open for a single run."""
    known = [value for value in values if value is not None]
    method = "geometric mean of runs, Student's t on logarithms"
    if not known or len(known) < len(values) or min(known) <= 0:
        return Estimate.undefined(
            unit=unit, method=method, level=LEVEL, n=len(known), reason=Reason.NOT_COMPUTABLE
        )
    logs = np.log(np.asarray(known))
    point = math.exp(float(logs.mean()))
    if len(known) < 2:
        return Estimate(point, None, None, LEVEL, len(known), method, unit)
    half = student_quantile(len(known) - 1, LEVEL) * float(logs.std(ddof=1)) / math.sqrt(len(known))
    upper = None if max(half, logs.mean() + half) > LARGEST_LOG else point * math.exp(half)
    return Estimate(point, point * math.exp(-half), upper, LEVEL, len(known), method, unit)


def is_real(comparison: Comparison) -> bool:
    """Whether the whole interval of the change lies on one side of zero."""
    lower, upper = comparison.change.lower, comparison.change.upper
    return lower is not None and upper is not None and (lower > 0 or upper < 0)


def significance(found: Sequence[Comparison], systems: Sequence[System]) -> list[dict[str, Any]]:
    """The fact ``comparison.tests``: interval of each difference, and what supports it."""
    by_name = {system.name: system for system in systems}
    entries: list[dict[str, Any]] = []
    for each in found:
        entry: dict[str, Any] = {
            "metric": each.metric,
            "systems": [each.baseline_name, each.candidate_name],
            "name": each.change.method,
            "statistic": each.change.point,
            "interval": None if each.change.lower is None else [each.change.lower, each.change.upper],
        }
        p_value = supporting(each, by_name)
        if p_value is not None:
            entry |= {"supporting": "Mann-Whitney on requests", "supporting_p_value": p_value}
        entries.append(entry)
    return entries


def supporting(comparison: Comparison, systems: Mapping[str, System]) -> float | None:
    """p-value of Mann-Whitney on the requests behind the median of a latency; None for other metrics."""
    family, _, statistic = comparison.metric.partition(".")
    if statistic != "p50":
        return None
    pair = [
        systems[name].samples.get(family) for name in (comparison.baseline_name, comparison.candidate_name)
    ]
    if pair[0] is None or pair[1] is None or not len(pair[0]) or not len(pair[1]):
        return None
    return mann_whitney(pair[0], pair[1])[1]


def side_by_side(systems: Sequence[System], found: Sequence[Comparison]) -> Table:
    """Table with a row for each metric: every system with its interval, every further one against the
    first.

    The verdict is that of the comparison, on the whole interval and the margin: there is no second one.
    """
    by_name = {system.name: system for system in systems}
    first, others = systems[0], systems[1:]
    columns = ["Metric", *(system.name for system in systems)]
    for other in others:
        columns += [f"{other.name} against {first.name}", "Verdict", "Mann-Whitney p (requests)"]
    rows: list[tuple[Cell, ...]] = []
    for metric in dict.fromkeys(each.metric for each in found):
        row: list[Cell] = [metric]
        for system in systems:
            own = of_runs(_values(metric, system.by_run), metric_unit(metric))
            row.append(Figure(metric, own, "both"))
        for other in others:
            pair = next(e for e in found if (e.metric, e.candidate_name) == (metric, other.name))
            p_value = supporting(pair, by_name)
            row += [
                Figure(metric, pair.change, "change") if pair.change.defined else f"not known: {pair.reason}",
                pair.verdict.replace("_", " "),
                "" if p_value is None else number(p_value),
            ]
        rows.append(tuple(row))
    rows += _normalised(systems)
    title = "Systems Side by Side"
    return Table("systems_comparison", title, tuple(columns), tuple(rows))


def _normalised(systems: Sequence[System]) -> list[tuple[Cell, ...]]:
    """Table rows per accelerator and per dollar-hour, where at least one system states how many or how
    much."""
    rows: list[Row] = []
    for title, divisors in (
        (PER_GPU, [system.accelerators for system in systems]),
        (PER_COST, [system.dollars_per_hour for system in systems]),
    ):
        values = [s.throughput_by(divisor) for s, divisor in zip(systems, divisors, strict=True)]
        if any(value is not None for value in values):
            cells = [
                "not declared" if own is None else Figure(title, of_runs(own, "tok/s"), "both")
                for own in values
            ]
            rows.append((title, *cells, *("", "", "") * (len(systems) - 1)))
    return rows


_DISTRIBUTIONS = ("ttft_cdf", "itl_cdf")


def overlaid(plots: Mapping[str, Sequence[Plot]]) -> tuple[Plot, ...]:
    """The plots of the first arm, with the distributions of the others in them; ``plots`` by arm.

    A distribution of one series becomes a series for each arm. One of several, the levels of a test, stays
    as it is, and a plot of its last level follows: ``itl_cdf_by_system``. An arm is left out whose series is
    missing or empty, or counts something else (chunks for tokens).
    """
    found: list[Plot] = []
    for plot in next(iter(plots.values())):
        together = _together(plot, plots) if plot.id in _DISTRIBUTIONS else None
        if together is None or len(plot.series) > 1:
            found.append(plot)
        if together is not None:
            found.append(together)
    return tuple(found)


def _together(plot: Plot, plots: Mapping[str, Sequence[Plot]]) -> Plot | None:
    """The last distribution of ``plot`` with one series for each arm; None where no other arm has such a
    series."""
    last = list(plot.series)[-1]
    series = {
        arm: own.series[last]
        for arm, every in plots.items()
        for own in every
        if own.id == plot.id and own.x_label == plot.x_label and last in own.series and own.series[last][0]
    }
    if len(series) < 2 or next(iter(plots)) not in series:
        return None
    several = len(plot.series) > 1
    what = plot.x_label.partition(" (")[0]
    return replace(
        plot,
        id=f"{plot.id}_by_system" if several else plot.id,
        title=f"Distribution of {what} by system" + (f", at level {last}" if several else ""),
        series=series,
    )
