"""Traces whose rows look alike and mean other things: the size of a block, the unit of time, and the sources
that are known by name.

A row with ``timestamp``, ``input_length``, ``output_length`` and ``hash_ids`` is Mooncake's in milliseconds
with blocks of 512 tokens, Bailian's in seconds with 16, LMBench's in nanoseconds, GuideLLM's in seconds. What
was not said has to fit: as many hash ids as the input has blocks, and a rate that a server can have.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final, Literal, NamedTuple

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.numbers import number
from pytest_llmbench.store.traces.request import (
    TraceRequest,
    hash_ids_of,
    instant_of,
    name_of,
    refuse,
    tokens_of,
)

TimeUnit = Literal["s", "ms", "us", "ns"]
UNIT_MS: Final[Mapping[str, float]] = {"s": 1000.0, "ms": 1.0, "us": 1e-3, "ns": 1e-6}
_BLOCKS: Final = (16, 32, 64, 128, 256, 512, 1024, 2048)
_MOST_PER_S, _LONGEST_GAP_S = 40.0, 300.0
"""The highest mean rate, and the longest mean gap, of a recorded trace that is taken as in milliseconds
without being told: seconds taken so are a thousand times as many requests, microseconds a thousandth."""
_EPOCH_S = (946_684_800.0, 4_102_444_800.0)
"""The years 2000 to 2100, in seconds of Unix time."""
_SCOPE, _OF_NOBODY = 2**32, 2**63
"""Hash ids of one conversation where each has ids of its own, and the first of those that no row has."""


class Meaning(NamedTuple):
    """What is said about the rows of a trace; ``None``: nothing."""

    block_tokens: int | None = None
    time_unit: TimeUnit | None = None


def timed(
    requests: Sequence[TraceRequest], unit: TimeUnit | None, usual: TimeUnit | None, where: str
) -> tuple[list[TraceRequest], str]:
    """The requests with instants and pauses in milliseconds, and the unit that they had. ``usual``: the
    unit of the source, if that is known.

    Raises SuiteError where nobody says the unit and the instants do not fit milliseconds.
    """
    instants = sorted(each.offset_ms for each in requests if each.offset_ms is not None)
    found = unit or usual or _of_the_epoch(instants) or "ms"
    if unit is None and usual is None and found == "ms":
        _refuse_unlikely(instants, where)
    factor = UNIT_MS[found]
    if factor == 1.0:
        return list(requests), found
    return [
        replace(
            each,
            offset_ms=None if each.offset_ms is None else each.offset_ms * factor,
            pause_ms=None if each.pause_ms is None else each.pause_ms * factor,
        )
        for each in requests
    ], found


def _of_the_epoch(instants: Sequence[float]) -> TimeUnit | None:
    """The unit in which all instants are dates of this century; None if they are none in any."""
    units: tuple[TimeUnit, ...] = ("s", "ms", "us", "ns")
    for unit in units:
        dates_s = [instant * UNIT_MS[unit] / 1000.0 for instant in instants]
        if dates_s and _EPOCH_S[0] <= dates_s[0] and dates_s[-1] <= _EPOCH_S[1]:
            return unit
    return None


def _refuse_unlikely(instants: Sequence[float], where: str) -> None:
    if len(instants) < 3 or instants[-1] == instants[0]:
        return
    rate = (len(instants) - 1) / (instants[-1] - instants[0]) * 1000.0
    fractions = any(not float(instant).is_integer() for instant in instants)
    if rate <= _MOST_PER_S and rate * _LONGEST_GAP_S >= 1.0 and not fractions:
        return
    why = "timestamp has fractions, " if fractions else ""
    raise SuiteError(
        f"{why}and in milliseconds its requests come at {number(rate)} a second (in seconds at "
        f"{number(rate / 1000)})",
        where=where,
        remedy='give the unit, time_unit = "s", "ms", "us" or "ns" (trace describe: --time-unit), or the '
        "source, trace_format",
    )


def blocks_of(
    requests: Sequence[TraceRequest], said: int | None, usual: int | None, where: str
) -> int | None:
    """The tokens of a block by which every request has as many hash ids as its input has blocks; None where
    there are no hash ids. Raises SuiteError with the rows that do not fit."""
    hashed = [each for each in requests if each.hash_ids and each.input_tokens > 0]
    if not hashed:
        return said or usual
    fitting = [size for size in _BLOCKS if not _misfits(hashed, size)]
    size = said or usual or next(iter(fitting), _BLOCKS[0])
    wrong = _misfits(hashed, size)
    told = f"blocks of {fitting[0]} tokens fit: " if fitting else "say "
    refuse(
        [
            f"{each.place}: {len(each.hash_ids)} hash ids are too {'few' if short else 'many'} for "
            f"{each.input_tokens} tokens in blocks of {size}"
            for each, short in wrong
        ],
        where,
        f"{told}block_tokens = {fitting[0] if fitting else 'N'} (trace describe: --block-tokens)",
    )
    return size


def _misfits(requests: Iterable[TraceRequest], size: int) -> list[tuple[TraceRequest, bool]]:
    """Requests whose hash ids are not as many as the blocks of their input, and whether they are too few."""
    return [
        (each, len(each.hash_ids) * size < each.input_tokens)
        for each in requests
        if len(each.hash_ids) != -(-each.input_tokens // size)
    ]


def bailian_request(place: str, row: Mapping[str, Any]) -> TraceRequest:
    """A row of Bailian's traces: ``chat_id``, ``parent_chat_id`` (-1: none), ``timestamp`` in seconds."""
    parent = name_of(row, "parent_chat_id")
    return TraceRequest(
        place,
        tokens_of(row, "input_length"),
        tokens_of(row, "output_length"),
        instant_of(row, "timestamp"),
        hash_ids_of(row),
        request_id=name_of(row, "chat_id"),
        session="" if parent in ("", "-1") else parent,
    )


