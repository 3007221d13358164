"""Who suffers what: the decisions alone."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.simulator.engine.faults import FaultKind, FaultOptions, FaultSchedule


def fates(options: FaultOptions, seed: int, count: int) -> list[FaultKind | None]:
    schedule = FaultSchedule(options, seed)
    return [schedule.next() for _ in range(count)]


def test_without_a_fault_nothing_happens() -> None:
    assert fates(FaultOptions(), 0, 50) == [None] * 50


def test_at_a_rate_of_one_everyone_suffers() -> None:
    assert fates(FaultOptions(fault=("reset",)), 0, 5) == ["reset"] * 5


@given(seed=st.integers(0, 10_000), rate=st.floats(0.0, 1.0))
def test_the_same_seed_gives_the_same_fates(seed: int, rate: float) -> None:
    options = FaultOptions(fault=("reset", "stall"), fault_rate=rate)
    assert fates(options, seed, 30) == fates(options, seed, 30)


def test_the_rate_is_kept_and_the_kinds_are_even() -> None:
    found = fates(FaultOptions(fault=("reset", "stall"), fault_rate=0.3), 4, 4000)
    # Four standard deviations: sqrt(4000 * 0.3 * 0.7) = 29
    assert abs(4000 - found.count(None) - 1200) < 116
    assert abs(found.count("reset") - found.count("stall")) < 140


def test_a_request_s_fate_does_not_depend_on_the_limits_for_others() -> None:
    everyone = fates(FaultOptions(fault=("reset",), fault_rate=0.5), 9, 40)
    later = fates(FaultOptions(fault=("reset",), fault_rate=0.5, fault_from=10), 9, 40)
    assert later == [None] * 10 + everyone[10:]
    first_three = fates(FaultOptions(fault=("reset",), fault_rate=0.5, fault_count=3), 9, 40)
    assert first_three.count("reset") == 3
    assert all(found in (None, fate) for found, fate in zip(first_three, everyone, strict=True))
