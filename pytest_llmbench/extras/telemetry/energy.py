"""Energy of a device over a window of time, from the readings of its counter, or of its power.

A counter is known at its readings and runs straight between them. A counter that shows one value for a while
was not updated, unless its device says that it draws nothing: it is known where it moves alone. Power is
taken to run straight between two readings. Without a reading for :data:`MOST_GAP_S`, nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from pytest_llmbench.model.telemetry import DeviceSeries

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
MOST_GAP_S = 3.0
"""The longest time between two readings, in seconds, over which energy is interpolated."""
_FEWEST = 2

Void = Literal["no_power", "gap", "not_covered", "vanished", "fell", "stood_still", "rarely"]
"""Why there is no energy: the device tells neither power nor energy; no readings for too long; the window
begins before the first reading, or ends after the last; the device went; its counter fell, and where it
starts again is not known; it stands still while power is drawn; it is brought up to date too rarely."""


@dataclass(frozen=True, slots=True)
class Energy:
    """The energy of one device in a window."""

    joules: FloatArray | None
    """The energy in each slice of the window; None: void."""
    by: Literal["counter", "power", ""] = ""
    why: Void | None = None
    """Why it is void, or why the counter was not taken; None: there is nothing to say."""

    @property
    def total_j(self) -> float | None:
        return None if self.joules is None else float(self.joules.sum())


def energy(series: DeviceSeries, edges_ns: IntArray) -> Energy:
    """The energy in J between each two of ``edges_ns``, which ascend."""
    counted = _by_counter(series, edges_ns)
    # Power that is as old as such a counter says no more.
    if counted.joules is not None or counted.why == "rarely" or "power_w" not in series.values:
        return counted
    drawn = _by_power(series, edges_ns)
    if drawn.joules is None:
        return drawn
    return Energy(drawn.joules, "power", None if counted.why == "no_power" else counted.why)


def _by_counter(series: DeviceSeries, edges_ns: IntArray) -> Energy:
    known = _known(series, "energy_j")
    if known is None:
        return Energy(None, why="no_power")
    at_ns, read_j = known
    grown = np.diff(read_j)
    if (grown < 0).any():
        if series.energy_wraps_at_j is None:
            return Energy(None, why="fell")
        grown = np.where(grown < 0, grown + series.energy_wraps_at_j, grown)
    joules = np.concatenate(([0.0], np.cumsum(grown)))
    moved = np.concatenate(([True], (grown > 0) | _draws_nothing(series, at_ns[1:])))
    if len(moved) > _FEWEST and not moved[1:].any():
        return Energy(None, why="stood_still")
    often = bool((np.diff(at_ns[moved]) <= MOST_GAP_S * 1e9).all())
    moved[-1] = True
    if (why := _void(series, at_ns, edges_ns)) is not None:
        return Energy(None, why=why)
    at_ns, joules = at_ns[moved], joules[moved]
    if _void(series, at_ns, edges_ns) is not None:
        return Energy(None, why="stood_still" if often else "rarely")
    return Energy(np.diff(_straight(at_ns, joules, edges_ns)), "counter")


def _draws_nothing(series: DeviceSeries, at_ns: IntArray) -> npt.NDArray[np.bool_]:
    """Mask of the readings at which the device says that it draws no power."""
    power_w = series.values.get("power_w")
    if power_w is None:
        return np.zeros(len(at_ns), dtype=bool)
    return np.asarray(power_w[np.searchsorted(series.at_ns, at_ns)] == 0)


def _straight(at_ns: IntArray, joules: FloatArray, edges_ns: IntArray) -> FloatArray:
    """The counter at each edge; beyond the readings, by less than the distance of two, as it ran at the
    end."""
    place = np.clip(np.searchsorted(at_ns, edges_ns, side="right") - 1, 0, len(at_ns) - 2)
    slope = np.diff(joules) / np.diff(at_ns)
    return np.asarray(joules[place] + slope[place] * (edges_ns - at_ns[place]))


def _by_power(series: DeviceSeries, edges_ns: IntArray) -> Energy:
    known = _known(series, "power_w")
    if known is None:
        return Energy(None, why="no_power")
    at_ns, power_w = known
    if (why := _void(series, at_ns, edges_ns)) is not None:
        return Energy(None, why=why)
    inside = at_ns[(at_ns > edges_ns[0]) & (at_ns < edges_ns[-1])]
    knots_ns = np.union1d(inside, edges_ns)
    there_w = np.interp(knots_ns, at_ns, power_w)
    steps_j = (there_w[1:] + there_w[:-1]) / 2 * np.diff(knots_ns) / 1e9
    sums_j = np.concatenate(([0.0], np.cumsum(steps_j)))
    return Energy(np.diff(sums_j[np.searchsorted(knots_ns, edges_ns)]), "power")


def _known(series: DeviceSeries, name: Literal["energy_j", "power_w"]) -> tuple[IntArray, FloatArray] | None:
    """Instants and values of the readings that have one, no two of one instant; None: there are too few."""
    values = series.values.get(name)
    if values is None:
        return None
    there = np.isfinite(values)
    at_ns, first = np.unique(series.at_ns[there], return_index=True)
    return None if len(at_ns) < _FEWEST else (at_ns, values[there][first])


def _void(series: DeviceSeries, at_ns: IntArray, edges_ns: IntArray) -> Void | None:
    """Why readings at these instants do not tell the window; None: they do. A window may reach beyond them by
    the usual distance of two."""
    beyond_ns = np.median(np.diff(at_ns))
    start_ns, end_ns = int(edges_ns[0]), int(edges_ns[-1])
    if series.vanished_ns is not None and end_ns > at_ns[-1] + beyond_ns:
        return "vanished"
    if start_ns < at_ns[0] - beyond_ns or end_ns > at_ns[-1] + beyond_ns:
        return "not_covered"
    reach = slice(
        max(0, int(np.searchsorted(at_ns, start_ns, side="right")) - 1),
        int(np.searchsorted(at_ns, end_ns)) + 1,
    )
    gaps_ns = np.diff(at_ns[reach])
    return "gap" if len(gaps_ns) and gaps_ns.max() > MOST_GAP_S * 1e9 else None
