"""When a server stopped answering, as far as the records of a load tell."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.outcome import Outcome
from pytest_llmbench.model.records import MISSING, BoolColumn, Records

_FEWEST = 3
_CHANCE = 0.001
"""That so many requests in a row fail by themselves, where others had failed before."""


def stopped_answering(runs: Iterable[Observation]) -> str | None:
    """``the server stopped answering at 12.3 s``, of the first load in which it did; else None."""
    seen = tuple(runs)
    for run in seen:
        last = _last_answer_ns(run)
        if last is not None:
            of = f" of {run.plan.label}" if len(seen) > 1 else ""
            return f"the server stopped answering at {(last - run.started_ns) / 1e9:.1f} s{of}"
    return None


def _last_answer_ns(run: Observation) -> int | None:
    """The instant after which everything that was sent failed, as it does when nobody is there."""
    records = run.records
    if not len(records):
        return None
    answers = [records.last_content_ns, np.where(records.ok, records.finished_ns, MISSING)]
    last = max(run.started_ns, *(int(column.max()) for column in answers))
    later = (records.dispatched_ns > last) & ~records.has_outcome(Outcome.CANCELLED)
    count = int(np.count_nonzero(later))
    if count < _FEWEST or not _of_nobody(records)[later].all():
        return None
    before = (records.finished_ns != MISSING) & (records.finished_ns <= last)
    failed = float(np.mean(~records.ok[before])) if before.any() else 0.0
    return last if failed**count < _CHANCE else None


def _of_nobody(records: Records) -> BoolColumn:
    """Requests that failed as they do with a dead server, or with one whose engine is dead."""
    ended = records.has_outcome(Outcome.DISCONNECTED) | records.has_outcome(Outcome.TIMEOUT)
    return np.asarray(ended | (records.has_outcome(Outcome.HTTP_ERROR) & (records.http_status >= 500)))


__all__ = ["stopped_answering"]
