"""The looks of a plan: told of requests as they end, they say when nothing is left to be decided."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.plan import Load, Looks
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.stats.backlog import Backlog, backlog
from pytest_llmbench.stats.interim.boundaries import PlannedLook, batch_size, early_tail, planned_looks
from pytest_llmbench.stats.interim.estimates import Judged, estimate, is_decided, is_enough, may_be_decided
from pytest_llmbench.stats.interim.samples import Ends, values
from pytest_llmbench.stats.percentiles import PERCENTILES, percentile
from pytest_llmbench.stats.queues.batching import as_lasting, offered_rate, slot_queue
from pytest_llmbench.stats.runs import FloatArray


@dataclass(frozen=True, slots=True)
class Verdict:
    """The verdict of the look that ended the load, or of the last one."""

    n: int
    """How many of the first requests were looked at."""
    looks: int
    """Number of looks taken, this one included."""
    decided: bool
    budget_spent: bool
    """Whether more requests have failed than may fail of the most there can be: the run is void, whatever
    follows."""
    estimates: tuple[Estimate, ...]
    """The estimate of each watched objective, at the level of this look."""


class LookTaker:
    """Takes each planned look at the first n requests as soon as all of them have ended. What comes before
    ``first`` is looked at by none.

    What it answers depends on these requests alone and not on when it heard of them, so the same records give
    the same verdict again when the load is over.
    """

    def __init__(
        self, looks: Looks, *, first: int, most: int, load: Load | None = None, slots: int | None = None
    ) -> None:
        """``load``: how the requests were sent. ``slots``: the most that the engine has at work; None where
        it does not say."""
        self._looks = looks
        self._first, self._most = first, most
        self._load, self._slots = load, slots
        self._planned = planned_looks(most, looks.every, looks.alpha) if most else ()
        self._values = [np.full(most, np.nan) for _ in looks.watched]
        self._here = np.zeros(most, dtype=bool)
        self._ends = Ends.none_of(most)
        self._prefix = 0
        """How many of the first requests have all ended."""
        self._added = self._taken = 0
        self._rows: list[RequestRecord] = []
        self.verdict: Verdict | None = None
        """The verdict of the first look that ended the load; None before that."""

    def add(self, row: RequestRecord) -> Verdict | None:
        """Note a request that has ended; returns the verdict, once there is one."""
        if row.index < self._first:
            return self.verdict
        self._rows.append(row)
        due = self._planned[self._taken].n if self._taken < len(self._planned) else self._most
        if self.verdict is not None or self._added + len(self._rows) < due:
            return self.verdict
        rows, self._rows = self._rows, []
        return self.note(Ends.of_rows(rows))

    def add_all(self, records: Records) -> Verdict | None:
        return self.note(Ends.of_records(records.select(records.index >= self._first)))

    def close(self) -> Verdict:
        """End the looks with the load; returns the verdict there was, or that of a last look at all that
        ended in a row."""
        if self._rows:
            rows, self._rows = self._rows, []
            self.note(Ends.of_rows(rows))
        if self.verdict is not None:
            return self.verdict
        n = self._prefix
        tail = self._looks.alpha / 2
        if n:
            tail = planned_looks(self._most, self._looks.every, self._looks.alpha, closing=n)[-1].tail
        estimates = self._estimates(n, tail)
        decided = all(map(is_decided, self._looks.watched, estimates))
        return Verdict(n, self._taken + 1, decided, self._budget_is_spent(n), estimates)

    def note(self, ends: Ends) -> Verdict | None:
        places = ends.index - self._first
        for column, watched in zip(self._values, self._looks.watched, strict=True):
            column[places] = values(watched, ends)
        self._here[places] = True
        self._ends.note(places, ends)
        self._added += len(places)
        rest = self._here[self._prefix :]
        self._prefix += len(rest) if rest.all() else int(np.argmin(rest))
        while self.verdict is None and self._taken < len(self._planned):
            look = self._planned[self._taken]
            # The one at the very end ends nothing early: it is taken by close().
            if look.n > self._prefix or look.n >= self._most:
                break
            self._taken += 1
            self.verdict = self._look(look._replace(tail=early_tail(look.tail)))
        return self.verdict

    def _look(self, look: PlannedLook) -> Verdict | None:
        if self._budget_is_spent(look.n):
            return Verdict(look.n, self._taken, False, True, self._estimates(look.n, look.tail))
        if self._failed(look.n) > self._looks.max_error_share * np.count_nonzero(self._ends.judged[: look.n]):
            return None
        watched = self._looks.watched
        samples: list[FloatArray] = [column[: look.n] for column in self._values]
        if not all(may_be_decided(w, s, look.tail) for w, s in zip(watched, samples, strict=True)):
            return None
        # Batch means cost little, and mostly they say that nothing is decided.
        quick = (estimate(w, s, look.tail, batch_size) for w, s in zip(watched, samples, strict=True))
        if not all(
            is_enough(w, j) and is_decided(w, j.estimate) for w, j in zip(watched, quick, strict=True)
        ):
            return None
        waits, judged = self._backlog(look.n), []
        for each, sample in zip(watched, samples, strict=True):
            judged.append(estimate(each, sample, look.tail, backlog=waits))
            if not (is_enough(each, judged[-1]) and is_decided(each, judged[-1].estimate)):
                return None
        lasting = self._as_lasting(look.n, judged)
        decided = all(map(is_decided, watched, lasting))
        return Verdict(look.n, self._taken, True, False, lasting) if decided else None

    def _estimates(self, n: int, tail: float) -> tuple[Estimate, ...]:
        waits, of = self._backlog(n), zip(self._looks.watched, self._values, strict=True)
        return self._as_lasting(n, [estimate(each, column[:n], tail, backlog=waits) for each, column in of])

    def _as_lasting(self, n: int, judged: Sequence[Judged]) -> tuple[Estimate, ...]:
        """The estimates with the ends that the report takes too."""
        run = self._ends.first(n)
        rate = None if self._load is None else offered_rate(self._load, run.scheduled_ns)
        if rate is None:
            return tuple(each.estimate for each in judged)
        usual, own = {}, {}
        for watched, column, each in zip(self._looks.watched, self._values, judged, strict=True):
            name, seen = watched.objective.metric, column[:n][np.isfinite(column[:n])]
            own[name], stem = each.estimate, name.rpartition(".")[0]
            for label, q in PERCENTILES.items() if len(seen) else ():
                usual[f"{stem}.{label}"] = replace(each.estimate, point=percentile(seen, q))
        limits_ms = next((each.limits_ms for each in self._looks.watched if each.limits_ms), ())
        found = as_lasting(usual | own, [(run, self._slots)], rate, limits_ms)
        return tuple(found[each.objective.metric] for each in self._looks.watched)

    def _backlog(self, n: int) -> Backlog:
        """The backlog of the first n requests. What is sent later was not under way when they were sent."""
        run = self._ends.first(n)
        return backlog([slot_queue(run)], [run.submitted_ns])

    def _budget_is_spent(self, n: int) -> bool:
        return self._failed(n) > self._looks.max_error_share * self._most

    def _failed(self, n: int) -> int:
        return int(np.count_nonzero(self._ends.judged[:n] & ~self._ends.ok[:n]))

    def reason(self, verdict: Verdict) -> str:
        """Why the load ended early, in words."""
        saved = f"after {verdict.n} of at most {self._most} requests"
        if verdict.budget_spent:
            return f"the error budget is spent {saved}"
        return f"every limit is decided {saved}"
