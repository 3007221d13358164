"""Do 95 % intervals hold the truth 95 times in 100? Against series whose truth is known.

The bar: at least 93 %, and not more than twice as wide as the interval of someone who knows the sampling
distribution. The table of docs/reference/statistics.md has all of it; here is a part, with the Monte Carlo
error of its replications allowed for.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pytest
from coverage_table import Cell, Model, autoregressive, engine, independent, measure, queue
from queue_models import mm1_mean, mm1_waits

BAR, WIDEST = 0.93, 2.0


def holds_the_bar(model: Model, n: int, replications: int) -> Mapping[str, Cell]:
    cells = measure(model, n, replications)
    allowed = 2 * math.sqrt(BAR * (1 - BAR) / replications)
    for statistic, cell in cells.items():
        assert cell.coverage >= BAR - allowed, (statistic, cell)
        # Where most are open, the closed ones are those that came out narrow.
        assert math.isnan(cell.width) or cell.width <= WIDEST, (statistic, cell)
    return cells


@pytest.mark.parametrize("model", [independent(), autoregressive()], ids=lambda model: model.name)
def test_coverage_of_a_thousand_samples(model: Model) -> None:
    cells = holds_the_bar(model, 1000, 100)
    # An interval that is always open would hold anything.
    assert max(cells[statistic].open for statistic in ("mean", "p50", "p95")) <= 0.1


@pytest.mark.slow
@pytest.mark.parametrize("n", [1000, 10_000])
@pytest.mark.parametrize("load", [0.5, 0.85])
@pytest.mark.parametrize("kind", ["M/M/1", "M/D/1", "M/G/1"])
def test_coverage_of_times_in_a_queue(kind: str, load: float, n: int) -> None:
    holds_the_bar(queue(kind, load), n, 300)


@pytest.mark.slow
@pytest.mark.parametrize("load", [0.5, 0.85])
def test_coverage_of_the_embedded_engine(load: float) -> None:
    holds_the_bar(engine(load, 200_000), 1000, 200)


@pytest.mark.slow
def test_enough_samples_close_the_intervals() -> None:
    for load in (0.5, 0.85):
        cells = measure(queue("M/M/1", load), 10_000, 100)
        assert cells["p50"].open <= 0.05
        assert cells["mean"].open <= 0.4
    assert measure(queue("M/M/1", 0.5), 10_000, 100)["p99"].open <= 0.1


@pytest.mark.slow
def test_independent_resampling_would_not_hold() -> None:
    """What the long-run variance is for: without it the truth is missed most of the time."""
    from pytest_llmbench.stats.bootstrap import mean_interval

    held = []
    for time in range(200):
        waits = mm1_waits(0.8, 10_000, np.random.default_rng([7, time]))
        lower, upper = mean_interval(waits, seed=time, block=1, resamples=1000)
        assert lower is not None
        assert upper is not None
        held.append(lower <= mm1_mean(0.8) <= upper)
    assert np.mean(held) < 0.5
