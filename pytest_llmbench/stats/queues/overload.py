"""Whether a system was offered more than it serves: its queue grows, and so does what requests wait.

What leaves a queue that is never empty says how fast the system serves, whatever comes in. So the time is cut
out in which the queue was long, a fifth at least of the longest that it was while requests were sent, up to
the end of the drain. There D requests were served in B. A run is overloaded if all of this holds:

- **Utilisation above one.** The offered rate λ, which is known, is more than D / B: the mean gap between
  services is longer than 1/λ, by Student's t over 16 slices of equally many services (one-sided, 90 %). The
  median slice is, too, so that a pause is no overload. Or λ exceeds what a batching server serves with all
  slots at work (:mod:`~pytest_llmbench.stats.queues.batching`; one-sided, 99 %), of which each request with
  its tokens tells something, and not only those of the long queue.
- **The queue grew.** Requests waited the longer the later they were sent: of the slope of the wait over the
  instant of sending, which is λ B / D - 1 in a queue that takes requests in their order, a fifth at least
  is there for certain (one-sided, 99 %; 90 % where the load with all slots at work is above one). A system
  that takes all at once and is only slow has as many under way, and no such slope. Only requests sent before
  the first failed one have a wait.
- **Throughout.** The queue was long in 20 % at least of the time in which requests were sent.

A short run may end before its queue begins. Then the load with all slots at work is enough, where requests
took at least two thirds of the slots that the engine says (:mod:`~pytest_llmbench.metrics.overload`).

How often it is right: docs/reference/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.stats.growth import IntArray
from pytest_llmbench.stats.queues.batching import FullLoad
from pytest_llmbench.stats.runs import FloatArray
from pytest_llmbench.stats.spectral import student_quantile

_LONG = 0.2
"""The share of the longest queue from which on a queue is long."""
_SHORTEST = 4
"""The fewest waiting at the longest, below which nothing is said."""
_SLICES, _FEWEST_SLICES, _FEWEST_IN_SLICE = 16, 4, 2
_FEWEST_WAITS = 8
_LIKELY, _CERTAIN = 0.8, 0.98
"""Two-sided levels of the tests: 90 % and 99 % to one side."""
_LEAST_SLOPE = 0.2
_THROUGHOUT = 0.2


class Passage(NamedTuple):
    """The requests of one run on their way through a queue, in the order sent."""

    sent_ns: IntArray
    left_ns: IntArray
    """The instant at which each left the queue: it was served, or failed."""
    served: npt.NDArray[np.bool_]
    failed: npt.NDArray[np.bool_]
    slots: int = 0
    """How many of those in the queue are being served and do not wait."""


class Backing(NamedTuple):
    """How a queue backed up."""

    served_rps: float
    """Requests served per second while the queue was long."""
    slope: float
    """Seconds by which a request waits longer than one that was sent a second before."""


class _Run(NamedTuple):
    slices_s: FloatArray
    """The mean gap between services in each slice, in seconds."""
    long_share: float
    slope: float
    error: float
    """The standard error of the slope."""
    waits: int


def backing(
    runs: Sequence[Passage], offered_rps: float, full_loads: Sequence[FullLoad] = ()
) -> Backing | None:
    """How the queue backed up in runs at this rate; ``None`` where it cannot be said that it did.
    ``full_loads``: of the runs; none where they are not known."""
    found = [run for run in map(_of_run, runs) if run is not None]
    if not found or len(found) < len(runs):
        return None
    slices_s = np.concatenate([run.slices_s for run in found])
    mean_s, freedom = float(slices_s.mean()), len(slices_s) - 1
    beyond = mean_s * offered_rps
    error = float(slices_s.std(ddof=1)) / math.sqrt(len(slices_s)) / mean_s
    slower = math.log(beyond) >= student_quantile(freedom, _LIKELY) * error
    slower = slower and float(np.median(slices_s)) * offered_rps > 1
    loaded = bool(full_loads) and math.fsum(each.least for each in full_loads) >= len(full_loads)
    if not slower and not loaded:
        return None
    if not slower:
        beyond = max(beyond, math.fsum(each.load for each in full_loads) / len(full_loads))
    slope = math.fsum(run.slope for run in found) / len(found)
    if math.fsum(run.long_share for run in found) / len(found) < _THROUGHOUT:
        return None
    times = student_quantile(min(run.waits for run in found) - 2, _LIKELY if loaded else _CERTAIN)
    least = slope - times * math.hypot(*(run.error for run in found)) / len(found)
    return Backing(offered_rps / beyond, slope) if least >= _LEAST_SLOPE * (beyond - 1) else None


def _of_run(run: Passage) -> _Run | None:
    """The figures of one run; ``None`` where too few waited, were served, or were sent before one failed."""
    n = len(run.sent_ns)
    before = int(np.argmax(run.failed)) if run.failed.any() else n
    if before < _FEWEST_WAITS or run.sent_ns[-1] <= run.sent_ns[0]:
        return None
    start_ns = run.sent_ns[0]
    instants = np.concatenate((run.sent_ns, run.left_ns)) - start_ns
    order = np.argsort(instants, kind="stable")
    instants = instants[order] / 1e9
    waiting = np.cumsum(np.where(order < n, 1, -1)) - run.slots
    sending = instants[1:] <= (run.sent_ns[-1] - start_ns) / 1e9
    longest = int(waiting[:-1][sending].max(initial=0))
    if longest < _SHORTEST:
        return None
    long = waiting[:-1] >= max(1.0, _LONG * longest)
    lasting = np.diff(instants) * long
    served = np.concatenate((np.zeros(n, dtype=np.bool_), run.served))[order][1:]
    # Time runs only while the queue is long.
    at = np.cumsum(lasting)[served & long]
    slices = min(_SLICES, (len(at) - 1) // _FEWEST_IN_SLICE)
    if slices < _FEWEST_SLICES:
        return None
    edges = np.linspace(0, len(at) - 1, slices + 1).astype(np.int64)
    share = float(lasting[sending].sum()) / instants[1:][sending][-1]
    waits = (run.left_ns - run.sent_ns)[:before] / 1e9
    slope = _slope(run.sent_ns[:before] - start_ns, waits)
    return _Run(np.diff(at[edges]) / np.diff(edges), share, *slope, before)


def _slope(sent_ns: IntArray, waits_s: FloatArray) -> tuple[float, float]:
    """The least-squares slope of waits over the instants of sending, and its standard error."""
    sent_s = sent_ns / 1e9
    around = sent_s - sent_s.mean()
    squares = float(around @ around)
    if squares == 0.0:
        return 0.0, math.inf
    slope = float(around @ waits_s) / squares
    rest = waits_s - waits_s.mean() - slope * around
    return slope, math.sqrt(float(rest @ rest) / (len(waits_s) - 2) / squares)
