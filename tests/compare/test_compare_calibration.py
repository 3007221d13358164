"""Noise between runs of one system, known by hand and by simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from pytest_llmbench.compare.limits import Noise, noise_of, tight_limits, tight_margins
from pytest_llmbench.model.objective import Objective

SPREAD = 0.03


def noise(better: str = "lower", runs: int = 8, spread: float = SPREAD) -> Noise:
    return Noise("ttft.p50", "ms", better, runs, math.log(100.0), spread)  # type: ignore[arg-type]


def test_mean_and_spread_of_three_runs() -> None:
    # Logarithms of 100, 110, 121 lie ln 1.1 apart, so their standard deviation is ln 1.1.
    found = noise_of("ttft.p50", "ms", "lower", (110.0, 100.0, 121.0))
    assert found is not None
    assert found.typical == pytest.approx(110.0)
    assert found.spread_log == pytest.approx(math.log(1.1))
    assert found.cv == pytest.approx(math.sqrt(math.exp(math.log(1.1) ** 2) - 1))


def test_the_interval_is_that_of_chi_square() -> None:
    # χ²(7) at 2.5 % and 97.5 %: 1.689869 and 16.012764 (tables).
    low, high = noise().interval
    assert low == pytest.approx(SPREAD * math.sqrt(7 / 16.012764), rel=1e-3)
    assert high == pytest.approx(SPREAD * math.sqrt(7 / 1.689869), rel=2e-3)


def test_the_proposed_limit_is_the_tolerance_bound_of_the_tables() -> None:
    # One-sided 99 % / 95 % tolerance factor for n = 8: 4.354 (Krishnamoorthy & Mathew, table B1).
    # 100 exp(±4.354 · 0.03) = 113.95 and 87.756, with three digits and away from the runs.
    assert SPREAD == 0.03
    assert noise().proposed == 114.0
    assert noise("higher").proposed == 87.7


def test_the_proposed_limit_keeps_what_it_says() -> None:
    generator = np.random.default_rng(3)
    beyond = []
    for _ in range(400):
        own = noise_of("ttft.p50", "ms", "lower", np.exp(SPREAD * generator.standard_normal(8)).tolist())
        assert own is not None
        beyond.append(math.log(own.proposed) / SPREAD)
    share = np.mean([0.5 * math.erfc(z / math.sqrt(2)) > 0.01 for z in beyond])
    assert share <= 0.05 + 3.1 * math.sqrt(0.05 * 0.95 / 400)


def test_predicted_false_alarms_come_true() -> None:
    generator = np.random.default_rng(4)
    beyond = []
    for _ in range(4000):
        logs = SPREAD * generator.standard_normal(9)
        own = noise_of("ttft.p50", "ms", "lower", np.exp(logs[:8]).tolist())
        assert own is not None
        # t(7) exceeds 1.894579 in 5 % of all cases: the limit at which 5 % are predicted.
        limit = math.exp(own.mean_log + 1.894579 * own.spread_log * math.sqrt(1 + 1 / 8))
        assert own.false_alarms(limit) == pytest.approx(0.05, abs=1e-6)
        beyond.append(math.exp(logs[8]) > limit)
    assert np.mean(beyond) == pytest.approx(0.05, abs=3.1 * math.sqrt(0.05 * 0.95 / 4000))


def test_false_alarms_of_floors_and_of_silent_systems() -> None:
    assert noise().false_alarms(100.0) == pytest.approx(0.5)
    assert noise("higher").false_alarms(120.0) > 0.99
    assert noise("higher").false_alarms(80.0) < 0.01
    assert noise(spread=0.0).false_alarms(100.0) == 0.0
    assert noise(spread=0.0).false_alarms(99.0) == 1.0
    assert noise().false_alarms(0.0) == 1.0


def test_more_runs_find_less() -> None:
    found = [noise().detectable(runs) for runs in (3, 5, 10)]
    assert all(share is not None for share in found)
    assert found == sorted(found, reverse=True)  # type: ignore[type-var]
    assert noise(spread=0.0).detectable(5) is None
    higher = noise("higher").detectable(10)
    assert higher is not None
    assert 0 < higher < found[2]  # type: ignore[operator]


@pytest.mark.parametrize("values", [(1.0, 2.0), (1.0, None, 2.0), (0.0, 1.0, 2.0), ()])
def test_too_little_to_tell(values: tuple[float | None, ...]) -> None:
    assert noise_of("ttft.p50", "ms", "lower", values) is None


def test_limits_within_the_noise_are_flagged() -> None:
    known = {"ttft.p50": noise()}
    tight, wide = (Objective("ttft.p50", "<=", limit, "ms") for limit in (102.0, 125.0))
    (finding,) = tight_limits([tight, wide], known)
    assert "ttft.p50 <= 102 ms is tighter than the noise" in finding.message
    assert not finding.voids
    assert tight_limits([Objective("ttft.p99", "<=", 1.0, "ms")], known) == []
    assert tight_limits([Objective("ttft.p50", ">=", 1.0, "ms")], known) == [], "a floor of a latency"


def test_margins_within_the_noise_are_flagged() -> None:
    known = {"ttft.p50": noise()}
    # Half width with 10 pairs: t(9) 2.262 · 0.03 · √(2/10) = 3.0 %, with 3 pairs 10.5 %.
    assert tight_margins({"ttft.p50": 0.05}, 10, known) == []
    (finding,) = tight_margins({"ttft.p50": 0.05}, 3, known)
    assert finding.value == pytest.approx(math.expm1(4.302653 * SPREAD * math.sqrt(2 / 3)), rel=1e-5)
    assert tight_margins({"e2e.p50": 0.0}, 3, known) == []
