"""The rules that end a load early: the system under test has stopped answering, or too many requests have
failed.

Failures are data, and a load goes on through them. It ends where it can tell nothing more: when the error
budget of its test cannot be kept any more, or when nobody answers (docs/decisions/0019).
"""

from __future__ import annotations

from dataclasses import dataclass
from http import HTTPStatus
from typing import TYPE_CHECKING

import numpy as np

from pytest_llmbench.model.numbers import quantity
from pytest_llmbench.model.observation import BUDGET_SPENT
from pytest_llmbench.model.plan import LoadPlan
from pytest_llmbench.model.record import Outcome, RequestRecord
from pytest_llmbench.model.records import BoolColumn, Records

if TYPE_CHECKING:
    from pytest_llmbench.stats.looks import LookTaker

STREAK = 20
"""How many unanswered requests in a row end a load with ``stop_when_failing``, if there was no answer for
``QUIET_NS``."""
QUIET_NS = 1_000_000_000
"""Nanoseconds within which an answer shows that the SUT has not stopped yet, whatever happens to other
requests."""
LONG_NS = 10_000_000_000
"""The time without an answer, in nanoseconds, after which fewer failures suffice: one for each request in
flight."""
PATIENT_NS = 30_000_000_000
"""The time without an answer, in nanoseconds, that every other load waits: a server that is restarted within
it goes on being measured."""
FEWEST = 3
"""Fewest unanswered requests in a row that end any other load."""
CHANCE = 0.001
"""Largest chance, that so many in a row fail by themselves anywhere in the load, at which the load is ended.
It matters where others had failed before."""
_OK = Outcome.OK
"""A module-level name, as it is asked for with each reply: a look-up in an enumeration takes 0.2 µs."""
_OF_OURS = frozenset({Outcome.CANCELLED, Outcome.CUT_BY_USER})


@dataclass(frozen=True, slots=True)
class Cut:
    """The decision to end the load now."""

    reason: str
    is_result: bool
    """Whether what was measured counts (``Observation.stopped``); if not, the load is void
    (``interrupted``)."""
    drains: bool = False
    """Whether what is in flight goes on to its end, since the system answers."""


