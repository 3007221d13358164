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


def test_no_samples_no_percentile() -> None:
    with pytest.raises(ValueError, match="no samples"):
        percentile(np.array([]), 50.0)
    with pytest.raises(ValueError, match="no samples"):
        ordered_percentile(np.array([]), 50.0)
