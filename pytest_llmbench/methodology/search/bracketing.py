"""Choosers of searches: which value a search tries next, by whether the values before held.

A chooser yields values and is sent whether each held; a procedure drives it with what it measures.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import TypeVar

from pytest_llmbench.methodology.procedure import Procedure
from pytest_llmbench.model.draft import GAP_SHARE

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
