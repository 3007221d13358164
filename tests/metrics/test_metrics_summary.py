from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.metrics.summary import STATISTICS, distribution
from pytest_llmbench.model.estimate import EstimateKind

NAMES = [f"ttft.{statistic}" for statistic in STATISTICS]


def bursty(n: int, seed: int = 1) -> np.ndarray:
    """Latencies in groups of ten alike."""
    return np.repeat(np.random.default_rng(seed).lognormal(3, 1, size=n // 10), 10)


def test_points_are_those_of_numpy() -> None:
    samples = np.random.default_rng(0).lognormal(size=5000)
    found = distribution("ttft", samples)
    assert list(found) == NAMES
    expected = np.percentile(samples, [50, 90, 95, 99, 99.9])
    assert [found[name].point for name in NAMES[:5]] == pytest.approx(expected.tolist())
    assert found["ttft.mean"].point == pytest.approx(samples.mean())
    assert (found["ttft.min"].point, found["ttft.max"].point) == (samples.min(), samples.max())
    assert {estimate.n for estimate in found.values()} == {5000}
    assert {estimate.unit for estimate in found.values()} == {"ms"}


@pytest.mark.parametrize("samples", [np.array([]), [], [np.array([]), np.array([])]])
def test_without_samples_everything_is_undefined(samples: object) -> None:
    found = distribution("e2e", samples, unit="s")  # type: ignore[arg-type]
    assert list(found) == [f"e2e.{statistic}" for statistic in STATISTICS]
    for estimate in found.values():
        assert not estimate.defined
        assert not estimate.closed
        assert (estimate.n, estimate.level, estimate.unit) == (0, 0.95, "s")


def test_a_zero_is_a_value() -> None:
    found = distribution("ttft", np.zeros(100))
    assert found["ttft.p50"].point == 0.0
    assert (found["ttft.mean"].lower, found["ttft.mean"].upper) == (0.0, 0.0)


def test_extremes_are_observed_and_bound_nothing() -> None:
    found = distribution("ttft", np.arange(1.0, 20_001.0))
    for name in ("ttft.min", "ttft.max"):
        assert found[name].method == "observed"
        assert (found[name].lower, found[name].upper, found[name].n_required) == (None, None, None)


def test_a_percentile_the_sample_cannot_support_is_open_and_says_how_many_would() -> None:
    found = distribution("ttft", np.random.default_rng(2).normal(100, 5, size=90))
    assert found["ttft.p50"].closed
    assert found["ttft.p90"].closed
    assert found["ttft.p95"].closed
    assert found["ttft.p90"].n_required is None
    assert found["ttft.p99"].lower is not None
    assert found["ttft.p99"].upper is None
    required = found["ttft.p99"].n_required, found["ttft.p99_9"].n_required
    assert required == pytest.approx((368, 3688), rel=0.15)


def test_dependent_samples_need_more() -> None:
    found = distribution("ttft", bursty(2000))
    rare = found["ttft.p99_9"]
    assert rare.closed
    assert rare.kind is EstimateKind.CRUDE
    assert found["ttft.p50"].kind is EstimateKind.SAMPLE
    assert rare.method.startswith("order statistics at effective n=")
    assert found["ttft.p50"].method.startswith("order statistics at effective n=")
    assert found["ttft.mean"].method.startswith("mean at effective n=")


def test_a_mean_of_few_samples_is_open_above() -> None:
    found = distribution("ttft", np.random.default_rng(2).normal(100, 5, size=20))
    assert found["ttft.mean"].lower is not None
    assert found["ttft.mean"].upper is None
    assert found["ttft.mean"].n_required == 30
    fewer = distribution("ttft", np.arange(9.0))["ttft.mean"]
    assert (fewer.lower, fewer.upper, fewer.n_required) == (None, None, 30)
    assert found["ttft.p50"].closed
    assert found["ttft.p50"].method == "order statistics at effective n=20"


@pytest.mark.parametrize("n", [1, 2, 5])
def test_five_samples_do_not_even_bound_a_median(n: int) -> None:
    found = distribution("ttft", np.arange(float(n)))
    assert not any(estimate.closed for estimate in found.values())
    assert found["ttft.p50"].n_required == 6
    assert found["ttft.p50"].point == (n - 1) / 2


def test_several_runs_are_pooled() -> None:
    samples = np.random.default_rng(3).lognormal(size=3000)
    runs = [samples[:1000], samples[1000:1200], samples[1200:]]
    whole, parts = distribution("ttft", samples), distribution("ttft", runs)
    for name in NAMES:
        assert parts[name].point == pytest.approx(whole[name].point)
        assert parts[name].n == 3000
        assert parts[name].closed == whole[name].closed


def test_runs_that_disagree_widen_the_mean() -> None:
    random = np.random.default_rng(4)
    alike = [random.normal(100, 5, size=1000) for _ in range(3)]
    apart = [run + shift for run, shift in zip(alike, (-10, 0, 10), strict=True)]

    def width(runs: list[np.ndarray]) -> float:
        mean = distribution("ttft", runs)["ttft.mean"]
        if mean.lower is None or mean.upper is None:
            return float("inf")
        return mean.upper - mean.lower

    assert width(apart) > 3 * width(alike)


@settings(max_examples=40)
@given(
    samples=st.lists(st.one_of(st.floats(0, 1e5), st.sampled_from([1.0, 2.0])), min_size=1, max_size=400),
)
def test_intervals_surround_their_points(samples: list[float]) -> None:
    for estimate in distribution("ttft", np.array(samples)).values():
        assert estimate.point is not None
        assert estimate.lower is None or estimate.lower <= estimate.point
        assert estimate.upper is None or estimate.upper >= estimate.point
        if estimate.n_required is not None:
            assert not estimate.closed
            assert estimate.n_required > estimate.n
