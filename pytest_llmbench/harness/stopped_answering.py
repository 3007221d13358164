"""The instant at which a server stopped answering, as far as the records of a load tell."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.outcome import Outcome
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.stats.failing import FEWEST, are_unanswered, is_chance


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
    later = records.judged & (records.dispatched_ns > last) & ~records.has_outcome(Outcome.CANCELLED)
    count = int(np.count_nonzero(later))
    unanswered = are_unanswered(records)
    if count < FEWEST or not unanswered[later].all():
        return None
    before = (records.finished_ns != MISSING) & (records.finished_ns <= last)
    if is_chance(count, int(np.count_nonzero(before)), int(np.count_nonzero(unanswered[before]))):
        return None
    return last
