from __future__ import annotations

import numpy as np
import pytest

from pytest_llmbench.stats.percentiles import ordered_percentile, percentile, percentiles

QS = (0.0, 1.0, 37.3, 50.0, 90.0, 99.0, 99.9, 100.0)


@pytest.mark.parametrize("n", [1, 2, 7, 1000])
def test_linear_is_type_7_of_numpy(n: int) -> None:
    samples = np.random.default_rng(n).lognormal(size=n)
    expected = np.percentile(samples, QS)
    assert percentiles(samples, QS) == pytest.approx(expected)
    assert [ordered_percentile(np.sort(samples), q) for q in QS] == pytest.approx(expected.tolist())


@pytest.mark.parametrize("n", [5, 60])
def test_harrell_davis_is_that_of_scipy(n: int) -> None:
    from scipy.stats.mstats import hdquantiles

    samples = np.random.default_rng(n).lognormal(size=n)
    inner = (10.0, 50.0, 90.0, 99.0)
    expected = hdquantiles(samples, prob=[q / 100 for q in inner])
    assert percentiles(samples, inner, estimator="harrell-davis") == pytest.approx(np.asarray(expected))


def test_harrell_davis_ends_at_the_extremes() -> None:
    samples = np.array([3.0, 1.0, 2.0])
    assert percentiles(samples, (0.0, 100.0), estimator="harrell-davis").tolist() == [1.0, 3.0]
    assert percentile(np.array([4.0]), 50.0, estimator="harrell-davis") == pytest.approx(4.0)


def test_harrell_davis_is_steadier_in_the_middle() -> None:
    random = np.random.default_rng(1)
    draws = random.normal(size=(400, 50))
    linear = np.std([percentile(draw, 75.0) for draw in draws])
    smooth = np.std([percentile(draw, 75.0, estimator="harrell-davis") for draw in draws])
    assert smooth < linear


def test_no_samples_no_percentile() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile(np.array([]), 50.0)
    with pytest.raises(ValueError, match="no samples"):
        ordered_percentile(np.array([]), 50.0)
