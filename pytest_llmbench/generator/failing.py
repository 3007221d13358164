"""What a load generator in mid-load can tell of a system that may have stopped answering."""

from __future__ import annotations

from collections.abc import Collection
from http import HTTPStatus

from pytest_llmbench.generator.transport import Exchange


def last_moved_ns(in_flight: Collection[Exchange]) -> int | None:
    """The last instant at which something came in on a response under way."""
    return max((exchange.stamps[-1] for exchange in in_flight if _flows(exchange)), default=None)


def _flows(exchange: Exchange) -> bool:
    """A response is coming in, and it is no error page."""
    return bool(exchange.stamps) and (
        exchange.status is None or exchange.status < HTTPStatus.INTERNAL_SERVER_ERROR
    )


__all__ = ["last_moved_ns"]
