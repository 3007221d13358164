"""Plots of one load over its time: TTFT by the instant of submission, requests under way, failures.

They decide nothing. They show what a percentile hides: a warm-up that had not ended, a stall, a queue.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from pytest_llmbench.methodology.measuring.offered import is_offered
from pytest_llmbench.metrics.latency import per_request
from pytest_llmbench.metrics.throughput import load_end_ns
from pytest_llmbench.model.numbers import quantity
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import IntColumn, Records
from pytest_llmbench.model.result import REQUESTS_OVER_TIME, SLOWEST_REQUESTS, TTFT_OVER_TIME, Plot
from pytest_llmbench.stats.runs import FloatArray

if TYPE_CHECKING:
    from pytest_llmbench.methodology.measuring.levels import Seen

MOST_BINS = 60
SLOWEST = 10
_FEWEST_BINS = 5
_REQUESTS_A_BIN = 10
_MOST_OF_IT = 0.95
_X = "seconds from the start of the load"
Line = tuple[tuple[float, ...], tuple[float, ...]]


def over_time_plots(seen: Observation, label: str = "") -> tuple[Plot, ...]:
    """TTFT by the instant of submission, and requests under way, in at most :data:`MOST_BINS` equal parts.

    ``label`` names the load where the test has several. Nothing for a load without a request or a duration.
    """
    records = seen.records
    if not len(records) or seen.ended_ns <= seen.started_ns:
        return ()
    bins = min(MOST_BINS, max(_FEWEST_BINS, len(records) // _REQUESTS_A_BIN))
    edges = np.linspace(seen.started_ns, seen.ended_ns, bins + 1)
    of = f" ({label})" if label else ""
    marks = {stage.name: stage.at_s for stage in seen.plan.load.stages}
    if seen.load_ended_ns is not None:
        lasted_s = (seen.load_ended_ns - seen.started_ns) / 1e9
        if lasted_s < _MOST_OF_IT * seen.duration_s:  # answers came long after it
            marks["load ended"] = lasted_s
    ttft_ms = per_request("ttft", records)
    shown = (
        (TTFT_OVER_TIME, f"TTFT over time{of}", "TTFT (ms)", _ttft(records, ttft_ms, edges)),
        (REQUESTS_OVER_TIME, f"Requests over time{of}", "requests", _requests(seen, edges)),
    )
    plots = [Plot(id_, title, _X, y, series, {}, marks) for id_, title, y, series in shown if series]
    if seen.plan.load.stages:
        plots.insert(
            0, Plot("rate_over_time", f"Rate over time{of}", _X, "req/s", _rates(seen, edges), {}, marks)
        )
    return (*plots, *_slowest(seen, ttft_ms, of))


def _bin_of(instants: IntColumn, edges: FloatArray) -> npt.NDArray[np.intp]:
    return np.clip(np.searchsorted(edges, instants, side="right") - 1, 0, len(edges) - 2)


def _ttft(records: Records, ttft_ms: FloatArray, edges: FloatArray) -> dict[str, Line]:
    """Median and maximum TTFT of the requests submitted in each part; a part without a first token has
    none."""
    known = np.flatnonzero(np.isfinite(ttft_ms))
    if not len(known):
        return {}
    at = _bin_of(records.submitted_ns[known], edges)
    order = np.argsort(at, kind="stable")
    there, begins = np.unique(at[order], return_index=True)
    parts = np.split(ttft_ms[known[order]], begins[1:])
    middles = (edges[:-1] + edges[1:]) / 2e9 - edges[0] / 1e9
    x = tuple(float(middle) for middle in middles[there])
    median = tuple(float(np.median(part)) for part in parts)
    return {"P50": (x, median), "greatest": (x, tuple(float(part.max()) for part in parts))}


def _requests(seen: Observation, edges: FloatArray) -> dict[str, Line]:
    """Requests under way at the end of each part; those waiting in the engine, if it tells; those that failed
    in the part."""
    ends = edges[1:]
    x = tuple(float(end) for end in (ends - edges[0]) / 1e9)
    begun, over, failed = (np.zeros(len(ends), dtype=np.int64) for _ in range(3))
    for block in seen.records.blocks():  # those of a long run do not fit into memory twice
        sent = block.submitted_ns >= 0
        end_ns = np.where(block.finished_ns >= 0, block.finished_ns, seen.ended_ns)
        begun += _counts(block.submitted_ns[sent], edges)
        over += _counts(end_ns[sent], edges)
        failed += _counts(end_ns[block.failed], edges)
    found = {"under way": (x, _floats(np.cumsum(begun - over)))}
    waiting = None if seen.engine is None else seen.engine.gauge("waiting", seen.started_ns, seen.ended_ns)
    if waiting is not None and len(waiting[0]):
        at = np.clip(np.searchsorted(waiting[0], ends, side="right") - 1, 0, None)
        found["waiting in the engine"] = (x, _floats(waiting[1][at]))
    if failed.any():
        found["failed meanwhile"] = (x, _floats(failed))
    return found


def _rates(seen: Observation, edges: FloatArray) -> dict[str, Line]:
    """The rate of the stages, and requests per second that were sent and that ended well in each part."""
    lasted_s = (load_end_ns(seen) - seen.started_ns) / 1e9
    lines = [
        (instant, rate)
        for stage in seen.plan.load.stages
        for instant, rate in (
            (stage.at_s, stage.rate),
            (stage.end_s or max(lasted_s, stage.at_s), stage.to_rate),
        )
    ]
    middles = tuple(float(middle) for middle in (edges[:-1] + edges[1:]) / 2e9 - edges[0] / 1e9)
    records, length_s = seen.records, (edges[1] - edges[0]) / 1e9
    counted = {
        "sent": records.submitted_ns[records.submitted_ns >= 0],
        "ended well": records.finished_ns[records.ok],
    }
    known = {name: (middles, _floats(_counts(at, edges) / length_s)) for name, at in counted.items()}
    return {"offered": (tuple(at for at, _ in lines), tuple(rate for _, rate in lines)), **known}


def _counts(instants: IntColumn, edges: FloatArray) -> IntColumn:
    return np.bincount(_bin_of(instants, edges), minlength=len(edges) - 1)


def _floats(values: npt.ArrayLike) -> tuple[float, ...]:
    return tuple(np.asarray(values, dtype=np.float64).tolist())


def _slowest(seen: Observation, ttft_ms: FloatArray, of: str) -> tuple[Plot, ...]:
    """A plot of the phases of the requests with the greatest TTFT: a row each, from the instant of submission
    in ms.

    Where the server tells it, its queue comes first.
    """
    records = seen.records
    known = np.flatnonzero(np.isfinite(ttft_ms) & (records.last_content_ns >= 0))
    if not len(known):
        return ()
    waited = ttft_ms[known]
    bound = np.partition(waited, -SLOWEST)[-SLOWEST] if len(waited) > SLOWEST else -np.inf
    slow = known[waited >= bound]
    chosen = slow[np.argsort(-ttft_ms[slow], kind="stable")[:SLOWEST]]
    sent = records.submitted_ns[chosen]
    names = tuple(
        f"#{index} at {quantity(at, 's')}"
        for index, at in zip(records.index[chosen], (sent - seen.started_ns) / 1e9, strict=True)
    )
    series = {name: bars(*ends, unit_ns=1e6) for name, ends in parts_of(records, chosen, sent).items()}
    title = f"The {len(chosen)} requests with the greatest TTFT{of}"
    return (Plot(SLOWEST_REQUESTS, title, "ms from submission", "request", series, rows=names),)


def parts_of(
    records: Records, chosen: IntColumn, origin_ns: IntColumn | int
) -> dict[str, tuple[IntColumn, IntColumn]]:
    """Begin and end of each phase of the ``chosen`` requests, in ns from ``origin_ns``, for the phases that
    at least one of them has. All have to have a first and a last token."""
    sent = records.submitted_ns[chosen] - origin_ns
    first = records.first_content_ns[chosen] - origin_ns
    queued = np.clip(sent + records.queue_wait_ns[chosen], sent, first)
    parts = {
        "queue of the server": (sent, queued),
        "to the first token": (queued, first),
        "output": (first, records.last_content_ns[chosen] - origin_ns),
    }
    return {name: ends for name, ends in parts.items() if (ends[1] > ends[0]).any()}


def bars(start_ns: IntColumn, end_ns: IntColumn, *, unit_ns: float) -> Line:
    """Bars from start to end, two points for each that has a length; y is its index, from 0."""
    there = np.flatnonzero(end_ns > start_ns)
    x = np.stack([start_ns[there], end_ns[there]], axis=1).ravel() / unit_ns
    return tuple(float(end) for end in x), tuple(float(row) for row in np.repeat(there, 2))


def over_time_of_levels(levels: Sequence[Seen]) -> tuple[Plot, ...]:
    """The plots over time of the level that a test reports; where it reports several or none, of the last
    that was offered as planned."""
    offered = [seen for seen in levels if is_offered(seen.level)]
    reported = [seen for seen in offered if seen.level.role == "reported"]
    chosen = (reported or offered)[-1:]
    return tuple(plot for seen in chosen for plot in over_time_plots(seen.observation, seen.level.label))


def over_time_of_runs(seen: Sequence[Observation]) -> tuple[Plot, ...]:
    """The plots over time of the first of several runs of one load."""
    return over_time_plots(seen[0], f"run 1 of {len(seen)}" if len(seen) > 1 else "") if seen else ()
