"""Hand-made requests: instants in milliseconds after an arbitrary point of the monotonic clock."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pytest_llmbench.model.record import Outcome, Phase, RequestRecord, TokenSource

EPOCH_NS = 7_000_000_000_000_000
"""Large enough that nanoseconds would be lost in a float64 of seconds."""


def instant(milliseconds: float | None) -> int | None:
    return None if milliseconds is None else EPOCH_NS + round(milliseconds * 1e6)


def row(
    index: int = 0,
    *,
    scheduled: float | None = None,
    submitted: float | None = 0.0,
    chunks: Sequence[float] = (100.0, 110.0, 120.0),
    chunk_tokens: Sequence[int] | None = None,
    tokens: int | None = None,
    **changes: Any,
) -> RequestRecord:
    """A successful request with one token per chunk, unless ``changes`` say otherwise (``_ns`` fields in ms).

    Its first chunk is its first event, first output and first content.
    """
    moments = {
        "scheduled": submitted if scheduled is None else scheduled,
        "dispatched": submitted,
        "submitted": submitted,
        "first_byte": chunks[0] if chunks else None,
        "first_event": chunks[0] if chunks else None,
        "first_nonempty": chunks[0] if chunks else None,
        "first_reasoning": None,
        "first_content": chunks[0] if chunks else None,
        "last_content": chunks[-1] if chunks else None,
        "finished": chunks[-1] if chunks else submitted,
    }
    moments |= {name: changes.pop(name) for name in list(changes) if name in moments}
    return RequestRecord(
        index=index,
        request_id=f"r{index}",
        phase=Phase.MEASURE,
        chunk_ns=[EPOCH_NS + round(chunk * 1e6) for chunk in chunks],
        chunk_tokens=[1] * len(chunks) if chunk_tokens is None else chunk_tokens,
        output_tokens=len(chunks) if tokens is None else tokens,
        **{
            "outcome": Outcome.OK,
            "input_tokens": 100,
            "token_source": TokenSource.SERVER_USAGE,
            **{f"{name}_ns": instant(moment) for name, moment in moments.items()},
            **changes,
        },
    )
