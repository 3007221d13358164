"""Measurement uncertainty: how far the measuring machine may have put the figures off, by the stamps of the
records themselves.

Each sample is known between two ends. A chunk that was read late together with later ones came somewhere
between the read before it and its stamp; all other stamps of the kernel are the instants of arrival. A
statistic of the lowest ends and the same statistic of the highest ends bracket the true one, since every
statistic here grows with its samples. Where reads are stamped in user space, every stamp may be late by as
much as the loop was.

In a closed loop a slot that is filled late stands empty meanwhile: the load was that of fewer slots.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from pytest_llmbench.metrics import latency
from pytest_llmbench.metrics.chunking import differences
from pytest_llmbench.metrics.latency import Measure, early_ms, tpot_early_ms
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import IntColumn, Records, empty_slot_share
from pytest_llmbench.stats.counted import percentiles_of_counts, summed_counts
from pytest_llmbench.stats.latencies import SPANS
from pytest_llmbench.stats.percentiles import PERCENTILES, percentiles
from pytest_llmbench.stats.runs import FloatArray

_QS: Mapping[str, float] = {**PERCENTILES, "min": 0.0, "max": 100.0}
TIMER_MS = 1.0
"""The part of the loop's lag, in ms, that is the rounding of its timers."""
_PER_E = 1000
"""Number of classes of gaps per factor of e, so that a class spans a thousandth: 23,000 of them reach 10
s."""
_NS_PER_MS = 1e6


class Leeway(NamedTuple):
    """How far a statistic may be too low or too high, in its unit. Neither end is below 0."""

    seen: float
    n: int
    """Number of samples."""
    too_high_by: float = 0.0
    too_low_by: float = 0.0

    @property
    def most(self) -> float:
        return max(self.too_high_by, self.too_low_by)


SHARE = 0.1
"""The largest relative uncertainty of a latency; the milliseconds of the run's ``HostLimits`` are allowed if
they are more."""
FEWEST_BEYOND = 3
"""Fewest samples beyond a percentile for it to be judged here."""
_JUDGED = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0}


Leeways = Mapping[str, Leeway]
"""Statistic → leeway: ``p50`` … ``p99_9``, ``min``, ``max``, ``mean``, ``std``. Empty where samples are
exact."""


def is_exact(run: Observation) -> bool:
    """Whether every instant that is part of a figure is that of the arrival, and no slot was left empty."""
    return _in_time([run]) and not empty_slot_share(run.plan.load, run.records)


def furthest(run: Observation, family: str) -> tuple[str, Leeway, float] | None:
    """The percentile of a family whose leeway is furthest beyond what the run's host limits allow, or else
    nearest to it: its name, its leeway, and what is allowed, in ms. None where the sample holds none."""
    known = leeways(family, [run]) or {}
    held = [
        (name, known[name], max(run.host_limits.latency_ms, SHARE * known[name].seen))
        for name, q in _JUDGED.items()
        if name in known and known[name].n * (1 - q / 100) >= FEWEST_BEYOND
    ]
    return max(held, key=lambda each: each[1].most / each[2]) if held else None


def user_space_lag_ms(run: Observation) -> float:
    """How many ms stamps of this run may be late at P99 because they were taken at the read; 0 for the
    kernel's.

    What the loop's timers round is not counted.
    """
    check = run.selfcheck
    if not check.stamped_by_reading or check.loop_lag_p99_ns is None:
        return 0.0
    return max(0.0, check.loop_lag_p99_ns / _NS_PER_MS - TIMER_MS)


class _Leeway(NamedTuple):
    """What may be wrong with a latency."""

    measure: Measure
    moved_ms: Measure | None = None
    """How far a late read of the first token may have moved each sample, in ms; None: it does not."""
    lagged: bool = True
    """Whether the lag of stamps that are taken in user space makes it too long: not where both of its
    instants have it."""


_TTFT = _Leeway(latency.ttft_ms, lambda records: -early_ms(SPANS["ttft"], records))
_LATENCIES = {
    "ttft": _TTFT,
    "ttft_scheduled": _TTFT,
    "ttft_any": _TTFT,
    "ttfo": _TTFT,
    "ttot": _Leeway(latency.ttot_ms, lambda records: -early_ms(latency.TTOT, records), lagged=False),
    # The first token may have come earlier, so the same tokens may have taken longer.
    "tpot": _Leeway(latency.tpot_ms, tpot_early_ms, lagged=False),
    "e2e": _Leeway(latency.e2e_ms),
    "e2e_scheduled": _Leeway(latency.e2e_ms),
    "latency": _Leeway(latency.request_latency_ms),
    "latency_scheduled": _Leeway(latency.request_latency_ms),
}
"""Family → what may be wrong with it. The scheduled families begin at an instant that is known exactly."""
_GAPS = ("itl", "output_itl")


def leeways(family: str, runs: Sequence[Observation]) -> Leeways | None:
    """The leeways of a family over several runs together; None for a family of which they are not known.

    Those of gaps between chunks (``itl``) have percentiles to a thousandth of their value.
    """
    if family not in (*_LATENCIES, *_GAPS):
        return None
    if _in_time(runs):
        return {}
    late = _lag_ms(runs)
    if family in _GAPS:
        found = _Gaps()
        for run in runs:
            for block in run.records.blocks():
                found.add(block.select(block.ok))
        return found.leeways(late)
    of = _LATENCIES[family]
    seen = _joined(runs, of.measure)
    by = np.zeros(len(seen)) if of.moved_ms is None else _joined(runs, of.moved_ms)
    return _moved(seen, by, late if of.lagged else 0.0)


