"""Do 95 % intervals hold the truth 95 times in 100? Against series whose truth is known."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import pytest
from queue_models import ar1, mm1_mean, mm1_percentile, mm1_waits

from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.model.estimate import Estimate

Draw = Callable[[np.random.Generator], np.ndarray]


def coverage(draw: Draw, truth: Mapping[str, float], times: int) -> tuple[dict[str, float], dict[str, float]]:
    """For each statistic the share of intervals that hold the truth, and the share that is closed."""
    held: dict[str, list[bool]] = {statistic: [] for statistic in truth}
    closed: dict[str, list[bool]] = {statistic: [] for statistic in truth}
    for time in range(times):
        estimates = distribution("x", draw(np.random.default_rng([2026, time])), seed=time)
        for statistic, value in truth.items():
            estimate = estimates[f"x.{statistic}"]
            held[statistic].append(holds(estimate, value))
            closed[statistic].append(estimate.closed)
    return (
        {statistic: float(np.mean(found)) for statistic, found in held.items()},
        {statistic: float(np.mean(found)) for statistic, found in closed.items()},
    )


def holds(estimate: Estimate, truth: float) -> bool:
    lower = -math.inf if estimate.lower is None else estimate.lower
    upper = math.inf if estimate.upper is None else estimate.upper
    return lower <= truth <= upper


NORMAL = {"mean": 0.0, "p50": 0.0, "p90": 1.2815515655446004, "p99": 2.3263478740408408}
EXPONENTIAL = {"mean": 1.0, "p50": math.log(2), "p90": math.log(10), "p99": math.log(100)}


@pytest.mark.parametrize(
    ("draw", "truth"),
    [
        pytest.param(lambda random: random.exponential(size=1000), EXPONENTIAL, id="independent"),
        pytest.param(lambda random: ar1(0.8, 1000, random), NORMAL, id="ar1"),
    ],
)
def test_coverage_of_a_thousand_samples(draw: Draw, truth: Mapping[str, float]) -> None:
    held, closed = coverage(draw, truth, times=100)
    assert min(held.values()) >= 0.88, held
    # An interval that is always open would hold anything.
    assert min(closed[statistic] for statistic in ("mean", "p50", "p90")) >= 0.95, closed


@pytest.mark.slow
@pytest.mark.parametrize(("load", "n"), [(0.5, 4000), (0.7, 10_000), (0.8, 20_000)])
def test_coverage_of_waiting_times_in_a_queue(load: float, n: int) -> None:
    truth = {"mean": mm1_mean(load)} | {
        statistic: mm1_percentile(load, q) for statistic, q in {"p50": 50, "p95": 95, "p99": 99}.items()
    }
    held, closed = coverage(lambda random: mm1_waits(load, n, random), truth, times=300)
    assert min(held.values()) >= 0.88, held
    assert min(closed[statistic] for statistic in ("mean", "p50", "p95")) >= 0.9, closed


@pytest.mark.slow
def test_independent_resampling_would_not_hold() -> None:
    """What the blocks are for: the same intervals without them miss the truth most of the time."""
    from pytest_llmbench.stats.bootstrap import mean_interval

    held = []
    for time in range(200):
        waits = mm1_waits(0.8, 10_000, np.random.default_rng([7, time]))
        lower, upper = mean_interval(waits, seed=time, block=1, resamples=1000)
        assert lower is not None
        assert upper is not None
        held.append(lower <= mm1_mean(0.8) <= upper)
    assert np.mean(held) < 0.5
