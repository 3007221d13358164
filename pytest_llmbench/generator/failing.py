"""Has the system under test stopped answering? The rule that ends a load early (METHODOLOGY §11.8, §13)."""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus

from pytest_llmbench.generator.transport import Exchange
from pytest_llmbench.model.outcome import Outcome
from pytest_llmbench.model.record import RequestRecord

STREAK = 20
"""So many requests in a row without an answer are enough, if there was none for ``QUIET_NS``."""
QUIET_NS = 1_000_000_000
"""The SUT answered this recently: it has not stopped yet, whatever happens to other requests."""
LONG_NS = 10_000_000_000
"""After so long without an answer fewer failures will do: one for each request in flight."""


class FailureWatch:
    """Follows how requests end. Unanswered are those without a connection, with a lost one, with a deadline
    that ran out, and with a status of 500 or more.

    The SUT has stopped answering when the last 20 that ended were unanswered and nothing was answered for a
    second; or when nothing was answered for 10 s and as many as are in flight (at least one) ended unanswered
    meanwhile. Whatever comes in on a reply under way is an answer; so are refusals for overload (429, or 503
    that says so), other statuses, and errors inside a stream: a server that sheds load is alive.
    """

    def __init__(self) -> None:
        self._answered_ns = 0
        self._streak = 0
        self._last = ""

    def begin(self, now_ns: int) -> None:
        """The load begins: silence counts from here."""
        self._answered_ns = now_ns

    def note(self, record: RequestRecord) -> None:
        """A request has ended; to be told in the order of the ends."""
        if record.outcome is Outcome.CANCELLED:
            return
        if _unanswered(record):
            self._streak += 1
            self._last = record.error or str(record.outcome)
        else:
            self._streak = 0
            self._answered_ns = max(self._answered_ns, record.finished_ns or 0)

    def verdict(self, in_flight: Collection[Exchange], now_ns: int) -> str | None:
        """Why the load is to end now; ``None`` while the SUT answers, or may."""
        return self.judge(len(in_flight), last_moved_ns(in_flight), now_ns) if self._streak else None

    def judge(self, in_flight: int, moved_ns: int | None, now_ns: int) -> str | None:
        """:meth:`verdict` by the number in flight and the last instant at which one of them moved."""
        streak = self._streak
        quiet_ns = now_ns - max(self._answered_ns, moved_ns or 0)
        many = streak >= STREAK and quiet_ns >= QUIET_NS
        if not many and not (quiet_ns >= LONG_NS and streak >= max(1, in_flight)):
            return None
        return (
            f"the SUT has stopped answering: the last {streak} requests that ended failed"
            f" (the last one: {self._last}), and nothing was answered for {quiet_ns / 1e9:.1f} s"
        )


def last_moved_ns(in_flight: Collection[Exchange]) -> int | None:
    """The last instant at which something came in on a response under way."""
    return max((exchange.stamps[-1] for exchange in in_flight if _flows(exchange)), default=None)


def _unanswered(record: RequestRecord) -> bool:
    if record.outcome is Outcome.HTTP_ERROR:
        return (record.http_status or 0) >= HTTPStatus.INTERNAL_SERVER_ERROR
    return record.outcome in (Outcome.DISCONNECTED, Outcome.TIMEOUT)


def _flows(exchange: Exchange) -> bool:
    """A response is coming in, and it is no error page."""
    return bool(exchange.stamps) and (
        exchange.status is None or exchange.status < HTTPStatus.INTERNAL_SERVER_ERROR
    )


__all__ = ["LONG_NS", "QUIET_NS", "STREAK", "FailureWatch", "last_moved_ns"]
