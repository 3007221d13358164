"""Sessions whose limit is undecided follow the number that they are told, and decide."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "bench_advice.py"


def _loaded() -> ModuleType:
    spec = importlib.util.spec_from_file_location(BENCHMARK.stem, BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[BENCHMARK.stem] = module
    spec.loader.exec_module(module)
    return module


bench = _loaded()


@pytest.mark.slow
@pytest.mark.parametrize("name", ["closed loop, 24 users of 8 slots", "M/M/8 at 70%", "M/M/1 at 50%"])
def test_following_the_advice_decides_and_does_not_waste(name: str) -> None:
    system = bench.System(name, bench.SYSTEMS[name], 60)
    limit, random = 1.3 * system.true, system.random(4)
    undecided = [one for one in system.usual if not bench.is_decided(one, limit)]
    found = [bench.follow(system, one, limit, random) for one in undecided]
    assert np.mean([one.rounds == 1 for one in found]) >= 0.6
    assert np.mean([one.rounds > 0 for one in found]) >= 0.7
    # Where most sessions decide, the others are the unlucky ones, and ask for more than most would need.
    assert 1 / 3 <= np.median([one.asked for one in found]) / bench.least(system, limit) <= 5


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
