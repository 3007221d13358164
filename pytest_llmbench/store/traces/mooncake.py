"""Mooncake traces, and the agentic ones, whose rows may wait for each other.

A plain row has ``timestamp`` (ms), ``input_length``, ``output_length`` and ``hash_ids``; one with a
``session_id`` may have ``delay`` (ms) in place of an instant, which counts from the end of the row before it
in its session. An agentic row has ``request_id`` as well; where it names others in ``wait_for`` it starts
``delay + tool_wait_ms`` after the last of them has ended. Sent as single requests, nothing waits: such a row
gets the earliest instant at which it could have started, all replies taking no time.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pytest_llmbench.store.traces.request import (
    TraceRequest,
    hash_ids_of,
    instant_of,
    name_of,
    pause_of,
    tokens_of,
)

EARLIEST = (
    "a request that waits for others starts at the earliest instant at which it could, all replies taking no "
    "time"
)


def is_agentic(row: Mapping[str, Any]) -> bool:
    return "input_length" in row and ("wait_for" in row or "request_id" in row)


def plain_request(place: str, row: Mapping[str, Any]) -> TraceRequest:
    """A row of a plain trace. ValueError in words."""
    session = name_of(row, "session_id")
    pause_ms = pause_of(row, session)
    untimed = pause_ms is not None and row.get("timestamp") is None
    return TraceRequest(
        place,
        tokens_of(row, "input_length"),
        tokens_of(row, "output_length"),
        None if untimed else instant_of(row, "timestamp"),
        hash_ids_of(row),
        session=session,
        pause_ms=pause_ms,
    )


def agentic_request(place: str, row: Mapping[str, Any]) -> TraceRequest:
    """A row of an agentic trace, before the instants that depend on others. ValueError in words."""
    parents = row.get("wait_for") or []
    if not isinstance(parents, list) or not all(isinstance(each, str) and each for each in parents):
        raise ValueError("wait_for must be a list of request ids")
    identity = name_of(row, "request_id")
    if not identity:
        raise ValueError("request_id is missing")
    waits = [instant_of(row, name) for name in ("delay", "tool_wait_ms") if row.get(name) is not None]
    return TraceRequest(
        place,
        tokens_of(row, "input_length"),
        tokens_of(row, "output_length"),
        None if parents else instant_of(row, "timestamp"),
        hash_ids_of(row),
        request_id=identity,
        session=name_of(row, "session_id"),
        wait_for=tuple(dict.fromkeys(parents)),
        pause_ms=sum(waits) if parents else None,
        reset=row.get("prefix_reset") is True,
    )


def with_instants(
    requests: Sequence[TraceRequest], broken: Collection[str] = ()
) -> tuple[list[TraceRequest], list[str]]:
    """The requests with the earliest instant of each, and mistakes between them: ids given twice, parents
    that do not exist, cycles. ``broken``: ids of rows that are invalid themselves."""
    counted = Counter(each.request_id for each in requests)
    mistakes = [
        f"{each.place}: request_id {each.request_id!r} occurs in {counted[each.request_id]} rows"
        for each in requests
        if counted[each.request_id] > 1
    ]
    mistakes += [
        f"{each.place}: waits for {parent!r}, which does not exist"
        for each in requests
        for parent in each.wait_for
        if parent not in counted and parent not in broken
    ]
    instants = _earliest({each.request_id: each for each in requests})
    mistakes += [
        f"{each.place}: waits for itself, perhaps through others"
        for each in requests
        if each.request_id not in instants
    ]
    if mistakes or broken:
        return [], mistakes
    return [replace(each, offset_ms=instants[each.request_id]) for each in requests], []


def _earliest(known: Mapping[str, TraceRequest]) -> dict[str, float]:
    """Request id → earliest instant, for requests whose parents have one. Those in a cycle, and after one,
    have none. Unknown parents are not waited for."""
    children: dict[str, list[str]] = {}
    parents = {name: [each for each in known[name].wait_for if each in known] for name in known}
    left = {name: len(own) for name, own in parents.items()}
    for name, own in parents.items():
        for parent in own:
            children.setdefault(parent, []).append(name)
    ready = deque(name for name, count in left.items() if not count)
    found: dict[str, float] = {}
    while ready:
        name = ready.popleft()
        each = known[name]
        after = max((found[parent] for parent in parents[name]), default=each.offset_ms or 0.0)
        found[name] = after + (each.pause_ms or 0.0)
        for child in children.get(name, ()):
            left[child] -= 1
            if not left[child]:
                ready.append(child)
    return found
