"""The metrics of each independent run, beside those of all runs together: what comparisons rest on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pytest_llmbench.model.estimate import Estimate

ByRun = dict[str, tuple[float | None, ...]]


def by_run(runs: Sequence[Mapping[str, Estimate]]) -> ByRun:
    """Metric to its point in each run, in their order; None where a run has none. Empty for fewer than two
    runs: a single one says nothing of the noise between runs."""
    if len(runs) < 2:
        return {}
    names = dict.fromkeys(name for metrics in runs for name in metrics)
    return {name: tuple(_point(metrics.get(name)) for metrics in runs) for name in names}


def _point(estimate: Estimate | None) -> float | None:
    return None if estimate is None else estimate.point
