"""Searches are levels by criteria: a chooser says which value is tried next, a level sends it and judges it.

A chooser yields values and is sent whether each held; a procedure drives it with what it measures.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from pytest_llmbench.methodology.measuring.levels import Seen
from pytest_llmbench.methodology.procedure import Procedure
from pytest_llmbench.methodology.remeasured import attempted
from pytest_llmbench.model.draft import GAP_SHARE
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.sentences import Note

V = TypeVar("V", int, float)

Bracket = tuple[V | None, V | None]
"""The highest value that held and the lowest above it that did not; None where there is none."""
Chooser = Generator[V, bool, Bracket[V]]


def searched(chooser: Chooser[V], at: Callable[[V], Procedure[bool]]) -> Procedure[Bracket[V]]:
    """Run a search: ``at`` runs a level and returns whether it held. Returns the bracket."""
    value = next(chooser)
    try:
        while True:
            value = chooser.send((yield from at(value)))
    except StopIteration as stop:
        found: Bracket[V] = stop.value
        return found


class Level(NamedTuple):
    """One value of a search."""

    plan: Callable[[], LoadPlan]
    """The load, asked for before each attempt."""
    see: Callable[[Observation], Seen]
    """The judged level that a run of it makes."""


LevelOf = Callable[[int, Mapping[int, Seen]], Level]
"""The level of a value; the levels before it are told, by their value."""


@dataclass(frozen=True)
class Tried:
    """What a search over whole numbers found."""

    passed: int | None
    """The highest value that passed; None where none did."""
    failed: int | None
    """The lowest value above it that did not; None where the range ended first."""
    by_value: Mapping[int, Seen]
    """The levels that count, in the order in which they were run."""
    runs: tuple[Seen, ...]
    """All levels that were run, including attempts that this machine spoiled."""
    notes: tuple[Note, ...]

    @property
    def levels(self) -> tuple[Seen, ...]:
        return tuple(self.by_value.values())

    @property
    def best(self) -> Seen | None:
        return None if self.passed is None else self.by_value[self.passed]


def tried_levels(
    chooser: Chooser[int],
    level: LevelOf,
    remeasure: int,
    *,
    needed: bool = False,
    at_stake: Sequence[Objective] = (),
) -> Procedure[Tried]:
    """Run a search over levels that pass or fail. The last three as for
    :func:`~pytest_llmbench.methodology.remeasured.attempted`."""
    by_value: dict[int, Seen] = {}
    runs, notes = list[Seen](), list[Note]()

    def at(value: int) -> Procedure[bool]:
        attempts = yield from attempted(*level(value, by_value), remeasure, needed=needed, at_stake=at_stake)
        by_value[value] = attempts.level
        runs.extend(attempts.runs)
        notes.extend(attempts.notes)
        return attempts.level.level.passed is True

    passed, failed = yield from searched(chooser, at)
    return Tried(passed, failed, by_value, tuple(runs), tuple(notes))


def values_tried(chooser: Chooser[V], end: float) -> list[V]:
    """The values that a search tries if all values up to ``end`` hold and no others."""
    tried = [next(chooser)]
    try:
        while True:
            tried.append(chooser.send(tried[-1] <= end))
    except StopIteration:
        return tried


def doubling(initial: int, maximum: int, least: int = 1) -> Chooser[int]:
    """Doubling from the initial value, or halving down to ``least`` when that fails, then bisection."""
    if not (yield initial):
        passed, failed = yield from _halved(initial, least)
    else:
        passed, failed = yield from _doubled(initial, maximum)
    while passed is not None and failed is not None and failed - passed > max(1.0, GAP_SHARE * passed):
        middle = (passed + failed) // 2
        if (yield middle):
            passed = middle
        else:
            failed = middle
    return passed, failed


def _doubled(value: int, maximum: int) -> Chooser[int]:
    while value < maximum:
        higher = min(2 * value, maximum)
        if not (yield higher):
            return value, higher
        value = higher
    return value, None


def _halved(value: int, least: int) -> Chooser[int]:
    while value > least:
        lower = max(value // 2, least)
        if (yield lower):
            return lower, value
        value = lower
    return None, value


def between(
    low: float, high: float, step: float, *, stretches: int = 0, rounded: Callable[[float], float] = float
) -> Chooser[float]:
    """Minimum and maximum, then bisection until the bracket is no wider than the step.

    ``stretches``: how often the maximum is raised by half while it holds. ``rounded``: a value that can be
    asked for.
    """
    if not (yield low):
        return None, low
    for stretch in range(stretches + 1):
        if not (yield high):
            break
        low = high
        if stretch == stretches:
            return low, None
        high = rounded(high * 1.5)
    while high - low > step * (1 + 1e-9):
        middle = rounded((low + high) / 2)
        if not low < middle < high:
            break
        if (yield middle):
            low = middle
        else:
            high = middle
    return low, high


STEPS_DOWN = (0, 1, 2, 3, 4, 8, 16)
"""How far below its start a search downwards looks in turn, in steps. By single steps first; where long
levels show a queue that short ones do not, the first that holds may lie far below."""


def downwards(start: float, step: float, least: float, rounded: Callable[[float], float]) -> Chooser[float]:
    """The start, then lower values in turn, none below ``least``, until one holds; then bisection between it
    and the one before it until the bracket is no wider than the step."""
    failed: float | None = None
    for value in dict.fromkeys(rounded(max(start - steps * step, least)) for steps in STEPS_DOWN):
        if (yield value):
            passed = value
            break
        failed = value
    else:
        return None, failed
    while failed is not None and failed - passed > step * (1 + 1e-9):
        middle = rounded((passed + failed) / 2)
        if not passed < middle < failed:
            break
        if (yield middle):
            passed = middle
        else:
            failed = middle
    return passed, failed
