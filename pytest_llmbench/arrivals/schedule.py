"""The arrival schedule of an open loop: one array of offsets, drawn in one place before the run.

Everyone who sends takes its instants from this array; nobody draws again (several generators that each draw
a Poisson stream from one seed are not Poisson together). The first request comes one gap after the start, and
the array is never rescaled to end at count/rate: both would change the law of the process. Only a load of
stages with an end has so many requests within it, where it is the law given their number.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Callable, Iterator, Sequence
from itertools import islice, pairwise

import numpy as np
import numpy.typing as npt

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.plan import ARRIVALS, OpenLoop
from pytest_llmbench.registry import named, names


def gamma_gaps_s(rate: float, burstiness: float, count: int, seed: int) -> npt.NDArray[np.float64]:
    """``count`` inter-arrival times in seconds, gamma with shape k = ``burstiness`` and mean 1/``rate``.

    Coefficient of variation 1/√k: 1 is Poisson, below 1 is burstier (the draft's bursty arrivals), above 1
    is more regular. Exactly the first results of ``random.Random(seed).gammavariate(k, 1 / (k * rate))``.
    """
    draw = random.Random(seed).gammavariate
    scale = 1.0 / (burstiness * rate)
    return np.fromiter((draw(burstiness, scale) for _ in range(count)), dtype=np.float64, count=count)


def poisson_gaps_s(rate: float, count: int, seed: int) -> npt.NDArray[np.float64]:
    """``count`` inter-arrival times in seconds, exponential with mean 1/``rate`` (section 4.2).

    Exactly the first ``count`` results of ``random.Random(seed).expovariate(rate)``, so that anybody can
    rebuild the schedule with a Python interpreter alone.
    """
    draw = random.Random(seed).expovariate
    return np.fromiter((draw(rate) for _ in range(count)), dtype=np.float64, count=count)


def uniform_offsets_s(rate: float, count: int) -> npt.NDArray[np.float64]:
    """Arrival i comes (i + 1)/``rate`` seconds after the start. Computed by division, so nothing adds up."""
    return np.arange(1, count + 1, dtype=np.float64) / rate


ArrivalProcess = Callable[[float, int, int], "npt.ArrayLike | Iterator[float]"]
"""Rate in requests per second, number of requests and seed → the offset of each arrival from the start in
seconds, never decreasing, those of fewer requests first. An iterator may go on for ever."""
_LONGEST_S = 2**63 / 1e9
MOST_ARRIVALS = 100_000_000
"""The most arrivals of one schedule; its offsets take 800 MB."""


def schedule_ns(load: OpenLoop, count: int, seed: int) -> npt.NDArray[np.int64]:
    """Offsets of ``count`` arrivals from the start of the run, integer nanoseconds, never decreasing.

    ``seed`` is the seed of the schedule itself, see :func:`arrival_seed`. A shorter schedule of the same
    seed is the beginning of a longer one. Read-only. Raises SuiteError for values that define no schedule.
    """
    mistakes = _mistakes(load, count)
    if mistakes:
        raise SuiteError.from_mistakes(mistakes, where="arrival schedule")
    offsets_s = _offsets_s(load, count, seed)
    if count and not offsets_s[-1] < _LONGEST_S:
        raise SuiteError(
            f"{count} requests at {load.rate:g} req/s would take {offsets_s[-1]:.3g} s",
            where="arrival schedule",
            remedy="raise the rate or lower the number of requests",
        )
    offsets_ns = np.rint(offsets_s * 1e9).astype(np.int64)
    offsets_ns.setflags(write=False)
    return offsets_ns


def arrival_seed(workload_seed: int) -> int:
    """The seed of the schedule that goes with a workload seed.

    The first 48 bits of the SHA-256 of ``"arrivals:<workload seed>"``. The generator of the workload
    (appendix A.1.4) must not be drawn from by anything else, and two generators with the same seed would
    repeat each other's numbers, so that gaps and lengths were correlated.
    """
    digest = hashlib.sha256(f"arrivals:{workload_seed}".encode()).digest()
    return int.from_bytes(digest[:6], "big")


def schedule_sha256(offsets_ns: npt.NDArray[np.int64]) -> str:
    """Digest of a schedule: SHA-256 of its offsets as decimal nanoseconds, one to a line."""
    return hashlib.sha256("".join(f"{offset}\n" for offset in offsets_ns.tolist()).encode()).hexdigest()


def _offsets_s(load: OpenLoop, count: int, seed: int) -> npt.NDArray[np.float64]:
    if load.arrival == "trace":
        return np.asarray(load.offsets_ns[:count], dtype=np.float64) / 1e9
    if load.arrival == "uniform":
        return uniform_offsets_s(load.rate, count)
    if load.stages:
        from pytest_llmbench.arrivals.stages import gaps_needed, offsets_s  # few loads have stages

        needed = gaps_needed(load.stages, count)
        even = load.burstiness == 1.0
        gaps = poisson_gaps_s(1.0, needed, seed) if even else gamma_gaps_s(1.0, load.burstiness, needed, seed)
        return offsets_s(load.stages, gaps, count)
    if load.arrival == "gamma":
        return np.cumsum(gamma_gaps_s(load.rate, load.burstiness, count, seed))
    if load.arrival != "poisson":
        return _offsets_of_extra(load, count, seed)
    return np.cumsum(poisson_gaps_s(load.rate, count, seed))


def _offsets_of_extra(load: OpenLoop, count: int, seed: int) -> npt.NDArray[np.float64]:
    process: ArrivalProcess | None = named("arrivals", load.arrival)
    assert process is not None
    given = process(load.rate, count, seed)
    try:
        offsets_s = np.array(
            [*islice(given, count)] if isinstance(given, Iterator) else given, dtype=np.float64
        )
    except (TypeError, ValueError):
        offsets_s = np.empty(0)
    if offsets_s.shape != (count,) or not (np.diff(offsets_s, prepend=0.0) >= 0).all():
        raise SuiteError(
            f"{load.arrival} gives no {count} offsets that never decrease, none negative",
            where="arrival schedule",
            remedy="correct this arrival process, which is the suite's or an extra's",
        )
    return offsets_s


def _mistakes(load: OpenLoop, count: int) -> list[str]:
    found = []
    if not _is_positive(load.rate):
        found.append(f"rate is {load.rate!r}: give a positive number of requests per second")
    if load.arrival == "trace":
        found += _trace_mistakes(load.offsets_ns, count)
    elif load.stages:
        from pytest_llmbench.model.stages import requests_of

        whole = requests_of(load.stages)
        if whole is not None and isinstance(count, int) and count > whole:
            found.append(f"the stages end after {whole} requests, {count} are asked for")
    elif load.arrival not in ARRIVALS and load.arrival not in names("arrivals"):
        known = ", ".join((*ARRIVALS, *names("arrivals")))
        found.append(f"arrival is {load.arrival!r}: choose one of {known}")
    if (load.arrival == "gamma" or load.stages) and not _is_positive(load.burstiness):
        found.append(f"burstiness is {load.burstiness!r}: give a positive number, 1 is Poisson")
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        found.append(f"the number of requests is {count!r}: give a whole number, not negative")
    return found


def _trace_mistakes(offsets_ns: Sequence[int], count: int) -> list[str]:
    found = []
    if isinstance(count, int) and len(offsets_ns) < count:
        found.append(f"the trace has {len(offsets_ns)} arrivals, {count} are asked for")
    if any(later < earlier for earlier, later in pairwise(offsets_ns)) or (offsets_ns and offsets_ns[0] < 0):
        found.append("the arrivals of a trace are ascending offsets from its start, none negative")
    return found


def count_within(load: OpenLoop, duration_s: float, seed: int, first: int = 0) -> int:
    """Arrivals within ``duration_s`` of a load that takes up the schedule after its first ``first`` arrivals.

    ``seed`` as for :func:`schedule_ns`. Of a trace: as many as it has.
    """
    if load.arrival == "trace":
        offsets_ns = np.asarray(load.offsets_ns, dtype=np.int64)
        return _count_after(offsets_ns, duration_s, first)
    # Rates differ from their mean: draw some more than expected, and go on until the last one lies beyond.
    expected = load.rate * duration_s
    if not expected <= MOST_ARRIVALS:
        raise SuiteError(
            f"{load.rate:g} req/s for {duration_s:g} s are {expected:.3g} requests",
            where="arrival schedule",
            remedy=f"lower the rate or the duration: at most {MOST_ARRIVALS:,} requests are drawn",
        )
    more = max(16, math.ceil(expected * 1.1))
    while True:
        offsets_ns = schedule_ns(load, first + more, seed)
        count = _count_after(offsets_ns, duration_s, first)
        if count < more:
            return count
        more *= 2


def _count_after(offsets_ns: npt.NDArray[np.int64], duration_s: float, first: int) -> int:
    base_ns = int(offsets_ns[first - 1]) if first else 0
    return int(np.searchsorted(offsets_ns, base_ns + duration_s * 1e9, side="right")) - first


def _is_positive(value: object) -> bool:
    return (
        isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0
    )