def request_ends(run: Observation, family: str) -> tuple[FloatArray, FloatArray] | None:
    """The lowest and the highest that the ``ttft``, ``tpot`` or ``e2e`` of each request may be, in ms; None
    for other families."""
    if family not in ("ttft", "tpot", "e2e"):
        return None
    of = _LATENCIES[family]
    seen = of.measure(run.records)
    by = np.zeros(len(seen)) if of.moved_ms is None else of.moved_ms(run.records)
    return seen + by.clip(max=0.0) - (_lag_ms([run]) if of.lagged else 0.0), seen + by.clip(0.0)


def rate_leeway(runs: Sequence[Observation], rate: float) -> Leeway:
    """The leeway of a rate.

    Full slots would have done up to 1 / (1 - share that they stood empty) as much.
    """
    empty = max((empty_slot_share(run.plan.load, run.records) for run in runs), default=0.0)
    n = sum(len(run.records) for run in runs)
    return Leeway(rate, n, 0.0, rate * empty / (1.0 - empty) if empty < 1.0 else 0.0)


def _moved(seen: FloatArray, by: FloatArray, late: float) -> Leeways:
    """The leeways of samples that may each be off by up to ``by``, all to one side, and all be too high by
    ``late``."""
    if not len(seen) or not (late or by.any()):
        return {}
    qs = tuple(_QS.values())
    at, moved = percentiles(seen, qs), percentiles(seen + by, qs)
    sides = {
        name: (one, other - one) for name, one, other in zip(_QS, at.tolist(), moved.tolist(), strict=True)
    }
    sides["mean"] = float(seen.mean()), float(by.mean())
    n = len(seen)
    found = {
        name: Leeway(one, n, max(0.0, -side) + late, max(0.0, side)) for name, (one, side) in sides.items()
    }
    # The standard deviation is a seminorm: it moves by no more than the size of what is added.
    size = float(np.sqrt(np.mean(by**2))) + late
    return found | {"std": Leeway(float(seen.std()), n, size, size)}


def _in_time(runs: Sequence[Observation]) -> bool:
    """Whether every chunk has the instant of its own arrival."""
    return not _lag_ms(runs) and not any((run.records.unresolved_chunks > 0).any() for run in runs)


def _joined(runs: Sequence[Observation], measure: Measure) -> FloatArray:
    return np.concatenate([np.empty(0), *(measure(run.records) for run in runs)])


def _lag_ms(runs: Sequence[Observation]) -> float:
    return max(map(user_space_lag_ms, runs), default=0.0)


class _Gaps:
    """Gaps as seen, and at their least and most, each counted by class."""

    def __init__(self) -> None:
        self._counts = [np.zeros(0, dtype=np.int64) for _ in range(3)]
        self._n = 0
        self._sum = self._squares = self._early = 0.0

    def add(self, records: Records) -> None:
        """Add the gaps of successful requests; of those that were read in time all three are equal."""
        late = records.unresolved_chunks > 0
        unhurried = records.select(~late)
        in_time, _ = differences(unhurried.chunk_ns, np.diff(unhurried.chunk_offsets))
        for least, seen, most in ((in_time, in_time, in_time), _ends(records.select(late))):
            for place, values in enumerate((least, seen, most)):
                counts: IntColumn = np.bincount((np.log1p(values) * _PER_E).astype(np.int64))
                self._counts[place] = summed_counts(self._counts[place], counts)
            self._n += len(seen)
            self._sum += float(seen.sum()) / _NS_PER_MS
            self._squares += float(np.square(np.maximum(most - seen, seen - least) / _NS_PER_MS).sum())
        self._early += float(records.first_content_early_ns.clip(0).sum()) / _NS_PER_MS

    def leeways(self, late: float) -> Leeways:
        """The leeways of the gaps. ``late``: how many ms either end of a gap may be late."""
        if not self._n:
            return {}
        qs, n = tuple(_QS.values()), self._n
        least, seen, most = (
            [math.expm1(at / _PER_E) / _NS_PER_MS for at in percentiles_of_counts(each, qs)]
            for each in self._counts
        )
        found = {
            name: Leeway(middle, n, middle - low + late, high - middle + late)
            for name, low, middle, high in zip(_QS, least, seen, most, strict=True)
        }
        # Gaps of a reply add up to its length, which only the instant of its first chunk can change.
        found["mean"] = Leeway(self._sum / n, n, 0.0, self._early / n)
        size = math.sqrt(self._squares / n) + late
        return found | {"std": Leeway(0.0, n, size, size)}


def _ends(records: Records) -> tuple[IntColumn, IntColumn, IntColumn]:
    """(least, seen, most) of the gaps in nanoseconds. The chunks of one instant share the time G since the
    chunk before them: of k gaps that add up to G the j-th largest is at most G / j, and the largest at least
    G / k. At the beginning of a reply they share what its first chunk may be early by, or less."""
    gaps, per_request = differences(records.chunk_ns, np.diff(records.chunk_offsets))
    if not len(gaps):
        return gaps, gaps, gaps
    first = np.zeros(len(gaps), dtype=bool)
    first[(np.cumsum(per_request) - per_request)[per_request > 0]] = True
    early_ns = np.repeat(records.first_content_early_ns.clip(0), per_request)
    begins = np.flatnonzero(first | (gaps > 0))
    sizes = np.diff(begins, append=len(gaps))
    group = np.repeat(np.arange(len(begins)), sizes)
    shared = np.where(gaps > 0, gaps, early_ns)[begins]
    place = np.arange(len(gaps)) - begins[group]
    least = np.where((place == 0) & (gaps > 0), (shared // sizes)[group], 0)
    return least, gaps, shared[group] // (place + 1)
