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
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.metrics import latency
from pytest_llmbench.metrics.chunking import differences
from pytest_llmbench.metrics.latency import early_ms, tpot_early_ms
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import IntColumn, Records, empty_slot_share
from pytest_llmbench.stats.counted import percentiles_of_counts, summed_counts
from pytest_llmbench.stats.percentiles import PERCENTILES, percentiles

FloatArray = npt.NDArray[np.float64]

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


def furthest(run: Observation, leeways: Leeways) -> tuple[str, Leeway, float] | None:
    """The percentile whose leeway is furthest beyond what the run's host limits allow, or else nearest to it:
    its name, its leeway, and what is allowed, in ms. None where the sample holds none."""
    held = [
        (name, leeways[name], max(run.host_limits.latency_ms, SHARE * leeways[name].seen))
        for name, q in _JUDGED.items()
        if name in leeways and leeways[name].n * (1 - q / 100) >= FEWEST_BEYOND
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


def ttft_leeways(runs: Sequence[Observation]) -> Leeways:
    """The leeways of TTFT, for several runs together."""
    if _in_time(runs):
        return {}
    off = _joined(runs, early_ms)
    return _moved(_joined(runs, latency.ttft_ms), -off, _lag_ms(runs))


def ttot_leeways(runs: Sequence[Observation]) -> Leeways:
    """The leeways of TTOT. Lag of the stamps affects both of its instants."""
    if _in_time(runs):
        return {}
    from pytest_llmbench.metrics.reasoning import ttot_early_ms, ttot_ms  # few tests have a reasoning phase

    return _moved(_joined(runs, ttot_ms), -_joined(runs, ttot_early_ms), 0.0)


def tpot_leeways(runs: Sequence[Observation]) -> Leeways:
    """The leeways of TPOT.

    The first token may have come earlier, so the same tokens may have taken longer.
    """
    if _in_time(runs):
        return {}
    return _moved(_joined(runs, latency.tpot_ms), _joined(runs, tpot_early_ms), 0.0)


def e2e_leeways(runs: Sequence[Observation]) -> Leeways:
    """The leeways of end-to-end latency.

    The last content has its own instant, unless reads are stamped in user space.
    """
    return _of_lag_alone(runs, latency.e2e_ms)


def request_latency_leeways(runs: Sequence[Observation]) -> Leeways:
    """The leeways of the latency to the last byte, which is as exact as the last content is."""
    return _of_lag_alone(runs, latency.request_latency_ms)


def request_ends(run: Observation, family: str) -> tuple[FloatArray, FloatArray] | None:
    """The lowest and the highest that the ``ttft``, ``tpot`` or ``e2e`` of each request may be, in ms; None
    for other families."""
    records, late = run.records, _lag_ms([run])
    if family == "ttft":
        seen = latency.ttft_ms(records)
        return seen - early_ms(records) - late, seen
    if family == "tpot":
        seen = latency.tpot_ms(records)
        return seen, seen + tpot_early_ms(records)
    if family == "e2e":
        seen = latency.e2e_ms(records)
        return seen - late, seen
    return None


def gap_leeways(runs: Sequence[Observation]) -> Leeways:
    """The leeways of the gaps between chunks, with percentiles to a thousandth of their value."""
    if _in_time(runs):
        return {}
    found = _Gaps()
    for run in runs:
        for block in run.records.blocks():
            found.add(block.select(block.ok))
    return found.leeways(_lag_ms(runs))


def rate_leeway(runs: Sequence[Observation], rate: float) -> Leeway:
    """The leeway of a rate.

    Full slots would have done up to 1 / (1 - share that they stood empty) as much.
    """
    empty = max((empty_slot_share(run.plan.load, run.records) for run in runs), default=0.0)
    n = sum(len(run.records) for run in runs)
    return Leeway(rate, n, 0.0, rate * empty / (1.0 - empty) if empty < 1.0 else 0.0)


def _of_lag_alone(runs: Sequence[Observation], measure: Callable[[Records], FloatArray]) -> Leeways:
    """The leeways of a latency whose last instant is that of its arrival: only lag of the stamps makes it too
    long."""
    late = _lag_ms(runs)
    if not late:
        return {}
    seen = _joined(runs, measure)
    return _moved(seen, np.zeros(len(seen)), late)


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


def _joined(runs: Sequence[Observation], measure: Callable[[Records], FloatArray]) -> FloatArray:
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
        """Add the gaps of successful requests."""
        for least, seen, most in _gap_ends(records):
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
        least, seen, most = ([_ms(at) for at in percentiles_of_counts(each, qs)] for each in self._counts)
        found = {
            name: Leeway(middle, n, middle - low + late, high - middle + late)
            for name, low, middle, high in zip(_QS, least, seen, most, strict=True)
        }
        # Gaps of a reply add up to its length, which only the instant of its first chunk can change.
        found["mean"] = Leeway(self._sum / n, n, 0.0, self._early / n)
        size = math.sqrt(self._squares / n) + late
        return found | {"std": Leeway(0.0, n, size, size)}


def _gap_ends(records: Records) -> Iterator[tuple[IntColumn, IntColumn, IntColumn]]:
    """(least, seen, most) of the gaps in nanoseconds; for requests that were read in time all three are
    equal."""
    late = records.unresolved_chunks > 0
    unhurried = records.select(~late)
    in_time, _ = differences(unhurried.chunk_ns, np.diff(unhurried.chunk_offsets))
    if len(in_time):
        yield in_time, in_time, in_time
    if late.any():
        yield _ends(records.select(late))


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


def _ms(place: float) -> float:
    return math.expm1(place / _PER_E) / _NS_PER_MS
