"""Traces that come as tables: Azure's and BurstGPT's."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

from pytest_llmbench.errors import shown
from pytest_llmbench.store.traces.request import TraceRequest, instant_of, name_of, tokens_of

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INSTANT = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)[T ](?P<time>\d\d:\d\d(:\d\d)?)(?P<fraction>\.\d{1,12})?"
    r" ?(?P<offset>Z|[+-]\d\d(:?\d\d)?)?"
)


def azure_request(place: str, row: Mapping[str, Any]) -> TraceRequest:
    """A row of Azure's table: ``TIMESTAMP``, ``ContextTokens``, ``GeneratedTokens``. ValueError in words."""
    return TraceRequest(
        place,
        tokens_of(row, "ContextTokens"),
        tokens_of(row, "GeneratedTokens"),
        _azure_instant(row.get("TIMESTAMP")),
    )


def _azure_instant(given: Any) -> float:
    # Azure writes seven digits of a second ("2023-11-16 18:17:03.9799600+00:00"), Python reads six.
    read = _INSTANT.fullmatch(str(given).strip())
    try:
        if read is None:
            raise ValueError
        at = datetime.fromisoformat(f"{read['date']} {read['time']}{read['offset'] or ''}")
    except ValueError:
        raise ValueError(f"TIMESTAMP is {shown(given)}: give a date and a time") from None
    at = at if at.tzinfo is not None else at.replace(tzinfo=UTC)
    return ((at - _EPOCH).total_seconds() + float(f"0{read['fraction'] or ''}")) * 1000.0


def burst_request(place: str, row: Mapping[str, Any]) -> TraceRequest:
    """A row of BurstGPT's table: ``Timestamp`` in seconds, ``Request tokens``, ``Response tokens``; ``Session
    ID`` in versions that have it. Requests that failed have no tokens. ValueError in words."""
    return TraceRequest(
        place,
        tokens_of(row, "Request tokens"),
        tokens_of(row, "Response tokens"),
        instant_of(row, "Timestamp", 1000.0),
        session=name_of(row, "Session ID"),
    )