class FailureWatch:
    """Watches how requests end. Unanswered are those without a connection, with a lost one, with a deadline
    that ran out, and with a status of 500 or more. Whatever comes in on a reply under way is an answer; so
    are refusals for overload (429, or 503 that says so), other statuses, and errors inside a stream: a server
    that sheds load is alive.

    A load ends

    - when more than ``most_failures`` requests have failed: the budget of its test cannot be kept any more;
    - when nothing was answered for 30 s, and meanwhile as many as are in flight (k, at least 3) ended
      unanswered, more than by themselves: with a share p of n requests unanswered before, n p^k < 0.001;
    - ``eager`` (``LoadPlan.stop_when_failing``): when the last 20 that ended were unanswered and nothing was
      answered for a second; or when nothing was answered for 10 s and as many as are in flight (at least one)
      ended unanswered meanwhile.
    """

    def __init__(
        self,
        *,
        eager: bool = False,
        most_failures: int | None = None,
        may_break: bool = False,
        patient_ns: int = PATIENT_NS,
    ) -> None:
        self._eager, self._patient_ns = eager, patient_ns
        self._most_failures = most_failures
        self._may_break = may_break
        self._answered_ns = 0
        self._answers = 0
        self._streak = 0
        self._ended = 0
        self._failed = 0
        self._unanswered_before = 0
        """Number of unanswered requests up to the last answer; ``_ended - _streak`` requests had ended
        then."""
        self._last = ""

    @classmethod
    def of(cls, plan: LoadPlan, patient_ns: int = PATIENT_NS) -> FailureWatch | None:
        """The watch over a load; None where another process watches over it."""
        if not plan.watched:
            return None
        return cls(
            eager=plan.stop_when_failing,
            most_failures=plan.most_failures,
            may_break=plan.may_break,
            patient_ns=patient_ns,
        )

    @property
    def eager(self) -> bool:
        return self._eager

    @property
    def streak(self) -> int:
        """Number of unanswered requests since the last answer."""
        return self._streak

    @property
    def is_calm(self) -> bool:
        """Whether nothing can end the load now, whatever the time: the last reply was an answer, and no more
        have failed than may."""
        return not self._streak and not self._failed_too_often

    @property
    def _failed_too_often(self) -> bool:
        return self._most_failures is not None and self._failed > self._most_failures

    def begin(self, now_ns: int) -> None:
        """Begin the load: silence counts from here."""
        self._answered_ns = now_ns

    def note(self, record: RequestRecord) -> None:
        """Note the end of a request. Ends have to be told in their order."""
        self.ended(record.outcome, record.http_status, record.error, record.finished_ns or 0)

    def ended(self, outcome: Outcome, status: int | None, error: str | None, at_ns: int) -> None:
        """:meth:`note`, with only the fields that count."""
        if outcome in _OF_OURS:
            return
        self._ended += 1
        if outcome is not _OK:
            self._failed += 1
            self._last = error or str(outcome)
            if _is_unanswered(outcome, status):
                self._streak += 1
                return
        self._unanswered_before += self._streak
        self._streak = 0
        self._answers += 1
        self._answered_ns = max(self._answered_ns, at_ns)

    def judge(self, in_flight: int, moved_ns: int | None, now_ns: int) -> Cut | None:
        """The decision to end the load, by the number in flight and the last instant at which one of them
        moved; None while the SUT answers, or may."""
        if self._failed_too_often:
            reason = (
                f"{BUDGET_SPENT}: {self._failed} of the first {self._ended} "
                f"requests failed (the last one: {self._last})"
            )
            return Cut(reason, is_result=False, drains=True)
        quiet_ns = now_ns - max(self._answered_ns, moved_ns or 0)
        if not self._is_silent(in_flight, quiet_ns):
            return None
        reason = (
            f"the SUT has stopped answering: the last {self._streak} requests that ended failed"
            f" (the last one: {self._last}), and nothing was answered for {quantity(quiet_ns / 1e9, 's')}"
        )
        # A system that answered nothing at all was gone before: that says nothing about this load.
        answered = self._answers > 0 or moved_ns is not None
        return Cut(reason, is_result=self._eager or (self._may_break and answered))

    def _is_silent(self, in_flight: int, quiet_ns: int) -> bool:
        if not self._streak:
            return False
        if self._eager:
            many = self._streak >= STREAK and quiet_ns >= QUIET_NS
            return many or (quiet_ns >= LONG_NS and self._streak >= max(1, in_flight))
        if quiet_ns < self._patient_ns or self._streak < max(FEWEST, in_flight):
            return False
        return not is_chance(self._streak, self._ended - self._streak, self._unanswered_before)


def is_chance(streak: int, before: int, unanswered_before: int) -> bool:
    """Whether so many unanswered requests in a row may come anywhere among those before by themselves: with
    a share p of n requests unanswered before, n p^k is the expected number of such rows."""
    share = unanswered_before / before if before else 0.0
    return before * share**streak >= CHANCE


def are_unanswered(records: Records) -> BoolColumn:
    """For each ended request, whether it is unanswered in the sense of :class:`FailureWatch`."""
    lost = records.has_outcome(Outcome.DISCONNECTED) | records.has_outcome(Outcome.TIMEOUT)
    broken = records.http_status >= HTTPStatus.INTERNAL_SERVER_ERROR
    return np.asarray(lost | (records.has_outcome(Outcome.HTTP_ERROR) & broken))


def _is_unanswered(outcome: Outcome, status: int | None) -> bool:
    if outcome is Outcome.HTTP_ERROR:
        return (status or 0) >= HTTPStatus.INTERNAL_SERVER_ERROR
    return outcome in (Outcome.DISCONNECTED, Outcome.TIMEOUT)


def look_taker(plan: LoadPlan, slots: int | None = None) -> LookTaker | None:
    """The look taker of a plan that may end early, imported for it; None for any other plan.

    ``slots``: the most that the engine has at work; None where it does not say.
    """
    if plan.looks is None:
        return None
    from pytest_llmbench.stats.looks import LookTaker

    # A share that was dealt to a worker is numbered from 0, its requests as in the whole sequence.
    first = plan.first or plan.workload.requests(1, plan.seed)[0].index
    # The first wave of a closed loop is no part of its steady state.
    wave = plan.load.requests_in_flight or 0
    most = max(plan.most_requests - wave, 0)
    return LookTaker(plan.looks, first=first + wave, most=most, load=plan.load, slots=slots)
