from __future__ import annotations

import numpy as np
import pytest

from pytest_llmbench.metrics.input_lengths import Group
from pytest_llmbench.metrics.input_lengths import fit as fitted

DRAFT = {1024: 89.0, 4096: 289.0, 16384: 1023.0, 65536: 4234.0, 131072: 9123.0}
"""Context length and mean TTFT of the draft's example (section 5.9)."""


def group(length: float, latencies: np.ndarray) -> Group:
    return Group(np.full(len(latencies), float(length)), latencies)


def exact(law: dict[int, float]) -> list[Group]:
    return [group(length, np.array([0.9 * mean, 1.1 * mean])) for length, mean in law.items()]


def test_the_drafts_example() -> None:
    line, power = fitted(exact(DRAFT)), fitted(exact(DRAFT), logarithmic=True)
    assert line is not None
    assert power is not None
    assert line.slope * 1000 == pytest.approx(69.2, abs=0.05)
    assert line.r_squared == pytest.approx(0.9986, abs=5e-5)
    assert power.slope == pytest.approx(0.954, abs=5e-4)
    assert (line.points, line.samples) == (5, 10)


def test_exact_laws_are_found() -> None:
    lengths = (1000, 2000, 4000, 8000)
    power = fitted(exact({x: 0.01 * x**1.5 for x in lengths}), logarithmic=True)
    line = fitted(exact({x: 40 + 0.07 * x for x in lengths}))
    assert power is not None
    assert line is not None
    assert power.slope == pytest.approx(1.5)
    assert np.exp(power.intercept) == pytest.approx(0.01)
    assert (line.slope, line.intercept) == pytest.approx((0.07, 40.0))
    assert (power.r_squared, line.r_squared) == pytest.approx((1.0, 1.0))


def test_every_length_weighs_the_same() -> None:
    groups = [group(x, np.full(n, 10.0 + x)) for x, n in ((1, 2), (2, 500), (3, 20))]
    groups[1] = group(2, np.full(500, 15.0))
    fit = fitted(groups)
    assert fit is not None
    # Means 11, 15, 13 at 1, 2, 3.
    assert (fit.slope, fit.intercept) == pytest.approx((1.0, 11.0))
    assert fit.r_squared == pytest.approx(0.25)


def test_two_lengths_are_too_few() -> None:
    assert fitted(exact({1: 1.0, 2: 2.0}), logarithmic=True) is None
    assert fitted([*exact({1: 1.0, 2: 2.0}), group(4, np.array([]))]) is None
    assert fitted([]) is None
    assert fitted(exact({1: 1.0, 2: 2.0, 4: 0.0}), logarithmic=True) is None


def test_single_requests_give_no_interval_and_constants_no_fit_quality() -> None:
    fit = fitted([group(x, np.array([5.0])) for x in (1, 2, 3)])
    assert fit is not None
    assert (fit.slope, fit.r_squared) == (pytest.approx(0.0), None)
    assert fit.slope_interval == (None, None)


def held(times: int, requests: int, truth: float = 1.1) -> float:
    inside = []
    for time in range(times):
        random = np.random.default_rng([21, time])
        groups = [
            group(length, 0.05 * length**truth * random.gamma(8.0, 1 / 8, size=requests))
            for length in (1024, 2048, 4096, 8192, 16384)
        ]
        fit = fitted(groups, logarithmic=True)
        assert fit is not None
        lower, upper = fit.slope_interval
        assert lower is not None
        assert upper is not None
        inside.append(lower <= truth <= upper)
    return float(np.mean(inside))


def test_coverage_of_the_exponent() -> None:
    assert held(200, 20) >= 0.91


@pytest.mark.slow
@pytest.mark.parametrize("requests", [20, 100])
def test_coverage_of_the_exponent_in_many(requests: int) -> None:
    assert 0.93 <= held(600, requests) <= 0.985
