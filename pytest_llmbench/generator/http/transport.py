"""The protocol of a transport, the exchange that it carries, and how its reads were stamped, with the
exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Protocol

from pytest_llmbench.generator.http.known_replies import KnownReply
from pytest_llmbench.generator.prepared import PreparedRequest
from pytest_llmbench.model.observation import READ_STAMPS
from pytest_llmbench.wire.uniform import Lesson

USER_SPACE = READ_STAMPS
KERNEL = "kernel (SO_TIMESTAMPNS)"


@dataclass(frozen=True, slots=True)
class Stamping:
    """How reads were stamped: counts since a transport was made, or since an earlier look at it."""

    kernel: bool = False
    """Whether reads are stamped by the kernel."""
    unstamped: int = 0
    """Reads that have the instant of the read, since the kernel gave none."""
    distrusted: int = 0
    """Reads that have the instant of the read, since the kernel's could not be true: a step of the clock."""
    too_early: int = 0
    """Reads whose stamp lay before the submission or the read before, and was moved there."""
    clock_steps: int = 0
    """Steps of the wall clock, which the kernel stamps by."""

    def since(self, earlier: Stamping) -> Stamping:
        return Stamping(
            self.kernel,
            self.unstamped - earlier.unstamped,
            self.distrusted - earlier.distrusted,
            self.too_early - earlier.too_early,
            self.clock_steps - earlier.clock_steps,
        )

    def figures(self, reads: int) -> dict[str, Any]:
        """The fields of a self-check about ``reads`` stamps. A kernel that was not asked owes none."""
        source = KERNEL
        told = {
            f"of {reads} reads in user space": self.unstamped + self.distrusted,
            "moved to what came before them": self.too_early,
            "steps of the wall clock": self.clock_steps,
        }
        if exceptions := [f"{count} {what}" for what, count in told.items() if count > 0]:
            source += f"; {', '.join(exceptions)}"
        if not self.kernel or 0 < reads <= self.unstamped:
            source = USER_SPACE
        return {
            "stamp_source": source,
            "unstamped_reads": self.unstamped if self.kernel else 0,
            "distrusted_stamps": self.distrusted,
            "moved_stamps": self.too_early,
            "clock_steps": self.clock_steps,
        }


class End(Enum):
    """How an exchange ended, as the transport sees it."""

    COMPLETE = auto()
    """The whole response has arrived, whatever its status. With an error, the error came behind the complete
    response."""
    UNREACHABLE = auto()
    """No connection could be made."""
    BROKEN = auto()
    """The connection was closed or reset before the response was complete."""
    GARBAGE = auto()
    """The server's bytes are not of the protocol."""
    EXHAUSTED = auto()
    """This machine has no file descriptor or local port left: our fault, not the server's."""
    TIMEOUT = auto()
    CANCELLED = auto()
    CUT_BY_USER = auto()
    """The simulated user has gone away, as the plan said."""


@dataclass(slots=True, eq=False)
class Exchange:
    """One request on the wire: what goes out, what comes back, and when.

    ``bodies[i]`` is the part of the response body that arrived with the read stamped ``stamps[i]``; until the
    response has ended, the last reads may still lie unparsed in ``unparsed``. A response that was recognised
    as a whole is never parsed: it has ``known`` and all its reads in ``unparsed``, but no bodies and headers.
    """

    request: PreparedRequest
    scheduled_ns: int
    dispatched_ns: int
    on_end: Callable[[Exchange], None]
    connecting_ns: int | None = None
    """Start of the attempt to open a connection for it, if one is under way."""
    sending_ns: int | None = None
    """When a part of the request last left, of one that the kernel or the server did not take at once."""
    submitted_ns: int | None = None
    stamps: list[int] = field(default_factory=list)
    late_reads: list[tuple[int, int]] = field(default_factory=list)
    """Places among ``stamps`` of reads that came late, each with an instant after which all of it arrived."""
    shared_reads: list[tuple[int, int]] = field(default_factory=list)
    """Places of late reads that had bytes of other exchanges too, in the same form: not even the last chunk
    of such a read has an instant of its own."""
    unparsed: list[bytes] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)
    status: int | None = None
    """HTTP status, known as soon as the head of the response has been parsed; None until then."""
    headers: list[tuple[bytes, bytes]] = field(default_factory=list)
    known: KnownReply | None = None
    teach: Callable[[Lesson], None] | None = None
    """A function to be given what later responses may be recognised by; None where they cannot be."""
    end: End | None = None
    error: str | None = None
    finished_ns: int = 0
    stale_retries: int = 0
    holds: bool = False
    """Whether the last byte of the request is to be held back until its release."""
    release: Callable[[], None] | None = None
    """A function that sends that byte; None where there is none on a connection."""
    due_ns: int = 0
    """No deadline can have run out before this instant (kept by the sweep)."""
    channel: Channel | None = None
    """The connection, or the attempt to open one, that carries the exchange at the moment."""

    def finish(self, end: End, at_ns: int, error: str | None = None) -> None:
        """Mark the exchange as ended and tell its owner. Once only."""
        if self.end is not None:
            return
        self.end, self.finished_ns, self.error = end, at_ns, error
        self.channel = None
        self.on_end(self)


class Channel(Protocol):
    """A connection, or the attempt to open one, as its exchange sees it."""

    def inspect(self) -> None:
        """Parse what has arrived so far: ends the exchange if it is complete."""

    def abandon(self) -> None:
        """Let go of the exchange and close; does not call ``on_end``."""


class TaskChannel:
    """The task that carries an exchange, or opens a connection for it, as its channel."""

    def __init__(self, task: asyncio.Task[None]) -> None:
        self._task = task

    def inspect(self) -> None:
        """Do nothing: nothing waits unparsed."""

    def abandon(self) -> None:
        self._task.cancel()


class Head(Protocol):
    """The part of requests that is the same for all of them."""

    session_header: str
    """Name of the header with the id of the session; empty: none is sent."""

    def wire(self, request_id: str, body: bytes, session_id: str | None = None) -> bytes:
        """The request as its transport takes it. ``session_id``: that of the session which it is a turn of;
        None: it is of none."""


class Transport(Protocol):
    """Carries exchanges. Everything runs in the event loop's thread."""

    holds: bool
    """Whether it can hold back the last byte of a request (:attr:`Exchange.holds`)."""

    @property
    def name(self) -> str: ...

    @property
    def opened(self) -> int:
        """Connections opened so far."""

    @property
    def busy(self) -> bool:
        """Whether exchanges that seem to have ended wait to be parsed; other work that can wait should wait
        then."""

    @property
    def stamping(self) -> Stamping:
        """How reads have been stamped so far."""

    async def prewarm(self, count: int, timeout_s: float) -> int:
        """Prepare ``count`` idle connections; returns how many there are (fewer if it cannot)."""

    def send(self, exchange: Exchange) -> None:
        """Put the exchange on the wire. Never waits, never fails, never ends the exchange before it
        returns."""

    async def close(self) -> None:
        """Close all connections."""


def abandon(exchange: Exchange, end: End, at_ns: int, error: str | None = None) -> None:
    """Stop an exchange from our side (deadline, cancellation, a user who goes away); what has arrived is
    kept."""
    if exchange.channel is not None:
        exchange.channel.inspect()
    if exchange.end is not None:
        return
    if exchange.channel is not None:
        exchange.channel.abandon()
    exchange.finish(end, at_ns, error)
