"""Every wait is bounded, and every reply: one sweep over what is in flight, not a timer for each request."""

from __future__ import annotations

from collections.abc import Collection

from pytest_llmbench.generator.http.sockets import READ_BYTES
from pytest_llmbench.generator.http.transport import End, Exchange, abandon
from pytest_llmbench.model.plan import Deadlines

_LOOK_AGAIN_NS = 250_000_000
"""An exchange is looked at no less often than this, for the sake of replies with an unusual end."""
_QUIET_NS = 100_000_000
"""A stream that has been silent for so long is looked into: it may be complete, or its end was not told."""


def overdue(exchange: Exchange, deadlines: Deadlines, now_ns: int) -> tuple[str | None, int]:
    """The deadline that has run out, in words, if one has; and the earliest instant at which one could run
    out.

    Before its submission a request has ``connect_s`` for each connection and ``total_s``, from its dispatch,
    until its last byte has left.
    """
    began_ns = exchange.dispatched_ns if exchange.submitted_ns is None else exchange.submitted_ns
    waits = [(began_ns, deadlines.total_s, "the response was not complete", "total")]
    if exchange.connecting_ns is not None:
        waits.append((exchange.connecting_ns, deadlines.connect_s, "no connection", "connect"))
    elif exchange.stamps:
        waits.append(
            (exchange.stamps[-1], deadlines.between_chunks_s, "the stream fell silent", "between-chunks")
        )
    elif exchange.submitted_ns is not None:
        waits.append((exchange.submitted_ns, deadlines.first_byte_s, "no response", "first-byte"))
    earliest = now_ns + _LOOK_AGAIN_NS
    for since_ns, limit_s, what, name in waits:
        ends_ns = since_ns + round(limit_s * 1e9)
        if ends_ns <= now_ns:
            return f"{what} within {limit_s:g} s ({name} deadline)", ends_ns
        earliest = min(earliest, ends_ns)
    return None, earliest


def too_large(exchange: Exchange, most_bytes: int) -> bool:
    """More than the ceiling has arrived. Few reads cannot hold so much."""
    if len(exchange.stamps) < most_bytes // READ_BYTES:
        return False
    return sum(map(len, exchange.unparsed)) + sum(map(len, exchange.bodies)) > most_bytes


def sweep(
    in_flight: Collection[Exchange], deadlines: Deadlines, now_ns: int, *, most_reply_bytes: int
) -> None:
    """Ends what is overdue as TIMEOUT and replies that are too large as garbage, and looks into replies that
    have fallen silent."""
    for exchange in [exchange for exchange in in_flight if exchange.due_ns <= now_ns]:
        if exchange.stamps and now_ns - exchange.stamps[-1] > _QUIET_NS and exchange.channel is not None:
            exchange.channel.inspect()
        if exchange.end is not None:
            continue
        if too_large(exchange, most_reply_bytes):
            exchange.unparsed.clear()  # which is not worth parsing any more
            abandon(exchange, End.GARBAGE, now_ns, _too_large_text(most_reply_bytes))
            continue
        reason, exchange.due_ns = overdue(exchange, deadlines, now_ns)
        if reason is not None:
            abandon(exchange, End.TIMEOUT, now_ns, reason)


def _too_large_text(most_bytes: int) -> str:
    return (
        f"the reply has more than {most_bytes // 1024**2} MiB and was cut off: "
        "a measured reply is kept whole until its end"
    )
