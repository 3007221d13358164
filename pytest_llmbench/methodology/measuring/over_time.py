"""One load over its time, as plots: the TTFT of what was sent when, what was under way, and what failed.

They decide nothing. They show what a percentile hides: a warm-up that had not ended, a stall, a queue.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from pytest_llmbench.methodology.measuring.levels import Seen
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import IntColumn, Records
from pytest_llmbench.model.result import Plot

MOST_BINS = 60
SLOWEST = 10
_FEWEST_BINS = 5
_REQUESTS_A_BIN = 10
_MOST_OF_IT = 0.95
_X = "seconds from the start of the load"
FloatArray = npt.NDArray[np.float64]
Line = tuple[tuple[float, ...], tuple[float, ...]]


def over_time_plots(seen: Observation, label: str = "") -> tuple[Plot, ...]:
    """TTFT by the instant of submission, and requests under way, in at most :data:`MOST_BINS` equal parts.

    ``label`` names the load where the test has several. Nothing for a load without a request or a duration.
    """
    records = seen.records
    sent = records.submitted_ns
    if not len(records) or seen.ended_ns <= seen.started_ns:
        return ()
    bins = min(MOST_BINS, max(_FEWEST_BINS, len(records) // _REQUESTS_A_BIN))
    edges = np.linspace(seen.started_ns, seen.ended_ns, bins + 1)
    of = f" ({label})" if label else ""
    marks = _end_of_load(seen)
    ttft = _ttft(records, _bin_of(sent, edges), edges)
    shown = (
        ("ttft_over_time", f"TTFT over time{of}", "TTFT (ms)", ttft),
        ("requests_over_time", f"Requests over time{of}", "requests", _requests(seen, edges)),
    )
    plots = [Plot(id_, title, _X, y, series, {}, marks) for id_, title, y, series in shown if series]
    return (*plots, *_slowest(seen, of))


def _end_of_load(seen: Observation) -> dict[str, float]:
    """Where answers came long after it."""
    if seen.load_ended_ns is None:
        return {}
    lasted_s = (seen.load_ended_ns - seen.started_ns) / 1e9
    return {"load ended": lasted_s} if lasted_s < _MOST_OF_IT * seen.duration_s else {}


def _bin_of(instants: IntColumn, edges: FloatArray) -> npt.NDArray[np.intp]:
    return np.clip(np.searchsorted(edges, instants, side="right") - 1, 0, len(edges) - 2)


def _ttft(records: Records, bins: npt.NDArray[np.intp], edges: FloatArray) -> dict[str, Line]:
    """Median and greatest of the requests submitted in each part; a part without a first token has none."""
    started = records.ok & (records.first_content_ns >= 0)
    waited_ms = (records.first_content_ns - records.submitted_ns)[started] / 1e6
    at = bins[started]
    middles = (edges[:-1] + edges[1:]) / 2e9 - edges[0] / 1e9
    there = np.unique(at)
    if not len(there):
        return {}
    x = tuple(float(middle) for middle in middles[there])
    median = tuple(float(np.median(waited_ms[at == one])) for one in there)
    greatest = tuple(float(waited_ms[at == one].max()) for one in there)
    return {"P50": (x, median), "greatest": (x, greatest)}


def _requests(seen: Observation, edges: FloatArray) -> dict[str, Line]:
    """Under way at the end of each part; waiting in the engine, where it says; those that failed in it."""
    records, ends = seen.records, edges[1:]
    x = tuple(float(end) for end in (ends - edges[0]) / 1e9)
    over = np.where(records.finished_ns >= 0, records.finished_ns, seen.ended_ns)
    submitted = np.searchsorted(np.sort(records.submitted_ns[records.submitted_ns >= 0]), ends, side="right")
    finished = np.searchsorted(np.sort(over[records.submitted_ns >= 0]), ends, side="right")
    found = {"under way": (x, tuple(float(count) for count in submitted - finished))}
    waiting = None if seen.engine is None else seen.engine.gauge("waiting", seen.started_ns, seen.ended_ns)
    if waiting is not None and len(waiting[0]):
        at = np.clip(np.searchsorted(waiting[0], ends, side="right") - 1, 0, None)
        found["waiting in the engine"] = (x, tuple(float(value) for value in waiting[1][at]))
    failed = ~records.ok
    if failed.any():
        counts = np.bincount(_bin_of(over[failed], edges), minlength=len(ends))
        found["failed meanwhile"] = (x, tuple(float(count) for count in counts))
    return found


def _slowest(seen: Observation, of: str) -> tuple[Plot, ...]:
    """What the requests with the greatest TTFT waited for: a row each, from the instant of submission in ms.

    Where the server tells it, its queue comes first.
    """
    records = seen.records
    known = np.flatnonzero(records.ok & (records.first_content_ns >= 0) & (records.last_content_ns >= 0))
    waited = (records.first_content_ns - records.submitted_ns)[known]
    chosen = known[np.argsort(-waited, kind="stable")[:SLOWEST]]
    if not len(chosen):
        return ()
    sent, first = (
        records.submitted_ns[chosen],
        records.first_content_ns[chosen] - records.submitted_ns[chosen],
    )
    last = records.last_content_ns[chosen] - sent
    queued = np.clip(records.queue_wait_ns[chosen], 0, first)
    parts = {
        "queue of the server": (0 * queued, queued),
        "to the first token": (queued, first),
        "output": (first, last),
    }
    names = tuple(
        f"#{index} at {at:.1f} s"
        for index, at in zip(records.index[chosen], (sent - seen.started_ns) / 1e9, strict=True)
    )
    series = {name: line for name, ends in parts.items() if (line := _bars(*ends))[0]}
    title = f"The {len(chosen)} requests with the greatest TTFT{of}"
    return (Plot("slowest_requests", title, "ms from submission", "request", series, rows=names),)


def _bars(start_ns: IntColumn, end_ns: IntColumn) -> Line:
    """The ends of those that have a length, two points for each."""
    there = np.flatnonzero(end_ns > start_ns)
    x = np.stack([start_ns[there], end_ns[there]], axis=1).ravel() / 1e6
    return tuple(float(end) for end in x), tuple(float(row) for row in np.repeat(there, 2))


def over_time_of_levels(levels: Sequence[Seen]) -> tuple[Plot, ...]:
    """Of the level that a test reports; where it reports several or none, of the last that was measured."""
    reported = [seen for seen in levels if seen.level.role == "reported"]
    chosen = (reported or levels)[-1:]
    return tuple(plot for seen in chosen for plot in over_time_plots(seen.observation, seen.level.label))


def over_time_of_runs(seen: Sequence[Observation]) -> tuple[Plot, ...]:
    """Of the first run of several of one load."""
    return over_time_plots(seen[0], f"run 1 of {len(seen)}" if len(seen) > 1 else "") if seen else ()
