"""What a search tries next; and why ``--llm-plan`` goes through every way of it, and assumes no outcome."""

from __future__ import annotations

import pytest
from canned_levels import QueueServer, canned_setting

from pytest_llmbench.harness.execution.drive import drive
from pytest_llmbench.methodology.measuring.load_plans import RequestSlice
from pytest_llmbench.methodology.search.bracketing import (
    Chooser,
    between,
    doubling,
    downwards,
    searched,
    values_tried,
)
from pytest_llmbench.methodology.search.capacity_search import find_capacity
from pytest_llmbench.methodology.search.search import search
from pytest_llmbench.methodology.search_amounts import slots_bounds
from pytest_llmbench.model.plan import ClosedLoop


@pytest.mark.parametrize(
    ("chooser", "end", "tried"),
    [
        (doubling(8, 64), 64, [8, 16, 32, 64]),
        (doubling(8, 64), 40, [8, 16, 32, 64, 48, 40, 44, 42]),
        (doubling(8, 64), 6, [8, 4, 6, 7]),
        (doubling(8, 64), 0, [8, 4, 2, 1]),
        (doubling(8, 64, 4), 0, [8, 4]),
        (doubling(8, 8), 8, [8]),
        (between(1, 9, 2), 9, [1, 9]),
        (between(1, 9, 2), 4, [1, 9, 5, 3]),
        (between(1, 9, 2), 0, [1]),
        (between(2, 4, 1, stretches=2), 100, [2, 4, 6, 9]),
        (between(2, 4, 1, stretches=2), 7.5, [2, 4, 6, 9, 7.5, 8.25]),
        (between(1, 4, 0.1, rounded=round), 2.5, [1, 4, 2, 3]),
        (downwards(40, 1, 1, round), 40, [40]),
        (downwards(40, 1, 1, round), 37, [40, 39, 38, 37]),
        (downwards(40, 1, 1, round), 33, [40, 39, 38, 37, 36, 32, 34, 33]),
        (downwards(40, 1, 1, round), 24, [40, 39, 38, 37, 36, 32, 24, 28, 26, 25]),
        (downwards(40, 1, 38, round), 0, [40, 39, 38]),
        (downwards(2, 0.5, 0.1, float), 0.6, [2, 1.5, 1, 0.5]),
    ],
)
def test_what_is_tried_where_everything_up_to_an_end_holds(
    chooser: Chooser[float], end: float, tried: list[float]
) -> None:
    assert values_tried(chooser, end) == tried


@pytest.mark.parametrize(("end", "bracket"), [(64, (64, None)), (40, (40, 42)), (6, (6, 7)), (0, (None, 1))])
def test_the_bracket_of_what_holds(end: int, bracket: tuple[int | None, int | None]) -> None:
    def at(value: int):  # type: ignore[no-untyped-def] # a procedure that needs no load
        return value <= end
        yield

    assert drive(searched(doubling(8, 64), at), QueueServer()) == bracket


def sent(holds_up_to: int | None, **options: int) -> int:
    """Requests of a search for a capacity; more than so many at once run out of memory."""
    server, setting = QueueServer(slots=1_000, service_s=1.5, fails_above=holds_up_to), canned_setting()
    drive(find_capacity(setting, RequestSlice(setting.workload), **options), server)
    loads = [plan.load for plan in server.plans]
    slots = sum(load.concurrency for load in loads if isinstance(load, ClosedLoop))
    bounds = slots_bounds(
        setting, RequestSlice(setting.workload), options.get("initial", 8), options.get("maximum", 512), 3.0,
        None, "",
    )  # fmt: skip
    assert bounds.least <= 2 * slots <= bounds.most
    return 2 * slots  # every slot has two completions at least


def test_the_dearest_way_of_a_search_is_neither_where_everything_holds_nor_where_nothing_does() -> None:
    """docs/decisions/0037: so a plan that assumes one of them, or both, has no upper bound."""
    everything, nothing, between_them = sent(None), sent(0), sent(40)
    assert (everything, nothing) == (240, 30)
    assert between_them == 588


def test_neither_of_them_is_always_the_cheapest() -> None:
    assert sent(None) > sent(0)
    assert sent(None, initial=8, maximum=8) < sent(0, initial=8, maximum=8)


def test_what_a_search_sends_grows_with_what_the_system_completes() -> None:
    """No assumed observation is the dearest: one of a faster system costs more."""

    def sent_to(server: QueueServer) -> int:
        setting = canned_setting()
        drive(search(setting, RequestSlice(setting.workload)), server)
        return sum(plan.requests for plan in server.plans)

    slow, fast = (sent_to(QueueServer(service_s=service_s)) for service_s in (0.1, 0.01))
    assert fast > 4 * slow
