"""The saturation point of a closed loop: the lowest level on the plateau of the throughput (AMB-14).

A closed loop has no load that is too much for it. It saturates where more requests in flight gain no
throughput, and that shows only beside a neighbouring level.
"""

from __future__ import annotations

import math

from pytest_llmbench.methodology.levels import Seen
from pytest_llmbench.methodology.probing import (
    Probes,
    Range,
    lowest_beyond,
    sustainable,
    value_of,
)
from pytest_llmbench.methodology.procedure import Procedure
from pytest_llmbench.methodology.saturation import LEAST_GAIN, LEAST_STEP, gain_is_spent
from pytest_llmbench.model.estimate import LOWER_BOUND

MOST_FURTHER = 4
_THROUGHPUT = "output_token_throughput"


def plateau(probes: Probes, bounds: Range) -> Procedure[tuple[Seen | None, tuple[str, ...]]]:
    """Closed loop: the lowest level from which on more requests in flight gain less than 1 % (AMB-14).

    Bisection between levels that lie below the highest throughput seen and levels that reach it, then one
    more level above the outcome, which has to gain nothing.
    """
    lowest = yield from probes.at(bounds.minimum)
    if not sustainable(lowest):
        note = f"already the lowest level ({lowest.level.label}) does not hold: there is nothing to search"
        return None, (note,)
    low, high = bounds.minimum, bounds.maximum
    top = yield from probes.at(high)
    for _ in range(MOST_FURTHER if bounds.chosen else 0):
        if not sustainable(top) or not _gains(probes.by_value[low], top):
            break
        further = yield from probes.at(probes.rounded(high * 1.5))
        if not _gains(top, further):
            break
        low, high, top = high, value_of(further), further
    while high - low > bounds.step * (1 + 1e-9):
        middle = probes.rounded((low + high) / 2)
        if not low < middle < high:
            break
        seen = yield from probes.at(middle)
        if sustainable(seen) and _still_rising(seen, probes):
            low = middle
        else:
            high = middle
    best = probes.by_value[high]
    if not sustainable(best) or not _still_rising(probes.by_value[low], probes):
        best = probes.by_value[low]
    best = yield from _confirmed(probes, best, bounds)
    if value_of(best) + bounds.step <= max(probes.by_value):
        yield from probes.at(value_of(best) + bounds.step)  # the bracket is as narrow as the range says
    probes.spend(best)
    if lowest_beyond(best, probes.run, sustainable) is None:
        why = f"the highest level ({best.level.label}) still gains: raise the maximum, or leave it out"
        return best, (f"the range ended before saturation, what was found is {LOWER_BOUND}: {why}",)
    return best, ()


def _confirmed(probes: Probes, best: Seen, bounds: Range) -> Procedure[Seen]:
    """Goes up from ``best`` while a step of 10 % still gains; the last one that did."""
    for _ in range(MOST_FURTHER):
        value = value_of(best)
        further = value + max(bounds.step, math.ceil(LEAST_STEP * value))
        if further > bounds.maximum and not bounds.chosen:
            break
        seen = yield from probes.at(further)
        if not sustainable(seen) or not _gains(best, seen):
            break
        best = seen
    return best


def _gains(lower: Seen, higher: Seen) -> bool:
    return gain_is_spent(lower.level, higher.level) is None


def _still_rising(seen: Seen, probes: Probes) -> bool:
    """Throughput clearly below the highest of all levels."""
    every = [other.point(_THROUGHPUT) for other in probes.by_value.values()]
    peak = max((value for value in every if value is not None), default=0.0)
    own = seen.point(_THROUGHPUT)
    return own is None or own * (1 + LEAST_GAIN) < peak


__all__ = ["MOST_FURTHER", "plateau"]
