from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.stats.percentiles import ordered_percentile_interval, percentile, ranks, samples_required


@pytest.mark.parametrize(("q", "needed"), [(50, 6), (90, 36), (95, 72), (99, 368), (99.9, 3688), (1, 368)])
def test_samples_required_for_a_closed_interval(q: float, needed: int) -> None:
    assert samples_required(q) == needed
    assert None not in ranks(needed, q)
    assert None in ranks(needed - 1, q)


def test_a_higher_level_needs_more_samples() -> None:
    assert samples_required(99, level=0.99) == math.ceil(math.log(0.005) / math.log(0.99)) == 528


@pytest.mark.parametrize("n", [10, 40, 100, 1000])
@pytest.mark.parametrize("q", [50, 90, 99])
def test_same_interval_as_scipy(n: int, q: float) -> None:
    from scipy.stats import quantile_test

    samples = np.random.default_rng(n).lognormal(size=n)
    reference = quantile_test(samples, p=q / 100).confidence_interval(0.95)
    ours = ordered_percentile_interval(np.sort(samples), q)
    for mine, theirs in zip(ours, reference, strict=True):
        assert (mine is None and math.isnan(theirs)) or mine == theirs


def test_known_ranks() -> None:
    # binomial(10, 0.5): P(B ≤ 1) = 0.0107, P(B ≤ 2) = 0.0547
    assert ranks(10, 50) == (2, 9)


def test_the_end_without_support_is_open() -> None:
    ordered = np.arange(100.0)
    lower, upper = ordered_percentile_interval(ordered, 99)
    assert lower is not None
    assert upper is None
    assert ordered_percentile_interval(ordered, 1)[0] is None
    assert ordered_percentile_interval(np.array([]), 50) == (None, None)


def test_fewer_effective_samples_widen_and_then_open() -> None:
    ordered = np.arange(10_000.0)
    full = ordered_percentile_interval(ordered, 99)
    tenth = ordered_percentile_interval(ordered, 99, effective_n=1000.0)
    open_above = ordered_percentile_interval(ordered, 99, effective_n=367.9)
    assert full == ordered_percentile_interval(ordered, 99, effective_n=10_000.0)
    assert tenth[0] < full[0] < full[1] < tenth[1]  # type: ignore[operator]
    assert open_above[1] is None
    # The spread grows with the square root of what the samples are worth.
    width = (tenth[1] - tenth[0]) / (full[1] - full[0])  # type: ignore[operator]
    assert width == pytest.approx(math.sqrt(10), rel=0.25)


@settings(max_examples=80)
@given(
    n=st.integers(1, 3000),
    q=st.sampled_from([1.0, 50.0, 90.0, 99.0, 99.9]),
    worth=st.floats(0.01, 1.0),
    level=st.sampled_from([0.5, 0.9, 0.95, 0.999]),
)
def test_ranks_stay_in_the_sample_and_around_the_percentile(
    n: int, q: float, worth: float, level: float
) -> None:
    lower, upper = ranks(n, q, level=level, effective_n=n * worth)
    position = percentile(np.arange(1.0, n + 1), q)
    if lower is not None:
        assert 1 <= lower <= math.ceil(position)
    if upper is not None:
        assert math.floor(position) <= upper <= n


@pytest.mark.parametrize("q", [0, 100, -1])
def test_extremes_are_no_percentiles(q: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 100"):
        ranks(10, q)


def test_level_is_a_share() -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        samples_required(50, level=95)
