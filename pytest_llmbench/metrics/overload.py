"""Whether a system was offered more than it serves: its queue grows, and so does what requests wait.

What leaves a queue that is never empty says how fast the system serves, whatever comes in. So the time is cut
out in which the queue was long, a fifth at least of the longest that it was while requests were sent, up to
the end of the drain. There D requests were served in B. A run is overloaded if all of this holds:

- **Utilisation above one.** The offered rate λ, which is known, is more than D / B: the mean gap between
  services is longer than 1/λ, by Student's t over 16 slices of equally many services (one-sided, 90 %). The
  median slice is, too, so that a pause is no overload. Or λ exceeds what a batching server serves with all
  slots at work (:mod:`~pytest_llmbench.stats.batching`; one-sided, 99 %), of which each request with
  its tokens tells something, and not only those of the long queue.
- **The queue grew.** Requests waited the longer the later they were sent: of the slope of the wait over the
  instant of sending, which is λ B / D - 1 in a queue that takes requests in their order, a fifth at least
  is there for certain (one-sided, 99 %; 90 % where the load with all slots at work is above one). A system
  that takes all at once and is only slow has as many under way, and no such slope. Only requests sent before
  the first failed one have a wait.
- **Throughout.** The queue was long in 20 % at least of the time in which requests were sent.

A short run may end before its queue begins. Then the load with all slots at work is enough, where requests
took at least two thirds of the slots that the engine says.

The load at full slots takes the time per token as linear in the number under way. An engine that takes its
batches in wide steps, or whose steps reach a ceiling, seems to slow down more than it does: at 95 % load it
would be overloaded. So a straight line through the gaps between chunks, over the number that decodes, is
compared with one through the gaps of the busiest quarter, where both are at full slots. By as much as the
second is lower each gap is shorter than the load supposes. Gaps with a first output of another request count
in neither line, since prompts take from them.

How often it is right: docs/reference/statistics.md.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.model.estimate import Estimate, EstimateKind
from pytest_llmbench.model.judgement import Overload
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import BLOCK, MISSING, Records
from pytest_llmbench.stats.backlog import SlotQueue
from pytest_llmbench.stats.batching import (
    GOODPUT,
    TO_FIRST_OUTPUT,
    TO_THE_END,
    FullLoad,
    family_of,
    load_at_full_slots,
)
from pytest_llmbench.stats.runs import FloatArray, IntArray
from pytest_llmbench.stats.spectral import student_quantile
from pytest_llmbench.stats.stationarity import least_squares_slope

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
    slope = least_squares_slope((run.sent_ns[:before] - start_ns) / 1e9, waits)
    return _Run(np.diff(at[edges]) / np.diff(edges), share, *slope, before)


_METHOD = "overload: as long as this run"
FEWEST_REQUESTS = 100
"""Fewest requests of all runs of which it is said that the system was offered too much."""
_BUSIEST = 3 / 4
"""The share of the most under way from which on a gap between chunks is one of the busiest."""


def overload(
    runs: Sequence[tuple[Records, int | None]], offered_rps: float, good_by: Iterable[str] = ()
) -> Overload | None:
    """How much more was offered than served; ``None`` where that cannot be said.

    ``runs``: each with the slots of its server (:func:`with_slots`). ``good_by``: the latencies that decide
    whether a request is good. A queue before the first output makes every latency with a wait in it grow; one
    behind it only those to the end of the reply. Where all ended well, a load at full slots above one for
    certain is enough: the run ended before its queue began. Nothing is said of fewer than a hundred requests,
    whose queue may be a moment of a busy machine.
    """
    every = [records for records, _ in runs]
    if sum(map(len, every)) < FEWEST_REQUESTS:
        return None
    known = [_full_load(records, slots, offered_rps) for records, slots in runs if slots is not None]
    loads = [load for load in known if load is not None]
    loads = loads if len(loads) == len(runs) else []
    families = TO_FIRST_OUTPUT | TO_THE_END
    found = backing([*map(_to_first_output, every)], offered_rps, loads)
    if found is None:
        found = backing([*map(_to_the_end, every)], offered_rps, loads)
        families = families if found is None else TO_THE_END
    if found is None:
        outgrown = loads and all(each.in_reach and each.least > 1 for each in loads)
        if not outgrown or not all(run.ok.all() for run in every):
            return None
        found = Backing(offered_rps * len(loads) / math.fsum(each.load for each in loads), 0.0)
    lost = families | (GOODPUT if families.intersection(good_by) else frozenset())
    failed = sum(int(run.failed.sum()) for run in every)
    return Overload(offered_rps, found.served_rps, found.slope, failed, tuple(sorted(lost)))


def _full_load(records: Records, slots: int, offered_rps: float) -> FullLoad | None:
    """The load at full slots, by how the busiest gaps between chunks rise where that is less; ``None`` where
    it is not known, and where no gaps tell."""
    load = load_at_full_slots(records, slots, offered_rps)
    if load is None or load.least <= 1:
        return load
    gaps, took_s, per_request = _gaps_by_under_way(records)
    numbers = np.flatnonzero(gaps)
    if len(numbers) < 2:
        return None
    busiest = numbers >= min(_BUSIEST * numbers[-1], numbers[-2])
    every, least = (
        float(
            np.polyval(
                np.polyfit(chosen, took_s[chosen] / gaps[chosen], 1, w=np.sqrt(gaps[chosen])), load.slots
            )
        )
        for chosen in (numbers, numbers[busiest])
    )
    less = offered_rps * per_request * max(0.0, every - least) / load.slots
    return load._replace(load=load.load - less)


def _gaps_by_under_way(records: Records) -> tuple[FloatArray, FloatArray, float]:
    """For each number of requests that decode, how many gaps between chunks without a first output of another
    request there were, and how long they took together, in seconds; and the mean number of all gaps of a
    request."""
    well = records.ok & (records.first_content_ns != MISSING)
    begun, ended = np.sort(records.first_content_ns[well]), np.sort(records.finished_ns[well])
    gaps, took_s, every = np.zeros(len(begun) + 1), np.zeros(len(begun) + 1), 0
    for block in records.select(well).blocks():
        within = np.ones(max(0, len(block.chunk_ns) - 1), dtype=np.bool_)
        edges = block.chunk_offsets[1:-1]
        within[edges[(edges > 0) & (edges < len(block.chunk_ns))] - 1] = False
        before, after = block.chunk_ns[:-1][within], block.chunk_ns[1:][within]
        every += len(before)
        there = np.searchsorted(begun, before, "right")
        alone = np.searchsorted(begun, after, "right") == there
        under_way = (there - np.searchsorted(ended, before, "right"))[alone]
        gaps += np.bincount(under_way, minlength=len(gaps))
        took_s += np.bincount(under_way, weights=(after - before)[alone] / 1e9, minlength=len(gaps))
    return gaps, took_s, every / max(1, len(begun))


def _to_first_output(records: Records) -> Passage:
    begun = records.first_nonempty_ns != MISSING
    left_ns = np.where(begun, records.first_nonempty_ns, records.finished_ns)
    return _passage(records, left_ns, begun)


def _to_the_end(records: Records) -> Passage:
    passage = _passage(records, records.finished_ns, records.ok)
    if len(records) > BLOCK:
        return passage
    slots = SlotQueue.of(records.submitted_ns, records.finished_ns, records.ok).slots
    return passage._replace(slots=slots)


def _passage(records: Records, left_ns: np.ndarray, served: np.ndarray) -> Passage:
    """The passage of the requests that were sent. Whoever is cut by a user leaves as one who is served, and
    whoever was never seen to leave is there until the end."""
    known = records.dispatched_ns != MISSING
    order = np.flatnonzero(known)[np.argsort(records.dispatched_ns[known], kind="stable")]
    left_ns = np.where(left_ns == MISSING, left_ns.max(initial=0), left_ns)
    cut = records.has_outcome(Outcome.CUT_BY_USER)
    return Passage(
        records.dispatched_ns[order],
        np.maximum(left_ns, records.dispatched_ns)[order],
        (served | cut)[order],
        records.failed[order],
    )


def with_slots(run: Observation) -> tuple[Records, int | None]:
    """The requests of a run, and the slots of its engine; None where it does not say."""
    return run.records, None if run.engine is None else run.engine.max_num_seqs


def as_overloaded(metrics: Mapping[str, Estimate], found: Overload) -> dict[str, Estimate]:
    """The metrics, those that would grow with a longer run at least what they are in this one (goodput: at
    most)."""
    made = dict(metrics)
    for name, metric in metrics.items():
        if family_of(name) not in found.unbounded or metric.point is None or name.endswith((".min", ".max")):
            continue
        grows = metric.unit == "ms"
        lower = (metric.lower if metric.lower is not None else metric.point) if grows else None
        upper = None if grows else (metric.upper if metric.upper is not None else metric.point)
        kind = EstimateKind.CRUDE
        made[name] = replace(metric, lower=lower, upper=upper, n_required=None, kind=kind, method=_METHOD)
    return made