def with_roots(requests: Sequence[TraceRequest]) -> list[TraceRequest]:
    """Rows of Bailian whose session is the first chat of their chain, instead of the one before."""
    parents = {each.request_id: each.session for each in requests}

    def root(name: str) -> str:
        seen = {name}
        while (parent := parents.get(name, "")) and parent not in seen:
            seen.add(parent)
            name = parent
        return name

    # Each row says which it goes on from; as a session they wait for the one before them.
    return [replace(each, request_id="", session=root(each.request_id)) for each in requests]


def is_weka(row: Mapping[str, Any]) -> bool:
    listed = row.get("requests")
    return isinstance(listed, list) and any(isinstance(each, Mapping) and "in" in each for each in listed)


def weka_requests(place: str, row: Mapping[str, Any], number: int, *, alone: bool) -> Iterator[TraceRequest]:
    """The requests of a conversation of WEKA's: ``t`` in seconds from its beginning, ``in``, ``out``,
    ``hash_ids`` of its own scope, ``think_time`` before it. ``alone``: it is the only one of the file, so
    that its beginning is that of the trace. Requests of sub-agents are sessions beside it."""
    name = name_of(row, "id") or place
    size = weka_block(row)
    yield from _weka_turns(f"{place}, request", row["requests"], name, size, number, alone=alone)


def weka_block(row: Mapping[str, Any]) -> int:
    """Tokens of a block of a conversation of WEKA's."""
    return tokens_of(row, "block_size") if row.get("block_size") is not None else 64


def _weka_turns(
    place: str, rows: Sequence[Any], session: str, size: int, number: int, *, alone: bool
) -> Iterator[TraceRequest]:
    before: Mapping[str, Any] | None = None
    for count, each in enumerate(rows, start=1):
        if not isinstance(each, Mapping):
            raise ValueError(f"request {count} is not an object")
        if isinstance(each.get("requests"), list):
            inner = f"{session}/{count}"
            yield from _weka_turns(f"{place} {count}.", each["requests"], inner, size, number, alone=False)
            continue
        at_s, asked = instant_of(each, "t"), tokens_of(each, "in")
        ids = tuple(number * _SCOPE + one for one in hash_ids_of(each))
        if ids and len(ids) * size < asked <= (len(ids) + 1) * size:  # the last block is not full
            ids += (_OF_NOBODY + number * _SCOPE + count,)
        pause_s = 0.0
        if before is not None:
            worked_s = instant_of(before, "api_time") if before.get("api_time") is not None else 0.0
            pause_s = max(0.0, at_s - instant_of(before, "t") - worked_s)
            pause_s = instant_of(each, "think_time") if each.get("think_time") is not None else pause_s
        yield TraceRequest(
            f"{place} {count}",
            asked,
            tokens_of(each, "out"),
            at_s if alone else None,
            ids,
            session=session,
            pause_ms=None if before is None else pause_s,
        )
        before = each
