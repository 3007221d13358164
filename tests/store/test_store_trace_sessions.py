"""Sessions of traces: causes and pauses of each format by a tiny file, and every mistake at once."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.store.traces.reading import read_trace
from pytest_llmbench.store.traces.sessions import BY_ENDS, BY_NAME, SessionsOfTrace, sessions_of_trace
from pytest_llmbench.workloads.trace_sessions import TracedTurn

AGENTIC: list[dict[str, Any]] = [
    {"request_id": "join", "session_id": "s", "input_length": 1200, "output_length": 9, "hash_ids": [1, 3, 4],
     "wait_for": ["left", "right"], "delay": 5.0, "tool_wait_ms": 20},
    {"request_id": "right", "session_id": "s", "input_length": 700, "output_length": 8, "hash_ids": [1, 3],
     "wait_for": ["start"]},
    {"request_id": "left", "session_id": "s", "input_length": 700, "output_length": 7, "hash_ids": [1, 2],
     "wait_for": ["start"], "delay": 30, "prefix_reset": True},
    {"request_id": "start", "session_id": "s", "input_length": 600, "output_length": 6, "hash_ids": [1, 2],
     "timestamp": 1100},
    {"request_id": "other", "session_id": "t", "input_length": 5, "output_length": 5, "timestamp": 1000},
]  # fmt: skip
SAID = "The first question has some more words than one block of sixteen tokens would hold, surely."


def sessions(folder: Path, rows: list[Any] | str, name: str = "t.jsonl") -> SessionsOfTrace:
    path = folder / name
    path.write_text(rows if isinstance(rows, str) else "\n".join(map(json.dumps, rows)), encoding="utf-8")
    return sessions_of_trace(read_trace(path), str(path))


def told(folder: Path, rows: list[Any] | str, name: str = "t.jsonl") -> str:
    with pytest.raises(SuiteError) as caught:
        sessions(folder, rows, name)
    return str(caught.value)


def edges(found: SessionsOfTrace) -> list[list[tuple[tuple[int, ...], float]]]:
    return [[(turn.wait_for, turn.pause_ms) for turn in each.turns] for each in found.sessions]


def mooncake(session: str | None, at: float | None, tokens: int = 10, **more: Any) -> dict[str, Any]:
    row = {"session_id": session, "timestamp": at, "input_length": tokens, "output_length": 5, **more}
    return {key: value for key, value in row.items() if value is not None}


def span(session: str, start_s: float, end_s: float, tokens: int = 30) -> dict[str, Any]:
    return {
        "name": "chat m",
        "startTimeUnixNano": str(round(start_s * 1e9)),
        "endTimeUnixNano": str(round(end_s * 1e9)),
        "attributes": {
            "gen_ai.usage.input_tokens": tokens,
            "gen_ai.usage.output_tokens": 7,
            "gen_ai.conversation.id": session,
        },
    }


def test_requests_that_name_others_wait_for_those(tmp_path: Path) -> None:
    found = sessions(tmp_path, AGENTIC)
    assert found.timed
    assert [each.offset_ms for each in found.sessions] == [0.0, 100.0]
    assert found.sessions[0].turns == (TracedTurn(5, 5),)
    assert found.sessions[1].turns == (
        TracedTurn(600, 6, (), 0.0, (1, 2)),
        TracedTurn(700, 8, (1,), 0.0, (1, 3)),
        TracedTurn(700, 7, (1,), 30.0, (1, 2), reset=True),
        # The join goes on from the one whose blocks it has, whichever is named first.
        TracedTurn(1200, 9, (2, 3), 25.0, (1, 3, 4)),
    )
    assert BY_NAME in found.steps
    assert not any("earliest instant" in step for step in found.steps)


def test_a_request_that_names_none_starts_at_its_own_instant(tmp_path: Path) -> None:
    late = AGENTIC[4] | {"request_id": "late", "timestamp": 1450}
    found = sessions(tmp_path, [AGENTIC[4], late])
    assert edges(found) == [[((), 0.0), ((), 450.0)]]


def test_sessions_that_wait_for_one_another_are_one(tmp_path: Path) -> None:
    rows: list[dict[str, Any]] = [
        mooncake("main", 0, request_id="a"),
        mooncake("helper", None, request_id="b", wait_for=["a"]),
        mooncake(None, None, request_id="c", wait_for=["b"]),
        mooncake("main", None, request_id="d", wait_for=["c", "a"]),
        mooncake(None, 7, request_id="alone"),
    ]
    found = sessions(tmp_path, rows)
    assert [[turn.wait_for for turn in each.turns] for each in found.sessions] == [
        [(), (1,), (2,), (3, 1)],
    ]
    assert "1 requests that name no session left out" in found.steps


def test_spans_wait_for_what_had_ended_when_they_started(tmp_path: Path) -> None:
    rows = [
        span("b", 90, 91),
        span("a", 100, 101),
        span("a", 101.5, 104, 60),  # after the first
        span("a", 102, 103, 50),  # beside it
        span("a", 103.25, 103.5, 55),  # after the short one, beside the long one
        span("a", 106, 107, 65),  # after all of that
        span("a", 107, 107, 70),
        span("a", 107, 108, 75),
    ]
    found = sessions(tmp_path, rows)
    assert [each.offset_ms for each in found.sessions] == [0.0, 10_000.0]
    first, second = edges(found)
    assert first == [((), 0.0)]
    assert second == [
        ((), 0.0),
        ((1,), 500.0),
        ((1,), 1000.0),
        ((3,), 250.0),
        ((2, 4), 2000.0),  # the longest prompt that is shorter than its own comes first
        ((5,), 0.0),
        ((6,), 0.0),
    ]
    assert BY_ENDS in found.steps


def test_spans_that_begin_together_start_at_their_own_instants(tmp_path: Path) -> None:
    found = sessions(tmp_path, [span("a", 1, 9), span("a", 2.5, 3), span("a", 4, 5)])
    assert edges(found) == [[((), 0.0), ((), 1500.0), ((2,), 1000.0)]]


def test_the_pause_of_requests_with_their_starts_alone_is_the_gap(tmp_path: Path) -> None:
    rows = [mooncake("a", 5000), mooncake("b", 4000), mooncake("a", 9000), mooncake(None, 1000)]
    found = sessions(tmp_path, rows)
    assert [each.offset_ms for each in found.sessions] == [0.0, 1000.0]
    assert edges(found) == [[((), 0.0)], [((), 0.0), ((1,), 4000.0)]]
    assert any("holds the time of the recorded reply as well" in step for step in found.steps)
    assert "1 requests that name no session left out" in found.steps
    burst = (
        "Timestamp,Session ID,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
        "5,7.0,ChatGPT,472,18,490,Conversation log\n"
        "6,7.0,ChatGPT,472,0,472,Conversation log\n"
        "45,7.0,ChatGPT,1087,230,1317,Conversation log\n"
    )
    found = sessions(tmp_path, burst, "burst.csv")
    assert found.sessions[0].turns == (TracedTurn(472, 18), TracedTurn(1087, 230, (1,), 40_000.0))


def test_a_delay_counts_from_the_end_of_the_turn_before_it(tmp_path: Path) -> None:
    rows = [
        mooncake("a", 100),
        mooncake("a", None, delay=50),
        mooncake("b", 40),
        mooncake("a", None, delay=0),
    ]
    found = sessions(tmp_path, rows)
    assert found.timed
    assert edges(found) == [[((), 0.0)], [((), 0.0), ((1,), 50.0), ((2,), 0.0)]]
    assert [each.offset_ms for each in found.sessions] == [0.0, 60.0]
    untimed = sessions(tmp_path, [*rows, mooncake("c", None, delay=3)])
    assert not untimed.timed
    assert [len(each.turns) for each in untimed.sessions] == [3, 1, 1]  # in the order of the file
    assert {each.offset_ms for each in untimed.sessions} == {0.0}
    asked = [{"role": "user", "content": SAID}]
    said = [
        {"session_id": "m", "messages": asked, "max_tokens": 9},
        {"session_id": "m", "messages": [*asked, *asked], "max_tokens": 9, "delay": 70.5},
    ]
    (chat,) = sessions(tmp_path, said).sessions
    assert [(turn.wait_for, turn.pause_ms) for turn in chat.turns] == [((), 0.0), ((1,), 70.5)]


def test_single_requests_of_such_a_trace_have_no_instants(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text("\n".join(map(json.dumps, [mooncake("a", 100), mooncake("a", None, delay=50)])))
    found = read_trace(path)
    assert not found.is_timed
    assert [entry.offset_ms for entry in found.entries] == [0.0, 0.0]


def test_turns_of_a_conversation_follow_at_once(tmp_path: Path) -> None:
    turns = [{"from": who, "value": SAID} for who in ("human", "gpt") * 3]
    rows = [{"id": "one", "conversations": turns}, {"conversations": turns[:2]}]
    found = sessions(tmp_path, json.dumps(rows), "chats.json")
    assert not found.timed
    assert edges(found) == [[((), 0.0), ((1,), 0.0), ((2,), 0.0)], [((), 0.0)]]
    first, second = found.sessions[0].turns[:2]
    full = first.input_tokens // 16  # the last block of a prompt is another one where more follows in it
    assert first.hash_ids[:full] == second.hash_ids[:full]


def test_a_trace_without_sessions_is_refused_with_what_names_them(tmp_path: Path) -> None:
    azure = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03.9799600,4808,10\n"
    said = told(tmp_path, azure, "azure.csv")
    assert "none of its 1 requests has a session" in said
    assert "session_id" in said
    assert "azure.csv" in said


def test_mistakes_between_rows_are_told_together_with_their_lines(tmp_path: Path) -> None:
    wrong = [
        AGENTIC[3],
        AGENTIC[2] | {"request_id": "b", "wait_for": ["nobody"]},
        AGENTIC[1] | {"request_id": "c", "wait_for": ["d"]},
        AGENTIC[1] | {"request_id": "d", "wait_for": ["c", "nobody"]},
        AGENTIC[1] | {"request_id": "e", "delay": -3},
        AGENTIC[1] | {"request_id": "f", "wait_for": ["e"]},  # of a row that is wrong: no mistake of its own
    ]
    said = told(tmp_path, wrong)
    for each in (
        "line 2: waits for 'nobody', which does not exist",
        "line 3: waits for itself",
        "line 4: waits for 'nobody', which does not exist",
        "line 4: waits for itself",
        "line 5: delay is -3: it is negative",
    ):
        assert each in said
    assert "line 6" not in said
    empty = AGENTIC[1] | {"output_length": 0}
    assert "line 3: waits for 'right', which has no input or output tokens" in told(
        tmp_path, [AGENTIC[3], empty, AGENTIC[0] | {"wait_for": ["right"]}]
    )


def test_a_session_without_end_is_refused_with_the_line_where_it_is_too_long(tmp_path: Path) -> None:
    said = told(tmp_path, [mooncake("a", 1)] * 10_002 + [mooncake("b", 1)])
    assert "line 10001: its session has 10,002 requests, at most 10,000" in said


def test_requests_that_go_back_in_time_are_told_with_their_lines(tmp_path: Path) -> None:
    rows = [mooncake("a", 1000), mooncake("a", 900), mooncake("a", None, delay=5), mooncake("b", 80)]
    rows += [mooncake("b", 70)]
    said = told(tmp_path, rows)
    assert "line 2: starts before line 1, the one before it in its session" in said
    assert "line 5: starts before line 4" in said
    assert "line 3" not in said
