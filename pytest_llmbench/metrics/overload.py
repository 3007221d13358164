"""Whether an open loop offered more than was served, or nearly as much, by the stamps of all requests."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from pytest_llmbench.metrics.latency import WAITING
from pytest_llmbench.metrics.summary import PERCENTILES
from pytest_llmbench.model.estimate import Estimate, EstimateKind
from pytest_llmbench.model.judgement import Overload
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import Quantity
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import BLOCK, MISSING, Records
from pytest_llmbench.stats.backlog import FEWEST, SlotQueue
from pytest_llmbench.stats.queues.batching import ENOUGH, FullLoad, SlotWait, full_load, shortfall
from pytest_llmbench.stats.queues.overload import Passage, backing

TO_THE_END = frozenset({"e2e", "e2e_scheduled", "latency", "latency_scheduled"})
"""Families whose latency goes on to the end of the reply."""
TO_FIRST_OUTPUT = (WAITING - TO_THE_END) | {"ttfo", "ttft_reasoning", "ttft_queue_wait", "ttft_outside"}
"""Families whose latency ends with the first output, and may hold a wait for a slot."""
SLOWED = TO_FIRST_OUTPUT | TO_THE_END | {"tpot", "itl"}
"""Families of latencies that grow with the number of requests under way."""
GOODPUT = frozenset({"goodput_share", "goodput", "output_token_goodput"})
_MOST_TIMES = 16
"""The largest factor by which more requests are recommended."""
_METHOD = "overload: as long as this run"


FEWEST_REQUESTS = 100
"""Fewest requests of all runs of which it is said that the system was offered too much."""


def overload(runs: Sequence[Records], offered_rps: float, good_by: Iterable[str] = ()) -> Overload | None:
    """How much more was offered than served; ``None`` where that cannot be said.

    ``good_by``: the latencies that decide whether a request is good. A queue before the first output makes
    every latency with a wait in it grow; one behind it only those to the end of the reply. Nothing is said of
    fewer than a hundred requests, whose queue may be a moment of a busy machine.
    """
    if sum(map(len, runs)) < FEWEST_REQUESTS:
        return None
    queues = (
        (_to_first_output, TO_FIRST_OUTPUT | TO_THE_END),
        (_to_the_end, TO_THE_END),
    )
    for passage, families in queues:
        found = backing([passage(run) for run in runs], offered_rps) if runs else None
        if found is not None:
            lost = families | (GOODPUT if families.intersection(good_by) else frozenset())
            failed = sum(int(run.failed.sum()) for run in runs)
            return Overload(offered_rps, found.served_rps, found.slope, failed, tuple(sorted(lost)))
    return None


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


def load_at_full_slots(run: Observation, rate: float) -> FullLoad | None:
    """The load of a server whose requests slow each other down; ``None`` where they do not, and where that is
    not known."""
    records = run.records
    known = records.ok & (records.first_content_ns != MISSING) & (records.output_tokens != MISSING)
    if len(records) > BLOCK or not known.any():
        return None
    there = np.flatnonzero(known)[np.argsort(records.submitted_ns[known], kind="stable")]
    slots = None if run.engine is None else run.engine.max_num_seqs
    return full_load(
        records.submitted_ns[there],
        records.first_content_ns[there],
        records.finished_ns[there],
        records.output_tokens[there],
        rate,
        slots,
    )


def idle_share(run: Observation) -> float:
    """W / D of a run: the mean time of its replies over the time of sending; 0 of fewer than two requests."""
    records = run.records
    sent_ns = records.submitted_ns[records.submitted_ns != MISSING]
    took_ns = (records.finished_ns - records.submitted_ns)[records.ok]
    if len(sent_ns) < 2 or not len(took_ns) or sent_ns.max() == sent_ns.min():
        return 0.0
    return float(took_ns.mean()) / float(sent_ns.max() - sent_ns.min())


def as_busy(
    metrics: Mapping[str, Estimate],
    loads: Sequence[FullLoad],
    limits_ms: Sequence[tuple[Quantity, float]],
    idle: float,
) -> dict[str, Estimate]:
    """The metrics of runs at these loads, empty where one is not known. Upper ends of latencies allow for the
    idle beginning and end of the runs, and for waits that the runs may not have seen; so do the lower ends of
    goodput. Where the runs span fewer than ten relaxation times, ends are open that a queue might move: the
    upper ones of means and of percentiles beyond the median, the lower ones of goodput.

    ``limits_ms``: those of a good request. ``idle``: the largest W / D of the runs (:func:`idle_share`).
    """
    families = TO_FIRST_OUTPUT | TO_THE_END
    waiting = [(family, limit_ms) for family, limit_ms in limits_ms if family in families]
    less = shortfall(loads, idle)
    lasting = {name: _as_of_a_lasting_load(name, metrics, loads, waiting, less) for name in metrics}
    requests, times = sum(each.requests for each in loads), sum(each.relaxation_times for each in loads)
    if requests < FEWEST or times >= ENOUGH:
        return lasting
    moved = families | (GOODPUT if waiting else frozenset())
    longer = min(ENOUGH / times, _MOST_TIMES) if times > 0 else _MOST_TIMES
    return {
        name: _opened(metric, longer)
        if _family(name) in moved and not name.endswith((".p50", ".min", ".max"))
        else metric
        for name, metric in lasting.items()
    }


def _as_of_a_lasting_load(
    name: str,
    metrics: Mapping[str, Estimate],
    loads: Sequence[FullLoad],
    limits_ms: Sequence[tuple[str, float]],
    less: float,
) -> Estimate:
    metric, family = metrics[name], _family(name)
    waits = [each.wait for each in loads if each.wait is not None]
    wait = max(waits, key=lambda each: each.share) if len(waits) == len(loads) > 0 else None
    if family in GOODPUT and metric.lower is not None and wait is not None:
        lost = max((wait.unseen * wait.longer_than(limit_ms) for _, limit_ms in limits_ms), default=0.0)
        return replace(metric, lower=metric.lower * (1 - lost))
    if family not in SLOWED or metric.upper is None or metric.point is None:
        return metric
    upper = metric.upper * (1 + (less / 2 if family in TO_FIRST_OUTPUT else less))
    if wait is not None and family in TO_FIRST_OUTPUT | TO_THE_END:
        upper = _with_wait(upper, name, metrics, wait)
    return replace(metric, upper=upper if math.isfinite(upper) else None)


def _with_wait(upper: float, name: str, metrics: Mapping[str, Estimate], wait: SlotWait) -> float:
    """An upper end of latencies of which some may wait for a slot as long as this. A percentile lies at most
    its wait above what 90 % keep without one, taken from the sample."""
    stem, _, statistic = name.rpartition(".")
    if statistic == "mean":
        return upper + wait.unseen * wait.mean_ms
    q = PERCENTILES.get(statistic)
    usual = metrics.get(f"{stem}.p90", metrics[name])
    if q is None or usual.point is None:
        return upper
    longest = wait.percentile_ms(q)
    return max(upper, usual.point + longest) if longest > 0 else upper


def _family(name: str) -> str:
    return name.partition("[")[0].partition(".")[0]


def _opened(metric: Estimate, longer: float) -> Estimate:
    required = math.ceil(longer * metric.n)
    if metric.unit == "ms":
        return replace(metric, upper=None, n_required=required, kind=EstimateKind.SAMPLE)
    return replace(metric, lower=None, n_required=required, kind=EstimateKind.SAMPLE)


def as_overloaded(metrics: Mapping[str, Estimate], found: Overload) -> dict[str, Estimate]:
    """The metrics, those that would grow with a longer run at least what they are in this one (goodput: at
    most)."""
    return {name: _unbounded(name, metric, found) for name, metric in metrics.items()}


def _unbounded(name: str, metric: Estimate, found: Overload) -> Estimate:
    if _family(name) not in found.unbounded or metric.point is None or name.endswith((".min", ".max")):
        return metric
    grows = metric.unit == "ms"
    lower = (metric.lower if metric.lower is not None else metric.point) if grows else None
    upper = None if grows else (metric.upper if metric.upper is not None else metric.point)
    return replace(metric, lower=lower, upper=upper, n_required=None, kind=EstimateKind.CRUDE, method=_METHOD)
