"""Do requests leave as fast as they arrive? (section 5.2.3.1, saturation rule 2)"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from pytest_llmbench.metrics.throughput import Window
from pytest_llmbench.model.records import MISSING, BoolColumn, IntColumn, Records

COMPLETION_SHARE = 0.9
_FIRST_REQUESTS = 5


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
