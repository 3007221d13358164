"""Whether a load is in balance: requests leave as fast as they arrive (section 5.2.3.1, saturation rule 2),
and the throughput stays level (section 5.2.3.2)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from pytest_llmbench.metrics.throughput import Window, output_tokens_per_slice
from pytest_llmbench.model.records import MISSING, BoolColumn, IntColumn, Records
from pytest_llmbench.stats.steady import MOST_CHANGE, SEGMENTS, change_across, drift

COMPLETION_SHARE = 0.9
_FIRST_REQUESTS = 5
FloatArray = npt.NDArray[np.float64]
_STUDENT = 3.182
"""Quantile of Student's t at 97.5 % for five slices, three degrees of freedom."""
SLICES = 200
"""Number of slices of the window, to tell a trend from noise."""


@dataclass(frozen=True, slots=True)
class Balance:
    """The requests due to be completed in the window, and those that were completed."""

    due: int
    completed: int
    under_way: float
    """Mean number of requests in flight in an unloaded system at this rate."""

    @property
    def share(self) -> float:
        return self.completed / self.due

    @property
    def short(self) -> bool:
        """Whether the completions are below 90 % of what was due, and by more than chance: two requests more
        or less at either end of the window, or twice the standard deviation of those in flight."""
        chance = max(2.0, 2.0 * float(np.sqrt(self.under_way)))
        return self.share < COMPLETION_SHARE and self.due - self.completed > chance


def completion_balance(records: Records, window: Window) -> Balance | None:
    """Completions in the window against the requests that an unloaded system completes in it.

    A request completes a latency after it arrived, so what was sent last, and long replies before it, are
    missing at the end of the window without any overload. Each request is due at its arrival + TTFT + TPOT *
    its tokens after the first; both are medians of the requests sent in the ramp-up (of the first ones, if
    there are none), before a queue has formed. None when nothing was due.
    """
    if not records.judged.all():  # how long those take that their users cut is not the system's to say
        records = records.select(records.judged)
    latencies_ns = _unloaded_ns(records, window)
    if latencies_ns is None:
        return None
    sent = records.submitted_ns != MISSING
    due = int((sent & _inside(records.submitted_ns + latencies_ns, window)).sum())
    if due == 0:
        return None
    completed = int((_inside(records.finished_ns, window) & records.ok).sum())
    arrived = sent & _inside(records.submitted_ns, window)
    under_way = float(latencies_ns[arrived].sum()) / (window.end_ns - window.start_ns)
    return Balance(due, completed, under_way)


def _unloaded_ns(records: Records, window: Window) -> IntColumn | None:
    """The time that each request would take alone, in nanoseconds: the median start, and the median pace for
    its own length. None where nothing is known of it."""
    ended = (records.submitted_ns != MISSING) & (records.finished_ns != MISSING)
    if window.end_ns <= window.start_ns or not ended.any():
        return None
    sample = ended & (records.submitted_ns <= window.start_ns)
    if not sample.any():
        sample[np.flatnonzero(ended)[:_FIRST_REQUESTS]] = True
        sample &= ended
    known = np.where(records.output_tokens == MISSING, records.requested_max_tokens, records.output_tokens)
    gaps = np.maximum(known - 1, 0)
    lasted = records.finished_ns - records.submitted_ns
    streamed = sample & (records.first_content_ns != MISSING) & (gaps > 0)
    if not streamed.any():
        return np.full(len(records), round(float(np.median(lasted[sample]))), dtype=np.int64)
    start = (records.first_content_ns - records.submitted_ns)[streamed]
    pace = (lasted[streamed] - start) / gaps[streamed]
    return np.asarray(np.median(start) + np.median(pace) * gaps, dtype=np.int64)


def _inside(at_ns: IntColumn, window: Window) -> BoolColumn:
    return np.asarray((at_ns != MISSING) & (at_ns > window.start_ns) & (at_ns <= window.end_ns))


class Steadiness(NamedTuple):
    change: float
    """Least-squares slope over five slices, times their number, relative to the mean."""
    by_chance: bool
    """Whether noise explains the slope: there is no trend at the 95 % level. By Mann and Kendall's test in
    finer slices; where the replies are too long for these to be independent, by Student's t about the line
    through the five."""

    @property
    def level(self) -> bool:
        """Whether the throughput stays within 10 %, or strays no further than chance would take it."""
        return abs(self.change) <= MOST_CHANGE or self.by_chance


def steadiness(window: Window) -> Steadiness | None:
    """The steadiness of the output tokens in the window; None without output, or where a request lacks its
    count."""
    coarse = output_tokens_per_slice(window, SEGMENTS)
    change = None if coarse is None else change_across(coarse)
    if coarse is None or change is None:
        return None
    fine = output_tokens_per_slice(window, SLICES)
    trend = None if fine is None else drift(fine)
    return Steadiness(change, _slope_by_chance(coarse) if trend is None else not trend.drifting(most=0.0))


def _slope_by_chance(slices: FloatArray) -> bool:
    """Whether zero lies in the 95 % interval of the least-squares slope."""
    at = np.arange(len(slices)) - (len(slices) - 1) / 2
    slope = float(at @ slices) / float(at @ at)
    rest = slices - slices.mean() - slope * at
    error = np.sqrt(float(rest @ rest) / (len(slices) - 2) / float(at @ at))
    return bool(abs(slope) <= _STUDENT * error)
