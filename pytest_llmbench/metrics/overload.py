"""Whether an open loop offered more than was served, or nearly as much, by the stamps of all requests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_llmbench.model.estimate import Estimate, EstimateKind
from pytest_llmbench.model.judgement import Overload
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import BLOCK, MISSING, Records
from pytest_llmbench.stats.backlog import SlotQueue
from pytest_llmbench.stats.queues.batching import (
    GOODPUT,
    TO_FIRST_OUTPUT,
    TO_THE_END,
    family_of,
    load_at_full_slots,
)
from pytest_llmbench.stats.queues.overload import Backing, Passage, backing

_METHOD = "overload: as long as this run"
FEWEST_REQUESTS = 100
"""Fewest requests of all runs of which it is said that the system was offered too much."""


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
    known = [load_at_full_slots(*run, offered_rps) for run in runs if run[1] is not None]
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
    return {name: _unbounded(name, metric, found) for name, metric in metrics.items()}


def _unbounded(name: str, metric: Estimate, found: Overload) -> Estimate:
    if family_of(name) not in found.unbounded or metric.point is None or name.endswith((".min", ".max")):
        return metric
    grows = metric.unit == "ms"
    lower = (metric.lower if metric.lower is not None else metric.point) if grows else None
    upper = None if grows else (metric.upper if metric.upper is not None else metric.point)
    return replace(metric, lower=lower, upper=upper, n_required=None, kind=EstimateKind.CRUDE, method=_METHOD)
