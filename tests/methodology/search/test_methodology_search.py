"""The search for the highest load that holds, open and closed loop (section 5.2, AMB-17)."""

from __future__ import annotations

import pytest
from canned_levels import QueueServer, canned_setting

from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.measuring.levels import Reference
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.search.probing import Range, lowest_beyond, meets, sustainable, value_of
from pytest_llmbench.methodology.search.search import Searched, search
from pytest_llmbench.model.plan import ClosedLoop, OpenLoop


def found(server: QueueServer | None = None, **options: object) -> Searched:
    setting = canned_setting()
    steps = search(setting, RequestSlice(setting.workload), **options)  # type: ignore[arg-type]
    return drive(steps, server or QueueServer())


def test_equal_arguments_give_equal_plans() -> None:
    one, other = QueueServer(), QueueServer()
    found(one)
    found(other)
    assert [plan.key for plan in one.plans] == [plan.key for plan in other.plans]


def test_the_lowest_level_of_a_range_is_run_first_and_is_the_yardstick() -> None:
    server = QueueServer()
    searched = found(server, bounds=Range(8, 64, 8), arrival="uniform")
    assert server.plans[0].load == OpenLoop(8, "uniform")
    assert searched.reference.ttft_p50_ms == pytest.approx(20.0, abs=0.1)
    assert searched.reference.applies


def test_the_bracket_is_not_wider_than_the_step() -> None:
    searched = found(bounds=Range(8, 64, 2), arrival="uniform")
    assert searched.best is not None
    assert searched.rate is not None
    beyond = lowest_beyond(searched.best, searched.levels, sustainable)
    assert beyond is not None
    assert searched.rate <= 40.0 < beyond <= searched.rate + 2


@pytest.mark.parametrize(
    ("bounds", "arrival", "rate", "levels", "words"),
    [
        (Range(8, 24, 4), "uniform", 24.0, 2, "raise the maximum"),
        (Range(60, 90, 5), "poisson", None, 1, "lowest level"),
    ],
)
def test_a_range_below_capacity_is_exhausted_and_one_above_holds_nowhere(
    bounds: Range, arrival: str, rate: float | None, levels: int, words: str
) -> None:
    searched = found(bounds=bounds, arrival=arrival)
    assert (searched.rate, len(searched.levels)) == (rate, levels)
    assert any(words in note for note in map(str, searched.notes))


def test_a_range_of_its_own_is_raised_where_it_does_not_saturate() -> None:
    # In its first second the server is five times as slow: the bursts see a fifth of its capacity.
    class Warming(QueueServer):
        def __call__(self, plan: object) -> object:  # type: ignore[override]
            self.service_s = 0.5 if len(self.plans) < 2 else 0.1
            return super().__call__(plan)  # type: ignore[arg-type]

    searched = found(Warming())
    assert searched.range.maximum < 40
    assert searched.rate is not None
    assert searched.rate > searched.range.maximum


def test_constraints_narrow_the_search_below_the_best() -> None:
    searched = found(bounds=Range(8, 64, 4), limits={"ttft.p99": 60.0})
    assert searched.best is not None
    assert searched.best_constrained is not None
    assert value_of(searched.best_constrained) < value_of(searched.best)
    assert meets(searched.best_constrained, {"ttft.p99": 60.0})
    beyond = lowest_beyond(
        searched.best_constrained, searched.levels, lambda seen: meets(seen, {"ttft.p99": 60.0})
    )
    assert beyond is not None
    assert beyond - value_of(searched.best_constrained) <= 4


def test_a_metric_that_was_not_measured_meets_nothing() -> None:
    searched = found(bounds=Range(8, 24, 4), arrival="uniform", limits={"itl.p99": 1e9})
    assert searched.best is not None
    assert searched.best_constrained is None


@pytest.mark.parametrize(("slots", "step"), [(4, 1), (10, 2), (13, 1), (40, 8)])
def test_a_closed_loop_stops_where_more_requests_gain_nothing(slots: int, step: int) -> None:
    server = QueueServer(slots=slots, service_s=0.4)
    searched = found(server, bounds=Range(1, 64, step), load_model="closed")
    assert searched.best is not None
    assert slots <= value_of(searched.best) < slots + max(step, 2)
    above = [seen for seen in searched.levels if value_of(seen) > value_of(searched.best)]
    assert above
    assert all(seen.level.saturated for seen in above)
    assert min(value_of(seen) for seen in above) - value_of(searched.best) <= step
    below = [seen for seen in searched.levels if value_of(seen) <= value_of(searched.best)]
    assert not any(seen.level.saturated for seen in below)


def test_a_closed_loop_that_still_gains_at_the_maximum_says_so() -> None:
    searched = found(QueueServer(slots=64, service_s=0.4), bounds=Range(1, 16, 2), load_model="closed")
    assert searched.best is not None
    assert searched.best.observation.plan.load == ClosedLoop(16)
    assert any("raise the maximum" in note for note in map(str, searched.notes))


def test_the_rest_of_the_sequence_is_handed_on() -> None:
    server = QueueServer()
    searched = found(server, bounds=Range(8, 24, 4))
    assert searched.sequence is not None
    assert searched.sequence.first == sum(plan.requests for plan in server.plans)


def test_a_yardstick_from_elsewhere_stands_in_place_of_the_lowest_level() -> None:
    """First tokens come after 60 ms at any load below capacity, which is twelve times the yardstick."""
    server, bounds = QueueServer(first_ms=60.0), Range(8, 72, 4)
    own = found(server, bounds=bounds, arrival="uniform")
    given = Reference(5.0, applies=True, note="", of_level="the other system")
    other = found(server, bounds=bounds, arrival="uniform", reference=given, and_carried=True)
    assert own.rate == 40.0
    assert other.reference == given
    assert other.rate is None
    assert other.best_carried is not None
    assert value_of(other.best_carried) == 40.0
    assert "12 times the P50 of the other system" in other.levels[0].level.saturation_reasons[0]


def test_wide_limits_reach_beyond_the_ten_fold_rule() -> None:
    searched = found(bounds=Range(8, 64, 4), limits={"ttft.p99": 1000.0})
    assert searched.best is not None
    assert searched.best_constrained is not None
    assert value_of(searched.best_constrained) > value_of(searched.best)
    assert searched.best_constrained.level.overloaded is False
    assert searched.best_constrained.level.saturated is True


def test_no_limit_is_met_where_the_queue_grows_without_end() -> None:
    searched = found(bounds=Range(8, 64, 4), limits={"ttft.p99": 1e9})
    assert searched.best_constrained is not None
    assert searched.best_constrained.level.overloaded is False
    assert value_of(searched.best_constrained) <= 52.0


def test_limits_of_a_closed_loop_end_at_its_plateau() -> None:
    searched = found(
        QueueServer(slots=4), bounds=Range(1, 64, 1), load_model="closed", limits={"ttft.p99": 1e9}
    )
    assert searched.best is not None
    assert searched.best_constrained is searched.best
    assert not searched.notes
