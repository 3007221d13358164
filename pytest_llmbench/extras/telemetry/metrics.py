"""The metrics of the machine during a load, over the window of the throughput.

Energy of a device over a window of time, from the readings of its counter, or of its power.

A counter is known at its readings and runs straight between them. A counter that shows one value for a while
was not updated, unless its device says that it draws nothing: it is known where it moves alone. Power is
taken to run straight between two readings. Without a reading for :data:`MOST_GAP_S`, nothing is known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal

import numpy as np
import numpy.typing as npt

from pytest_llmbench.metrics.definitions import Direction, MetricDefinition, Unit
from pytest_llmbench.metrics.ratios import ratio_estimate
from pytest_llmbench.metrics.throughput import SLICES, Window, output_tokens_per_slice
from pytest_llmbench.model.estimate import Estimate, EstimateKind, Reason
from pytest_llmbench.model.telemetry import DeviceSeries, Kind, Quantity, Telemetry
from pytest_llmbench.stats.ratios import ratio_of

GIB = 2**30
_LEVEL = 0.95
_S_PER_HOUR = 3600.0
_MEMORY_OF: tuple[Kind, ...] = ("gpu", "process", "node")


def _row(name: str, title: str, unit: Unit, better: Direction, formula: str) -> MetricDefinition:
    return MetricDefinition(name, title, unit, better, formula, "telemetry", of_machine=True)


ENERGY_PER_OUTPUT_TOKEN = _row(
    "energy_per_output_token", "Energy per output token", "J", "lower",
    "energy / output tokens, both in the window of the throughput",
)  # fmt: skip
ENERGY_PER_REQUEST = _row(
    "energy_per_request", "Energy per request", "J", "lower",
    "energy / completed requests, both in the window of the throughput",
)  # fmt: skip
MEAN_POWER = _row("mean_power", "Mean power", "W", "lower", "energy of all devices / duration, in the window")
TOKENS_PER_JOULE = _row(
    "tokens_per_joule", "Output tokens per joule", "tokens", "higher", "output tokens / energy, in the window"
)
TOKENS_PER_DOLLAR = _row(
    "tokens_per_dollar", "Output tokens per dollar", "tokens", "higher",
    "output tokens / (hours x price of an hour), in the window; in the currency of [prices]",
)  # fmt: skip
GPU_UTILISATION = _row(
    "gpu_utilisation", "GPU utilisation", "ratio", "higher", "mean over accelerators and readings"
)
PEAK_MEMORY = _row(
    "peak_memory", "Peak memory", "GiB", "lower", "sum over the accelerators of the most memory in use"
)


@dataclass(frozen=True)
class Stretch:
    """The window of one run, with what its machine told."""

    window: Window
    telemetry: Telemetry | None
    slices: int
    """Number of the equal parts that the window is cut into."""

    @classmethod
    def all_of(cls, windows: Sequence[tuple[Window, Telemetry | None]]) -> tuple[Stretch, ...]:
        """The stretches of some runs; a slice is no shorter than the time between two readings."""
        found = []
        for window, telemetry in windows:
            interval_s = 1.0 if telemetry is None else telemetry.interval_s
            most = SLICES // len(windows)
            own = int(np.clip(window.duration_s / interval_s, 1, most))
            found.append(cls(window, telemetry, own))
        return tuple(found)

    @property
    def edges_ns(self) -> IntArray:
        return np.linspace(self.window.start_ns, self.window.end_ns, self.slices + 1).astype(np.int64)

    @cached_property
    def energies(self) -> Mapping[str, tuple[DeviceSeries, Energy]]:
        """Id of a device that tells power or energy → its series and energy; accelerators that tell neither
        are there too, since without them a sum lacks a part."""
        found = {each.id: (each, energy(each, self.edges_ns)) for each in self.devices}
        return {
            name: (series, own)
            for name, (series, own) in found.items()
            if series.kind == "gpu" or own.why != "no_power"
        }

    @property
    def joules(self) -> FloatArray | None:
        """The energy of all devices in each slice; None: of one it is not known, or there is none.

        What is within another device is counted with that.
        """
        every = self.energies
        parts = [own.joules for series, own in every.values() if series.within not in every]
        known = [part for part in parts if part is not None]
        return np.sum(known, axis=0) if parts and len(known) == len(parts) else None

    def inside(self, series: DeviceSeries, quantity: Quantity) -> FloatArray:
        """The readings of a quantity in the window; empty where there are none."""
        values = series.values.get(quantity)
        if values is None:
            return np.empty(0)
        inside = (series.at_ns >= self.window.start_ns) & (series.at_ns <= self.window.end_ns)
        return np.asarray(values[inside & np.isfinite(values)])

    @property
    def devices(self) -> tuple[DeviceSeries, ...]:
        return () if self.telemetry is None else self.telemetry.devices


def machine_metrics(stretches: Sequence[Stretch], *, seed: int) -> dict[str, Estimate]:
    """The metrics of some runs together. Those of power are undefined where that of a device is not known."""
    found = _of_energy(stretches, seed) | _of_price(stretches, seed)
    shares = [
        own
        for each in stretches
        for series in each.devices
        if series.kind == "gpu" and len(own := each.inside(series, "utilisation"))
    ]
    if shares:
        ones = list(map(np.ones_like, shares))
        found[GPU_UTILISATION.name] = _ratio(GPU_UTILISATION, shares, ones, seed)
    return found | _memory(stretches)


def _of_energy(stretches: Sequence[Stretch], seed: int) -> dict[str, Estimate]:
    joules = [each.joules for each in stretches]
    known = [each for each in joules if each is not None]
    if not known or len(known) < len(joules):
        why = "the energy of a device is unknown" if any(each.energies for each in stretches) else "no power"
        return {row.name: _unknown(row, why) for row in _ENERGY}
    n = sum(int(each.window.records.ok.sum()) for each in stretches)
    seconds = [np.full(each.slices, each.window.duration_s / each.slices) for each in stretches]
    found = {MEAN_POWER.name: _ratio(MEAN_POWER, known, seconds, seed, n)}
    if min(float(each.min()) for each in known) <= 0:  # idle devices that take nothing: no slice for itself
        known = [np.array([each.sum()]) for each in known]
        stretches = [replace(each, slices=1) for each in stretches]
    if min(float(each.sum()) for each in known) <= 0:
        return found | {row.name: _unknown(row, "no energy was taken") for row in _ENERGY[1:]}
    ended = [(each.window.records, each.edges_ns) for each in stretches]
    requests = [
        np.histogram(records.finished_ns[records.ok], edges_ns)[0].astype(np.float64)
        for records, edges_ns in ended
    ]
    per_joule = _ratio(ENERGY_PER_REQUEST, requests, known, seed, n)
    found[ENERGY_PER_REQUEST.name] = _inverse(ENERGY_PER_REQUEST, per_joule)
    tokens = _tokens(stretches)
    if tokens is None:
        rows = (ENERGY_PER_OUTPUT_TOKEN, TOKENS_PER_JOULE)
        return found | {row.name: _unknown(row, "a successful request has no token count") for row in rows}
    per_joule = _ratio(TOKENS_PER_JOULE, tokens, known, seed, n)
    inverse = _inverse(ENERGY_PER_OUTPUT_TOKEN, per_joule)
    return found | {TOKENS_PER_JOULE.name: per_joule, ENERGY_PER_OUTPUT_TOKEN.name: inverse}


_ENERGY = (MEAN_POWER, ENERGY_PER_OUTPUT_TOKEN, ENERGY_PER_REQUEST, TOKENS_PER_JOULE)


def _of_price(stretches: Sequence[Stretch], seed: int) -> dict[str, Estimate]:
    prices = [None if each.telemetry is None else each.telemetry.price_per_hour for each in stretches]
    if not prices or None in prices:
        return {}
    tokens = _tokens(stretches)
    if tokens is None:
        why = "a successful request has no token count"
        return {TOKENS_PER_DOLLAR.name: _unknown(TOKENS_PER_DOLLAR, why)}
    cost = [
        np.full(each.slices, (price or 0.0) * each.window.duration_s / each.slices / _S_PER_HOUR)
        for each, price in zip(stretches, prices, strict=True)
    ]
    return {TOKENS_PER_DOLLAR.name: _ratio(TOKENS_PER_DOLLAR, tokens, cost, seed)}


def _memory(stretches: Sequence[Stretch]) -> dict[str, Estimate]:
    """The most memory in use, of the accelerators; without any of the processes of the system, or the
    host."""
    for kind in _MEMORY_OF:
        by_run = [
            [
                own
                for series in each.devices
                if series.kind == kind and len(own := each.inside(series, "memory_bytes"))
            ]
            for each in stretches
        ]
        if by_run and all(by_run):
            most = max(sum(float(own.max()) for own in run) for run in by_run) / GIB
            readings = sum(len(own) for run in by_run for own in run)
            method = f"greatest reading, kind {kind}"
            kind_of = EstimateKind.OBSERVED
            return {
                PEAK_MEMORY.name: Estimate(most, None, None, _LEVEL, readings, method, "GiB", kind=kind_of)
            }
    return {}


def _tokens(stretches: Sequence[Stretch]) -> list[FloatArray] | None:
    """The output tokens in each slice; None: of a reply they are not known."""
    found = [output_tokens_per_slice(each.window, each.slices) for each in stretches]
    known = [each for each in found if each is not None]
    return known if len(known) == len(found) else None


def _ratio(
    row: MetricDefinition,
    tops: Sequence[FloatArray],
    bottoms: Sequence[FloatArray],
    seed: int,
    requests: int = 0,
) -> Estimate:
    """Σ top / Σ bottom over slices of time. ``requests``: how many took part; 0: none is in it."""
    if sum(float(each.sum()) for each in bottoms) <= 0:
        return _unknown(row, "nothing was measured")
    slices = sum(map(len, tops))
    found = ratio_of(tops, bottoms, seed=seed)
    what = f"ratio of sums over {slices} time slices"
    return ratio_estimate(found, slices, requests or slices, what, unit=row.unit)


def _inverse(row: MetricDefinition, other: Estimate) -> Estimate:
    """1 / an estimate; where that is zero, or may be, there is none, or no upper end."""
    if not other.point:
        return _unknown(row, "nothing was completed in the window", Reason.NO_SAMPLES)
    lower = None if other.upper is None else 1 / other.upper
    upper = None if not other.lower else 1 / other.lower
    return replace(other, point=1 / other.point, lower=lower, upper=upper, unit=row.unit)


def _unknown(row: MetricDefinition, why: str, reason: Reason = Reason.NOT_MEASURABLE) -> Estimate:
    return Estimate.undefined(unit=row.unit, method=why, reason=reason)


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
    moving, power_w = grown > 0, series.values.get("power_w")
    if power_w is not None:  # it stands still rightly where the device says that it draws no power
        moving |= power_w[np.searchsorted(series.at_ns, at_ns[1:])] == 0
    moved = np.concatenate(([True], moving))
    if len(moved) > _FEWEST and not moved[1:].any():
        return Energy(None, why="stood_still")
    often = bool((np.diff(at_ns[moved]) <= MOST_GAP_S * 1e9).all())
    moved[-1] = True
    if (why := _void(series, at_ns, edges_ns)) is not None:
        return Energy(None, why=why)
    at_ns, joules = at_ns[moved], joules[moved]
    if _void(series, at_ns, edges_ns) is not None:
        return Energy(None, why="stood_still" if often else "rarely")
    # Beyond the readings, by less than the distance of two, it runs as it ran at the end.
    place = np.clip(np.searchsorted(at_ns, edges_ns, side="right") - 1, 0, len(at_ns) - 2)
    slope = np.diff(joules) / np.diff(at_ns)
    return Energy(np.diff(joules[place] + slope[place] * (edges_ns - at_ns[place])), "counter")


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
