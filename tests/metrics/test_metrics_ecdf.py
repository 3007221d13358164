from __future__ import annotations

import numpy as np
import pytest

from pytest_llmbench.stats.counted import MOST_POINTS, ecdf


def test_few_samples_are_all_kept() -> None:
    assert ecdf(np.array([3.0, 1.0, 2.0, 2.0])) == ((1.0, 2.0, 2.0, 3.0), (0.25, 0.5, 0.75, 1.0))


def test_no_samples_no_points() -> None:
    assert ecdf(np.array([])) == ((), ())


@pytest.mark.parametrize("n", [MOST_POINTS, MOST_POINTS + 1, 10_000, 123_457])
def test_thinned_points_lie_on_the_full_curve(n: int) -> None:
    samples = np.random.default_rng(n).lognormal(size=n)
    values, shares = ecdf(samples)
    assert len(values) == len(shares) <= MOST_POINTS
    assert (values[0], values[-1]) == (samples.min(), samples.max())
    assert (shares[0], shares[-1]) == (1 / n, 1.0)
    assert list(values) == sorted(values)
    ordered = np.sort(samples)
    ranks = np.rint(np.array(shares) * n).astype(int)
    assert ordered[ranks - 1].tolist() == list(values)


def test_the_tail_is_drawn_finely() -> None:
    _, shares = ecdf(np.arange(10_000.0))
    assert sum(share > 0.99 for share in shares) >= 50
    assert max(np.diff(shares)) < 0.01


def test_one_point_is_no_curve() -> None:
    with pytest.raises(ValueError, match="at least 2"):
        ecdf(np.arange(10.0), most=1)
