"""A request of a trace in the form common to all formats, and the checks of its figures."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from pytest_llmbench.errors import SuiteError, shown
from pytest_llmbench.model.messages import MessageArray
from pytest_llmbench.workloads.lengths import MOST_TOKENS
from pytest_llmbench.workloads.trace import LONGEST_MS, TraceEntry

MOST_MISTAKES: Final = 12
"""Most mistakes of one file that are listed; for more their number is given."""
_MOST_BLOCKS: Final = 1_000_000
_LARGEST_BLOCK: Final = 2**64


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One row of a trace: when, how long, what its prompt consists of, and to which session it belongs."""

    place: str
    """Position in the file: ``line 3``, ``row 3``."""
    input_tokens: int
    output_tokens: int
    offset_ms: float | None = None
    """Start, from any origin; None if the format has none."""
    hash_ids: tuple[int, ...] = ()
    request_id: str = ""
    session: str = ""
    wait_for: tuple[str, ...] = ()
    """Ids of the requests that must have ended before it starts."""
    pause_ms: float | None = None
    """Time from the end of what it waits for, or of the request before it in its session, to its start: a
    user thinks, a tool runs. None if the trace does not say."""
    end_ms: float | None = None
    """End of its reply, from the origin of the starts; None if the trace does not say."""
    reset: bool = False
    """Whether the trace says that its prompt does not continue the one before it."""
    messages: MessageArray | None = None
    """The messages of the prompt, if they are to be sent; else None."""


@dataclass(frozen=True)
class Trace:
    """The requests of a file, ascending in time, from 0."""

    format: str
    requests: tuple[TraceRequest, ...]
    left_out: int
    """Number of rows without input or output tokens, for which nothing can be sent."""
    block_tokens: int
    """Tokens of the block that one hash id stands for."""
    steps: tuple[str, ...]
    """How the rows were processed, for the statement of the data set."""

    @property
    def is_timed(self) -> bool:
        return all(request.offset_ms is not None for request in self.requests)

    @property
    def entries(self) -> tuple[TraceEntry, ...]:
        """The requests as single ones; all at 0 if some have no instant."""
        timed = self.is_timed
        return tuple(
            TraceEntry(
                (each.offset_ms or 0.0) if timed else 0.0,
                each.input_tokens,
                each.output_tokens,
                each.hash_ids,
            )
            for each in self.requests
        )


def made_trace(
    format_: str, requests: Sequence[TraceRequest], *, block_tokens: int, steps: Sequence[str], where: str
) -> Trace:
    """The trace of these requests, without those that have no tokens, in order of time, counted from the
    first.

    Raises SuiteError for too few hash ids, a span of more than a year, and where nothing is left.
    """
    kept = [each for each in requests if each.input_tokens > 0 and each.output_tokens > 0]
    if not kept:
        raise SuiteError("holds no requests", where=where, remedy="give the file of a trace")
    short = [
        f"{each.place}: {len(each.hash_ids)} hash ids are too few for {each.input_tokens} tokens"
        for each in kept
        if each.hash_ids and len(each.hash_ids) * block_tokens < each.input_tokens
    ]
    refuse(short, where)
    instants = [each.offset_ms for each in kept if each.offset_ms is not None]
    if len(instants) == len(kept):
        start = min(instants)
        if max(instants) - start > LONGEST_MS:
            raise SuiteError("spans more than a year", where=where, remedy="give a part of it")
        moved = (
            replace(
                each, offset_ms=instant - start, end_ms=None if each.end_ms is None else each.end_ms - start
            )
            for each, instant in zip(kept, instants, strict=True)
        )
        kept = sorted(moved, key=lambda each: each.offset_ms or 0.0)
    done = (*steps, "requests without input or output tokens left out")
    return Trace(format_, tuple(kept), len(requests) - len(kept), block_tokens, done)


def refuse(mistakes: Sequence[str], where: str, remedy: str | None = None) -> None:
    """Raise SuiteError with the mistakes, if there are any."""
    if mistakes:
        told = list(mistakes[:MOST_MISTAKES])
        if len(mistakes) > MOST_MISTAKES:
            told.append(f"and {len(mistakes) - MOST_MISTAKES} more")
        raise SuiteError.from_mistakes(told, where=where, remedy=remedy)


def tokens_of(row: Mapping[str, Any], name: str) -> int:
    """A number of tokens, from 0. ValueError in words for anything else."""
    value = number_of(row, name)
    if value != int(value) or not 0 <= value <= MOST_TOKENS:
        raise ValueError(f"{name} is {shown(row[name])}: give a whole number from 0 to {MOST_TOKENS:,}")
    return int(value)


def instant_of(row: Mapping[str, Any], name: str, unit_ms: float = 1.0) -> float:
    """An instant or a duration in milliseconds, not negative."""
    value = number_of(row, name)
    if value < 0:
        raise ValueError(f"{name} is {shown(row[name])}: it is negative")
    return value * unit_ms


def number_of(row: Mapping[str, Any], name: str) -> float:
    """A finite number; a text with one is accepted, as tables have it."""
    value = row.get(name)
    if value is None or value == "":
        raise ValueError(f"{name} is missing")
    try:
        found = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not math.isfinite(found):
        raise ValueError(f"{name} is {shown(value)}: give a number")
    return found


def hash_ids_of(row: Mapping[str, Any]) -> tuple[int, ...]:
    ids = row.get("hash_ids")
    if ids is None:
        return ()
    if not isinstance(ids, Sequence) or isinstance(ids, str) or len(ids) > _MOST_BLOCKS:
        raise ValueError(f"hash_ids is {shown(ids)}: give a list of numbers")
    wrong = [each for each in ids if type(each) is not int or not 0 <= each < _LARGEST_BLOCK]
    if wrong:
        raise ValueError(f"hash_ids holds {shown(wrong[0])}: give whole numbers from 0")
    return tuple(ids)


def pause_of(row: Mapping[str, Any], session: str) -> float | None:
    """The ``delay`` of a row of a session in milliseconds, from the end of the request before it there; None
    without one."""
    return instant_of(row, "delay") if session and row.get("delay") is not None else None


def name_of(row: Mapping[str, Any], name: str) -> str:
    """An identifier as text; empty where there is none. Numbers of a table end without ``.0``."""
    value = row.get(name)
    if value is None or isinstance(value, bool | list | dict):
        return ""
    return str(value).strip().removesuffix(".0")
