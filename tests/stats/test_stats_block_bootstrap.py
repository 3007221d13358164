from __future__ import annotations

import numpy as np
import pytest
from queue_models import ar1

from pytest_llmbench.metrics.fairness import jain_interval
from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.stats.percentiles import series_memory
from pytest_llmbench.stats.ratios import ratio_of, share_of
from pytest_llmbench.stats.runs import FloatArray, Interval
from pytest_llmbench.stats.spectral import (
    RESAMPLES,
    bootstrap_is_chosen,
    choose_intervals,
    draw_blocks,
    intervals_chosen,
    mean_interval,
    spread,
    student_quantile,
)


def test_resamples_of_independent_samples_are_near_students() -> None:
    samples = np.random.default_rng(1).normal(size=1000)
    found = draw_blocks((samples,), 1, 0)
    assert found is not None
    variance, freedom, studentised = found
    assert freedom == 99
    assert len(studentised) == RESAMPLES
    assert variance == pytest.approx(0.001, rel=0.4)
    high = float(np.quantile(studentised, 0.975))
    assert high == pytest.approx(student_quantile(99, 0.95), rel=0.1)


def test_the_skewness_of_the_samples_is_in_it() -> None:
    found = draw_blocks((np.random.default_rng(2).lognormal(0, 1.5, 300),), 1, 0)
    assert found is not None
    low, high = np.quantile(found[2], [0.025, 0.975])
    assert -low > 1.3 * high


def test_few_blocks_and_constants_are_not_resampled() -> None:
    assert draw_blocks((np.arange(5.0),), 1, 0) is None
    assert draw_blocks((np.ones(1000),), 1, 0) is None


def test_the_seed_decides_and_nothing_else_does() -> None:
    samples = np.random.default_rng(3).exponential(size=500)
    with intervals_chosen("bootstrap"):
        one, other = distribution("x", samples), distribution("x", samples)
    assert one == other
    first, second = draw_blocks((samples,), 1, 1), draw_blocks((samples,), 1, 2)
    assert first is not None
    assert second is not None
    assert not np.array_equal(first[2], second[2])


def test_it_is_chosen_for_a_while_only() -> None:
    assert not bootstrap_is_chosen()
    with intervals_chosen("bootstrap"):
        assert bootstrap_is_chosen()
    choose_intervals("bootstrap")
    assert bootstrap_is_chosen()
    choose_intervals("analytic")
    assert not bootstrap_is_chosen()


def test_every_figure_has_one() -> None:
    samples = np.exp(0.5 * ar1(0.3, 1000, np.random.default_rng(4)))
    analytic = distribution("x", samples)
    with intervals_chosen("bootstrap"):
        found = distribution("x", samples)
        assert ratio_of(samples, np.ones(1000)).interval(0.95).lower is not None
        share = share_of((samples > 1).astype(float))
        assert None not in jain_interval(samples)
    assert "studentised block bootstrap of" in found["x.mean"].method
    for name, estimate in found.items():
        assert estimate.point == analytic[name].point
    assert found["x.mean"].lower != analytic["x.mean"].lower
    assert found["x.p50"].lower is not None
    assert share is not None
    assert None not in share.interval


@pytest.mark.parametrize("correlation", [0.0, 0.8])
def test_coverage_of_the_mean(correlation: float) -> None:
    held, truth = [], float(np.exp(0.125))
    for seed in range(200):
        samples = np.exp(0.5 * ar1(correlation, 1000, np.random.default_rng([41, seed])))
        with intervals_chosen("bootstrap"):
            mean = interval_of_mean(samples)
            if seed == 0:  # the interval of the mean alone is the one that is reported
                reported = distribution("x", samples)["x.mean"]
                assert (reported.lower, reported.upper) == (mean.lower, mean.upper)
        held.append(mean.lower <= truth and (mean.upper is None or mean.upper >= truth))  # type: ignore[operator]
    assert np.mean(held) >= 0.91


def interval_of_mean(samples: FloatArray) -> Interval:
    of = spread([samples], lags=series_memory([samples]))
    assert of is not None
    return mean_interval([samples], level=0.95, of=of)


def test_runs_that_differ_are_the_units() -> None:
    random = np.random.default_rng(5)
    runs = [random.exponential(size=500) + shift for shift in (1.0, 2.0, 3.0)]
    with intervals_chosen("bootstrap"):
        mean = distribution("x", runs)["x.mean"]
    assert "t with 2 degrees of freedom" in mean.method
