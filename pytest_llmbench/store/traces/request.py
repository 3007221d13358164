"""A request of a trace as the formats give it, and the bounds within which its figures are taken."""

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
"""Mistakes of one file that are told one by one; of more the number."""
_MOST_BLOCKS: Final = 1_000_000
_LARGEST_BLOCK: Final = 2**64


@dataclass(frozen=True, slots=True)
class TraceRequest:
    """One row: when, how long, what its prompt is made of, and which session it belongs to."""

    place: str
    """Where it stands in the file: ``line 3``, ``row 3``."""
    input_tokens: int
    output_tokens: int
    offset_ms: float | None = None
    """The instant of its start, from any origin; None where the format has none."""
    hash_ids: tuple[int, ...] = ()
    request_id: str = ""
    session: str = ""
    wait_for: tuple[str, ...] = ()
    """Requests that have to have ended before it starts."""
    pause_ms: float | None = None
    """From the end of what it waits for, or of the request before it in its session, to its start: a user
    who thinks, a tool that runs."""
    end_ms: float | None = None
    """The instant at which its reply had ended, from the origin of the starts; None where it is not told."""
    reset: bool = False
    """Whether its prompt is said not to go on from the one before it."""
    messages: MessageArray | None = None
    """What it asks, where that is to be sent."""


@dataclass(frozen=True)
class Trace:
    """The requests of a file, ascending in time, from 0."""

    format: str
    requests: tuple[TraceRequest, ...]
    left_out: int
    """Rows without input or output tokens: nothing can be sent for them."""
    block_tokens: int
    """Tokens that one hash id stands for."""
    steps: tuple[str, ...]
    """What was done to the rows, for the statement of the data set."""

    @property
    def is_timed(self) -> bool:
        return all(request.offset_ms is not None for request in self.requests)

    @property
    def entries(self) -> tuple[TraceEntry, ...]:
        """The requests alone; at 0 where not all of them have an instant."""
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
    """Without the requests that have no tokens, in order of time, counted from the first.

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
        kept = sorted((_moved(each, start) for each in kept), key=lambda each: each.offset_ms or 0.0)
    done = (*steps, "requests without input or output tokens left out")
    return Trace(format_, tuple(kept), len(requests) - len(kept), block_tokens, done)


def _moved(request: TraceRequest, start: float) -> TraceRequest:
    assert request.offset_ms is not None
    end_ms = None if request.end_ms is None else request.end_ms - start
    return replace(request, offset_ms=request.offset_ms - start, end_ms=end_ms)


def refuse(mistakes: Sequence[str], where: str, remedy: str | None = None) -> None:
    """Raises SuiteError with the mistakes, if there are any."""
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
    """An instant or a length of time in milliseconds, not negative."""
    value = number_of(row, name)
    if value < 0:
        raise ValueError(f"{name} is {shown(row[name])}: it is negative")
    return value * unit_ms


def number_of(row: Mapping[str, Any], name: str) -> float:
    """A finite number; a text that says one will do, as tables have it."""
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


def hash_ids_of(row: Mapping[str, Any], name: str = "hash_ids") -> tuple[int, ...]:
    ids = row.get(name)
    if ids is None:
        return ()
    if not isinstance(ids, Sequence) or isinstance(ids, str) or len(ids) > _MOST_BLOCKS:
        raise ValueError(f"{name} is {shown(ids)}: give a list of numbers")
    wrong = [each for each in ids if type(each) is not int or not 0 <= each < _LARGEST_BLOCK]
    if wrong:
        raise ValueError(f"{name} holds {shown(wrong[0])}: give whole numbers from 0")
    return tuple(ids)


def pause_of(row: Mapping[str, Any], session: str) -> float | None:
    """``delay`` of a row of a session, in milliseconds: from the end of the request before it there."""
    return instant_of(row, "delay") if session and row.get("delay") is not None else None


def name_of(row: Mapping[str, Any], name: str) -> str:
    """An identifier as text; empty where there is none. Numbers of a table end without ``.0``."""
    value = row.get(name)
    if value is None or isinstance(value, bool | list | dict):
        return ""
    return str(value).strip().removesuffix(".0")
