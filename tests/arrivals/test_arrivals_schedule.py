"""Schedules follow the declared law, come from the seed alone, and are never bent to fit a duration."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from pytest_llmbench.arrivals import arrival_seed, schedule_ns, schedule_sha256
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.plan import OpenLoop

POISSON = OpenLoop(rate=40.0)


def gaps_s(load: OpenLoop, count: int = 20_000, seed: int = 7) -> np.ndarray:
    return np.diff(schedule_ns(load, count, seed), prepend=0) / 1e9


def dispersion(load: OpenLoop, window_s: float, seed: int = 7) -> float:
    """Variance over mean of the counts in equal windows; 1 for a Poisson process."""
    offsets = schedule_ns(load, 40_000, seed) / 1e9
    whole_windows = int(offsets[-1] / window_s)
    edges = np.arange(whole_windows + 1) * window_s
    counts, _ = np.histogram(offsets, bins=edges)
    return float(counts.var(ddof=1) / counts.mean())


def test_poisson_gaps_are_exponential():
    for seed in range(5):
        assert stats.kstest(gaps_s(POISSON, seed=seed), stats.expon(scale=1 / 40.0).cdf).pvalue > 0.001


def test_the_exponential_check_can_fail():
    assert stats.kstest(gaps_s(OpenLoop(40.0, "gamma", 0.8)), stats.expon(scale=1 / 40.0).cdf).pvalue < 1e-6


def test_poisson_is_pythons_expovariate():
    generator = random.Random(123)
    elapsed, expected = 0.0, []
    for _ in range(1000):
        elapsed += generator.expovariate(40.0)
        expected.append(round(elapsed * 1e9))
    assert schedule_ns(POISSON, 1000, 123).tolist() == expected


def test_poisson_counts_have_dispersion_one():
    assert dispersion(POISSON, window_s=1.0) == pytest.approx(1.0, abs=0.15)


def test_poisson_total_keeps_its_variance():
    """A rescaled schedule would end at count/rate for every seed; ours has CV 1/sqrt(count)."""
    ends = np.array([schedule_ns(POISSON, 100, seed)[-1] / 1e9 for seed in range(400)])
    assert ends.mean() == pytest.approx(2.5, rel=0.02)
    assert ends.std(ddof=1) / ends.mean() == pytest.approx(0.1, rel=0.15)


@pytest.mark.parametrize("arrival", ["poisson", "uniform", "gamma"])
def test_first_request_comes_after_one_gap(arrival):
    firsts = np.array([schedule_ns(OpenLoop(10.0, arrival), 1, seed)[0] for seed in range(2000)]) / 1e9
    assert firsts.min() > 0
    assert firsts.mean() == pytest.approx(0.1, rel=0.08)


def test_schedule_is_determined_by_seed():
    assert np.array_equal(schedule_ns(POISSON, 500, 1), schedule_ns(POISSON, 500, 1))
    assert not np.array_equal(schedule_ns(POISSON, 500, 1), schedule_ns(POISSON, 500, 2))
    assert schedule_sha256(schedule_ns(POISSON, 500, 1)) == schedule_sha256(schedule_ns(POISSON, 500, 1))
    assert schedule_sha256(schedule_ns(POISSON, 500, 1)) != schedule_sha256(schedule_ns(POISSON, 500, 2))


def test_schedule_does_not_touch_the_global_generators():
    python_state, numpy_state = random.getstate(), np.random.get_state()[1].tolist()
    schedule_ns(POISSON, 100, 3)
    schedule_ns(OpenLoop(1.0, "gamma", 0.5), 100, 3)
    assert random.getstate() == python_state
    assert np.random.get_state()[1].tolist() == numpy_state


@settings(max_examples=40)
@given(
    arrival=st.sampled_from(["poisson", "uniform", "gamma"]),
    rate=st.floats(1e-3, 1e5),
    burstiness=st.floats(0.05, 20.0),
    short=st.integers(0, 50),
    more=st.integers(0, 50),
    seed=st.integers(0, 2**48),
)
def test_shorter_schedule_is_a_prefix(arrival, rate, burstiness, short, more, seed):
    load = OpenLoop(rate, arrival, burstiness)
    long = schedule_ns(load, short + more, seed)
    assert np.array_equal(schedule_ns(load, short, seed), long[:short])
    assert (np.diff(long) >= 0).all()
    assert long.dtype == np.int64
    assert not long.flags.writeable


@settings(max_examples=20)
@given(factor=st.sampled_from([0.25, 0.5, 2.0, 8.0]), seed=st.integers(0, 2**32))
def test_rate_only_stretches_the_schedule(factor, seed):
    slow, fast = schedule_ns(OpenLoop(16.0), 200, seed), schedule_ns(OpenLoop(16.0 * factor), 200, seed)
    assert np.abs(slow / factor - fast).max() <= 1 / factor + 1


def test_uniform_gaps_are_constant():
    offsets = schedule_ns(OpenLoop(3.0, "uniform"), 30_000, 1)
    assert set(np.diff(offsets)) == {333_333_333, 333_333_334}
    assert offsets[0] == 333_333_333
    assert offsets[-1] == 10_000_000_000_000
    assert np.array_equal(offsets, schedule_ns(OpenLoop(3.0, "uniform"), 30_000, 2))


@pytest.mark.parametrize("burstiness", [0.25, 0.5, 1.0, 4.0])
def test_gamma_gaps_have_the_declared_variation(burstiness):
    load = OpenLoop(40.0, "gamma", burstiness)
    gaps = gaps_s(load, count=60_000)
    assert gaps.mean() == pytest.approx(1 / 40.0, rel=0.03)
    assert gaps.std(ddof=1) / gaps.mean() == pytest.approx(burstiness**-0.5, rel=0.03)
    law = stats.gamma(burstiness, scale=1 / (burstiness * 40.0))
    assert stats.kstest(gaps[:5000], law.cdf).pvalue > 0.001


def test_bursty_arrivals_are_overdispersed():
    assert dispersion(OpenLoop(40.0, "gamma", 0.25), window_s=1.0) > 2.5
    assert dispersion(OpenLoop(40.0, "gamma", 4.0), window_s=1.0) < 0.6


def test_arrival_seed_is_fixed_and_its_own():
    assert arrival_seed(42) == 168_708_826_983_753
    assert arrival_seed(42) != 42
    assert len({arrival_seed(seed) for seed in range(1000)}) == 1000
    assert all(0 <= arrival_seed(seed) < 2**48 for seed in (-1, 0, 10**30))


def test_arrivals_are_independent_of_the_workload():
    """The uniforms behind the gaps are uncorrelated with those that a workload draws from its seed."""
    workload = random.Random(42)
    lengths = np.array([workload.random() for _ in range(20_000)])
    gaps = gaps_s(POISSON, seed=arrival_seed(42))
    assert abs(np.corrcoef(lengths, gaps)[0, 1]) < 0.03


def test_known_schedule_digest():
    """Pins law, seed derivation and rounding together: a change is a change of every published schedule."""
    offsets = schedule_ns(OpenLoop(20.0), 1000, arrival_seed(42))
    assert schedule_sha256(offsets) == "e1f662f9bf37f56c39d8de29ec564985b6356246f13bcd872566b69d5c920cf6"


@pytest.mark.parametrize("rate", [0, 0.0, -1.0, float("nan"), float("inf"), True, "20"])
def test_bad_rate_is_refused(rate):
    with pytest.raises(SuiteError, match="positive number of requests per second"):
        schedule_ns(OpenLoop(rate), 10, 1)


def test_all_mistakes_are_listed_together():
    with pytest.raises(SuiteError) as caught:
        schedule_ns(OpenLoop(-1.0, "gamma", 0.0), -5, 1)
    assert "3 mistakes" in str(caught.value)
    for word in ("rate", "burstiness", "number of requests"):
        assert word in str(caught.value)


def test_unknown_arrival_is_refused():
    with pytest.raises(SuiteError, match="choose one of poisson, uniform, gamma"):
        schedule_ns(OpenLoop(1.0, "possion"), 10, 1)


def test_schedule_beyond_the_clock_is_refused():
    with pytest.raises(SuiteError, match="raise the rate"):
        schedule_ns(OpenLoop(1e-12), 10, 1)


def test_no_requests_no_schedule():
    assert schedule_ns(POISSON, 0, 1).tolist() == []
