"""Sessions whose limit is undecided follow the number that they are told, and decide."""

from __future__ import annotations

import math

import numpy as np
import pytest
from loaded_script import loaded

bench = loaded("benchmarks/bench_advice.py")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["M/M/8 at 70%", "M/M/1 at 50%", "MMPP/M/1 at 40%"])
def test_four_of_five_undecided_sessions_that_follow_the_advice_decide(name: str) -> None:
    system = bench.System(name, bench.SYSTEMS[name], 60)
    found = bench.follow(system, [times * system.true for times in bench.ANY])
    assert found is not None
    assert found.decided >= 0.8 - 2 * math.sqrt(0.8 * 0.2 / 60)
    assert found.numbered >= 0.3
    assert found.asked <= 40_000


@pytest.mark.slow
@pytest.mark.parametrize("name", bench.SYSTEMS)
def test_the_upper_end_of_p99_holds(name: str) -> None:
    system = bench.System(name, bench.SYSTEMS[name], 200)
    ends = np.array([math.inf if one.upper is None else one.upper for one in system.usual])
    assert np.mean(ends >= system.true) >= 0.93 - 2 * math.sqrt(0.93 * 0.07 / 200)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "twice", "thrice"), [
    ("M/M/8 at 70%", 0.85, 0.95), ("M/D/1 at 70%", 0.85, 0.95), ("M/M/1 at 70%", 0.85, 0.95),
])  # fmt: skip
def test_far_limits_are_decided_by_the_default_number(name: str, twice: float, thrice: float) -> None:
    system = bench.System(name, bench.SYSTEMS[name], 200)
    ends = np.array([math.inf if one.upper is None else one.upper for one in system.usual])
    assert np.mean(ends <= 2 * system.true) >= twice
    assert np.mean(ends <= 3 * system.true) >= thrice
