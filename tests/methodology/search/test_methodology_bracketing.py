"""What a search tries next; and why ``--llm-plan`` goes through every way of it, and assumes no outcome."""

from __future__ import annotations

import pytest
from canned_levels import QueueServer

from pytest_llmbench.harness.execution import drive
from pytest_llmbench.methodology.search.probing import (
    Chooser,
    between,
    doubling,
    downwards,
    searched,
    values_tried,
)


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
