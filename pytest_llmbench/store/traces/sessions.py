"""The sessions of a trace: which requests belong together, what each waits for, and how long it pauses.

A turn pauses from the end of the last turn that it waits for. What a trace says of that depends on its
format.

- **Rows that name others** (agentic Mooncake) wait for those, and pause ``delay + tool_wait_ms``. A row that
  names none starts at its ``timestamp``. Sessions one of which waits for a request of another are one.
- **Rows with their ends** (spans) wait for those of their session that had ended when they started, but for
  those that one of these had waited for already. The pause is the time from the last of these ends to their
  start. So what overlapped does not wait for each other, and what came after it waits for all of it.
- **Rows with their starts alone** (Mooncake, BurstGPT, messages) wait for the one before them in their
  session. The pause is their ``delay`` where they have one. Else it is the gap between the two starts, which
  holds the time of the recorded reply as well: nobody knows how much that was.
- **Rows without instants** (conversations) wait for the one before them, without a pause.

The first of the turns that a turn waits for is the one whose prompt it shares most with, as far as the trace
says; without blocks the one with the longest prompt that is shorter than its own.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.store.traces.mooncake import EARLIEST
from pytest_llmbench.store.traces.request import Trace, TraceRequest, refuse
from pytest_llmbench.workloads.sessions import MOST_TURNS
from pytest_llmbench.workloads.trace_sessions import TracedSession, TracedTurn, common_blocks

BY_NAME = (
    "requests wait for those they name, and pause delay + tool_wait_ms; sessions one of which waits for a "
    "request of another are one"
)
BY_ENDS = (
    "requests wait for those of their session that had ended when they started, and pause from the last of "
    "these ends"
)
BY_STARTS = (
    "requests wait for the one before them in their session; they pause for their delay, else for the gap "
    "between the two starts, which holds the time of the recorded reply as well"
)
IN_A_ROW = "requests wait for the one before them in their session, without a pause: there are no instants"
_NAMES = (
    "a session is named by session_id (Mooncake, messages), Session ID (BurstGPT), gen_ai.conversation.id, "
    "session.id or the trace (spans), or is a row (conversations); without sessions = true every row is a "
    "single request"
)


@dataclass(frozen=True, slots=True)
class SessionsOfTrace:
    """The sessions in the order of their starts, counted from the first; if the trace does not say when each
    of them starts, in that of the file, all at 0."""

    sessions: tuple[TracedSession, ...]
    timed: bool
    steps: tuple[str, ...]
    """How the rows were processed, for the statement of the data set."""


class _Caused(NamedTuple):
    """A request of a session, with the indices in the session of those that it waits for."""

    request: TraceRequest
    wait_for: Sequence[int]
    pause_ms: float


def sessions_of_trace(trace: Trace, where: str) -> SessionsOfTrace:
    """The sessions of a trace. Raises SuiteError with the mistakes of all rows, and for a trace without
    sessions."""
    groups, alone = _groups(trace.requests)
    if not groups:
        raise SuiteError(f"none of its {alone} requests has a session", where=where, remedy=_NAMES)
    mistakes = [
        f"{group[MOST_TURNS].place}: its session has {len(group):,} requests, at most {MOST_TURNS:,}"
        for group in groups
        if len(group) > MOST_TURNS
    ]
    refuse(mistakes, where)
    step = _step(trace)
    found = [_session(group, step, mistakes) for group in groups]
    refuse(mistakes, where)
    begun = [group[0].offset_ms for group in groups]
    starts = [instant for instant in begun if instant is not None]
    timed = len(starts) == len(found)
    if timed:
        first = min(starts)
        moved = [replace(each, offset_ms=at - first) for each, at in zip(found, starts, strict=True)]
        found = sorted(moved, key=lambda each: each.offset_ms)
    left = (f"{alone} requests that name no session left out",) if alone else ()
    steps = (*(each for each in trace.steps if each != EARLIEST), step, *left)
    return SessionsOfTrace(tuple(found), timed, steps)


def _groups(requests: Sequence[TraceRequest]) -> tuple[list[list[TraceRequest]], int]:
    """Groups of requests that name the same session or wait for one another, and the number of requests that
    do neither. A group is in the order of the trace: its first request is the one that starts it."""
    leader: dict[tuple[str, str], tuple[str, str]] = {}

    def led_by(node: tuple[str, str]) -> tuple[str, str]:
        while leader.setdefault(node, node) != node:
            leader[node] = leader[leader[node]]
            node = leader[node]
        return node

    known = {each.request_id: _node(each) for each in requests if each.request_id}
    for each in requests:
        for parent in each.wait_for:
            if parent in known:
                leader[led_by(_node(each))] = led_by(known[parent])
    groups: dict[tuple[str, str], list[TraceRequest]] = {}
    for each in requests:
        groups.setdefault(led_by(_node(each)), []).append(each)
    kept = [group for group in groups.values() if len(group) > 1 or group[0].session]
    return kept, len(requests) - sum(map(len, kept))


def _node(request: TraceRequest) -> tuple[str, str]:
    if request.session:
        return "session", request.session
    return "request", request.request_id or request.place


def _step(trace: Trace) -> str:
    """The rule by which its requests wait, in words."""
    if trace.format == "agentic-mooncake":
        return BY_NAME
    if trace.is_timed and all(each.end_ms is not None for each in trace.requests):
        return BY_ENDS
    told = any(each.offset_ms is not None or each.pause_ms is not None for each in trace.requests)
    return BY_STARTS if told else IN_A_ROW


def _session(group: Sequence[TraceRequest], step: str, mistakes: list[str]) -> TracedSession:
    if step == BY_NAME:
        caused = _by_name(group, mistakes)
    else:
        caused = _by_ends(group) if step == BY_ENDS else _by_starts(group, mistakes)
    turns: list[TracedTurn] = []
    for request, wait_for, pause_ms in caused:
        turn = TracedTurn(
            request.input_tokens,
            request.output_tokens,
            pause_ms=pause_ms,
            hash_ids=request.hash_ids,
            reset=request.reset,
            messages=request.messages,
        )
        places = _most_shared_first(turn, wait_for, turns)
        turns.append(replace(turn, wait_for=tuple(place + 1 for place in places)))
    return TracedSession(tuple(turns))


def _most_shared_first(turn: TracedTurn, wait_for: Sequence[int], turns: Sequence[TracedTurn]) -> list[int]:
    def shared(place: int) -> int:
        before = turns[place]
        if turn.hash_ids:
            return common_blocks(turn, before)
        return before.input_tokens if before.input_tokens < turn.input_tokens else 0

    return sorted(wait_for, key=shared, reverse=True)


def _by_name(group: Sequence[TraceRequest], mistakes: list[str]) -> list[_Caused]:
    """The requests, each after those that it names, otherwise in the order of the trace."""
    known = {each.request_id: number for number, each in enumerate(group)}
    lost = [
        f"{each.place}: waits for {parent!r}, which has no input or output tokens"
        for each in group
        for parent in each.wait_for
        if parent not in known
    ]
    if lost:
        mistakes += lost
        return []
    children: dict[int, list[int]] = {}
    for number, each in enumerate(group):
        for parent in each.wait_for:
            children.setdefault(known[parent], []).append(number)
    left = [len(each.wait_for) for each in group]
    ready = [number for number, count in enumerate(left) if not count]
    place: dict[int, int] = {}
    found: list[_Caused] = []
    while ready:
        number = heapq.heappop(ready)
        request = group[number]
        place[number] = len(found)
        waits = [place[known[parent]] for parent in request.wait_for]
        pause_ms = (
            (request.pause_ms or 0.0) if waits else (request.offset_ms or 0.0) - (group[0].offset_ms or 0.0)
        )
        found.append(_Caused(request, waits, pause_ms))
        for child in children.get(number, ()):
            left[child] -= 1
            if not left[child]:
                heapq.heappush(ready, child)
    return found


def _by_ends(group: Sequence[TraceRequest]) -> list[_Caused]:
    """The requests with what they wait for, by all starts and ends. Of those that had ended, the one that
    started last had waited for whatever had ended by its own start, so only the others are waited for in
    addition."""
    starts = [each.offset_ms or 0.0 for each in group]
    ends = [each.end_ms or 0.0 for each in group]
    found = []
    for number, request in enumerate(group):
        start = starts[number]
        ended = [other for other in range(number) if ends[other] <= start]
        last = ended[-1] if ended else -1
        waits = [other for other in ended if other == last or ends[other] > starts[last]]
        since = max((ends[other] for other in waits), default=starts[0])
        found.append(_Caused(request, waits, start - since))
    return found


def _by_starts(group: Sequence[TraceRequest], mistakes: list[str]) -> list[_Caused]:
    found = [_Caused(group[0], (), 0.0)]
    for number, request in enumerate(group[1:]):
        before, pause_ms = group[number], request.pause_ms
        if pause_ms is None and before.offset_ms is not None and request.offset_ms is not None:
            pause_ms = request.offset_ms - before.offset_ms
        if pause_ms is not None and pause_ms < 0:
            mistakes.append(
                f"{request.place}: starts before {before.place}, the one before it in its session"
            )
        found.append(_Caused(request, (number,), pause_ms or 0.0))
    return found
