"""Traces from files: each format by a tiny file of its own, and every mistake of a hostile one at once."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.harness.workloads.files import read_workload_file
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.sections import ttft
from pytest_llmbench.store.traces.reading import read_trace
from pytest_llmbench.store.traces.request import Trace
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.trace import TraceWorkload

MOONCAKE = [
    {"timestamp": 3000, "input_length": 1000, "output_length": 500, "hash_ids": [0, 1]},
    {"timestamp": 1000, "input_length": 10, "output_length": 5, "hash_ids": [7]},
    {"timestamp": 2000, "input_length": 10, "output_length": 0, "hash_ids": []},
]
AGENTIC: list[dict[str, Any]] = [
    {"request_id": "join", "session_id": "s", "input_length": 1200, "output_length": 9, "hash_ids": [1, 2, 3],
     "wait_for": ["left", "right"], "delay": 5.0, "tool_wait_ms": 20},
    {"request_id": "start", "session_id": "s", "input_length": 600, "output_length": 9, "hash_ids": [1, 2],
     "timestamp": 100, "branches": ["left", "right"]},
    {"request_id": "left", "session_id": "s", "input_length": 700, "output_length": 9, "hash_ids": [1, 2],
     "wait_for": ["start"], "delay": 30},
    {"request_id": "right", "session_id": "s", "input_length": 700, "output_length": 9, "hash_ids": [1, 2],
     "wait_for": ["start"], "prefix_reset": False},
]  # fmt: skip
AZURE = (
    "TIMESTAMP,ContextTokens,GeneratedTokens\n"
    "2023-11-16 18:17:03.9799600,4808,10\n"
    "2023-11-16 18:17:04.0319600,3180,8\n"
)
BURST = (
    "Timestamp,Session ID,Elapsed time,Model,Request tokens,Response tokens,Total tokens,Log Type\n"
    "5,1.0,3,ChatGPT,472,18,490,Conversation log\n"
    "45,1.0,3,ChatGPT,1087,230,1317,Conversation log\n"
    "46,,0,GPT-4,0,0,0,API log\n"
)
SAID = "The first question has some more words than one block of sixteen tokens would hold, surely."
CONVERSATIONS = [
    {
        "id": "c1",
        "conversations": [
            {"from": "human", "value": SAID},
            {"from": "gpt", "value": "A short answer."},
            {"from": "human", "value": "And why?"},
            {"from": "gpt", "value": "For no reason."},
        ],
    },
    {"id": "c2", "conversations": [{"from": "gpt", "value": "Nobody asked."}]},
]
MESSAGES = [
    {"messages": [{"role": "system", "content": SAID}, {"role": "user", "content": "Hi"}], "max_tokens": 64},
    {
        "messages": [
            {"role": "system", "content": SAID},
            {"role": "user", "content": [{"type": "text", "text": "Call it"}, {"type": "image_url"}]},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "f"}}]},
        ]
    },
]
SPAN: dict[str, Any] = {
    "name": "chat m",
    "context": {"trace_id": "t"},
    "start_time": "2026-02-25T10:00:00.000000Z",
    "end_time": "2026-02-25T10:00:02.000000Z",
    "attributes": {
        "gen_ai.operation.name": "chat",
        "gen_ai.usage.input_tokens": 30,
        "gen_ai.usage.output_tokens": 7,
        "gen_ai.conversation.id": "c",
    },
}


def lines(rows: list[Any]) -> str:
    return "\n".join(json.dumps(row) for row in rows)


def trace(folder: Path, name: str, content: str, **more: Any) -> Trace:
    path = folder / name
    path.write_text(content, encoding="utf-8")
    return read_trace(path, **more)


def told(folder: Path, rows: list[Any], **more: Any) -> str:
    with pytest.raises(SuiteError) as caught:
        trace(folder, "t.jsonl", lines(rows), **more)
    return str(caught.value)


def test_mooncake(tmp_path: Path) -> None:
    found = trace(tmp_path, "m.jsonl", lines(MOONCAKE))
    assert (found.format, found.left_out, found.block_tokens) == ("mooncake", 1, 512)
    assert [(e.offset_ms, e.input_tokens, e.output_tokens, e.hash_ids) for e in found.entries] == [
        (0.0, 10, 5, (7,)),
        (2000.0, 1000, 500, (0, 1)),
    ]


def test_agentic_mooncake_starts_each_request_when_it_first_could(tmp_path: Path) -> None:
    found = trace(tmp_path, "a.jsonl", lines(AGENTIC))
    assert found.format == "agentic-mooncake"
    assert [(r.request_id, r.offset_ms, r.pause_ms) for r in found.requests] == [
        ("start", 0.0, None),
        ("right", 0.0, 0),
        ("left", 30.0, 30.0),
        ("join", 55.0, 25.0),
    ]
    assert {r.session for r in found.requests} == {"s"}
    assert any("earliest instant" in step for step in found.steps)


def test_azure_and_burstgpt(tmp_path: Path) -> None:
    azure = trace(tmp_path, "azure.csv", AZURE)
    assert [(e.input_tokens, e.output_tokens) for e in azure.entries] == [(4808, 10), (3180, 8)]
    assert azure.entries[1].offset_ms == pytest.approx(52.0, abs=1e-3)
    burst = trace(tmp_path, "burst.csv", BURST)
    assert (burst.format, burst.left_out) == ("burstgpt", 1)
    assert [(r.offset_ms, r.input_tokens, r.output_tokens, r.session) for r in burst.requests] == [
        (0.0, 472, 18, "1"),
        (40_000.0, 1087, 230, "1"),
    ]


def test_conversations_are_a_request_for_each_answer(tmp_path: Path) -> None:
    found = trace(tmp_path, "chats.json", json.dumps(CONVERSATIONS))
    count = reference_tokenizer().count
    first = count(SAID)
    assert found.format == "sharegpt"
    assert not found.is_timed
    assert [(r.input_tokens, r.output_tokens, r.session) for r in found.requests] == [
        (first, count("A short answer."), "row 1"),
        (first + count("A short answer.") + count("And why?"), count("For no reason."), "row 1"),
    ]
    one, two = (r.hash_ids for r in found.requests)
    assert one[:1] == two[:1]
    assert len(set(one) & set(two)) == first // 16


def test_conversations_with_one_id_are_several(tmp_path: Path) -> None:
    twice = [CONVERSATIONS[0], CONVERSATIONS[0] | {"conversations": CONVERSATIONS[0]["conversations"][:2]}]
    found = trace(tmp_path, "chats.json", json.dumps(twice))
    assert [r.session for r in found.requests] == ["row 1", "row 1", "row 2"]


@pytest.mark.parametrize(
    ("first", "second", "gap_ms"),
    [
        ("2023-11-16 18:17:03.9799600", "2023-11-16 18:17:04.0319600", 52.0),
        ("2024-05-10 00:00:00.009930+00:00", "2024-05-10 00:00:01.009930+00:00", 1000.0),
        ("2024-10-27 02:59:59+02:00", "2024-10-27 02:00:00+01:00", 1000.0),
        ("2024-05-10T00:00:00Z", "2024-05-10T00:00:01Z", 1000.0),
        ("2024-05-10T00:00:00.5+0200", "2024-05-10 00:00:00 -0100", 3 * 3_600_000 - 500.0),
    ],
)
def test_offsets_of_azure_s_instants(tmp_path: Path, first: str, second: str, gap_ms: float) -> None:
    table = f"TIMESTAMP,ContextTokens,GeneratedTokens\n{first},8,1\n{second},8,1\n"
    found = trace(tmp_path, "azure.csv", table)
    assert [r.offset_ms for r in found.requests] == pytest.approx([0.0, gap_ms], abs=1e-3)
    with pytest.raises(SuiteError, match="line 2: TIMESTAMP is"):
        trace(tmp_path, "azure.csv", table.replace(first, "yesterday"))


def test_long_fields_and_lines_of_a_table(tmp_path: Path) -> None:
    """A cell may be long and hold line ends; a row is named by the line on which it begins."""
    long = "x" * 300_000
    table = f'TIMESTAMP,ContextTokens,GeneratedTokens,note\n2024-05-10 00:00:00,8,1,"{long}\n\n{long}"\n\n'
    found = trace(tmp_path, "a.csv", table + "2024-05-10 00:00:01,8,1,\n")
    assert len(found.requests) == 2
    with pytest.raises(SuiteError, match="line 6: ContextTokens is"):
        trace(tmp_path, "a.csv", table + "2024-05-10 00:00:01,many,1,\n")


def test_arrays_of_messages(tmp_path: Path) -> None:
    found = trace(tmp_path, "m.jsonl", lines([MESSAGES[0], MESSAGES[1]["messages"]]))
    count = reference_tokenizer().count
    assert found.format == "messages"
    first, second = found.requests
    assert (first.input_tokens, first.output_tokens) == (count(SAID) + count("Hi"), 64)
    assert second.input_tokens == count(SAID) + count("Call it")
    assert second.output_tokens == count('[{"function": {"name": "f"}}]')
    assert first.hash_ids[0] == second.hash_ids[0] != first.hash_ids[1]
    timed = trace(
        tmp_path, "t.jsonl", lines([each | {"timestamp": 1000 * n} for n, each in enumerate(MESSAGES)])
    )
    assert [r.offset_ms for r in timed.requests] == [0, 1000]


def test_spans_of_all_three_shapes(tmp_path: Path) -> None:
    later = {"start_time": "2026-02-25T10:00:05Z", "end_time": "2026-02-25T10:00:06Z"}
    tool = {"name": "execute_tool x", "attributes": {"gen_ai.operation.name": "execute_tool"}}
    flat = trace(tmp_path, "flat.jsonl", lines([tool, SPAN | later, SPAN]))
    assert (flat.format, flat.left_out) == ("otel", 0)
    assert [(r.offset_ms, r.input_tokens, r.output_tokens, r.pause_ms) for r in flat.requests] == [
        (0.0, 30, 7, None),
        (5000.0, 30, 7, 3000.0),
    ]
    assert "1 other spans left out" in flat.steps
    assert trace(tmp_path, "doc.json", json.dumps({"spans": [SPAN, SPAN | later]})).entries == flat.entries
    start = 1_771_000_000_000_000_000
    otlp = {
        "traceId": "t",
        "spanId": "1",
        "parentSpanId": "of no model",
        "name": "chat m",
        "startTimeUnixNano": str(start),
        "endTimeUnixNano": str(start + 1),
        "attributes": [
            {"key": "gen_ai.usage.input_tokens", "value": {"intValue": "30"}},
            {"key": "gen_ai.usage.output_tokens", "value": {"intValue": "7"}},
        ],
    }
    found = trace(tmp_path, "o.jsonl", lines([{"resourceSpans": [{"scopeSpans": [{"spans": [otlp]}]}]}]))
    assert [(r.input_tokens, r.output_tokens, r.session) for r in found.requests] == [(30, 7, "t")]


def test_messages_of_a_span_say_its_lengths_and_its_beginning(tmp_path: Path) -> None:
    def span(*said: str) -> dict[str, Any]:
        asked = [{"role": "user", "content": text} for text in said]
        told = {"gen_ai.input.messages": json.dumps(asked), "gen_ai.output.text": "Done."}
        return SPAN | {"attributes": told}

    found = trace(tmp_path, "s.jsonl", lines([span(SAID), span(SAID, "more")]))
    count = reference_tokenizer().count
    assert [(r.input_tokens, r.output_tokens) for r in found.requests] == [
        (count(SAID), count("Done.")), (count(SAID) + count("more"), count("Done."))
    ]  # fmt: skip
    assert found.requests[0].hash_ids[0] == found.requests[1].hash_ids[0]


@pytest.mark.parametrize("stated", [40, 17])
def test_a_length_that_a_span_states_counts_and_its_messages_say_what_it_begins_with(
    tmp_path: Path, stated: int
) -> None:
    asked = {"gen_ai.input.messages": [{"role": "user", "content": SAID}]}
    span = SPAN | {"attributes": SPAN["attributes"] | asked | {"gen_ai.usage.input_tokens": stated}}
    one, two = trace(tmp_path, "s.jsonl", lines([span, span])).requests
    assert one.input_tokens == stated
    assert len(one.hash_ids) == -(-stated // 16)
    assert one.hash_ids[0] == two.hash_ids[0]
    # What fills up a longer prompt is nobody else's.
    assert len(set(one.hash_ids) & set(two.hash_ids)) == min(2, len(one.hash_ids))


def test_packed_files_and_a_format_that_is_named(tmp_path: Path) -> None:
    path = tmp_path / "m.jsonl.gz"
    path.write_bytes(gzip.compress(lines(MOONCAKE).encode()))
    assert len(read_trace(path).entries) == 2
    assert len(trace(tmp_path, "rows.txt", lines(MOONCAKE), format_="jsonl", trace="mooncake").entries) == 2


def test_every_bad_line_is_named_at_once(tmp_path: Path) -> None:
    good = MOONCAKE[0]
    path = tmp_path / "bad.jsonl"
    rows = [json.dumps(good), "{broken", "[1, 2]", "7"]
    rows += [
        json.dumps(good | wrong)
        for wrong in (
            {"input_length": -5},
            {"timestamp": float("nan")},
            {"output_length": 10**12},
            {"hash_ids": [0, -1]},
            {"hash_ids": "abc"},
            {"timestamp": -1},
            {"input_length": 1.5},
            {"output_length": True},
            {"input_length": None},
        )
    ]
    path.write_text("\n".join(rows))
    with pytest.raises(SuiteError, match="12 mistakes") as caught:
        read_trace(path)
    for said in (
        "line 2 is not JSON", "line 3: ", "line 4 is not a JSON object", "line 5: input_length is -5",
        "line 6: timestamp is nan", "line 7: output_length is 1000000000000", "line 8: hash_ids holds -1",
        "line 9: hash_ids is 'abc'", "line 10: timestamp is -1: it is neg", "line 11: input_length is 1.",
        "line 12: output_length is True", "line 13: input_length is missing",
    ):  # fmt: skip
        assert said in str(caught.value)


def test_mistakes_between_rows(tmp_path: Path) -> None:
    wrong = [
        AGENTIC[1],
        AGENTIC[2] | {"wait_for": ["nobody"]},
        AGENTIC[2] | {"delay": -3},
        AGENTIC[3] | {"wait_for": "start"},
        AGENTIC[3] | {"request_id": ""},
        AGENTIC[1] | {"timestamp": None, "request_id": "x"},
        AGENTIC[2]
        | {"request_id": "y", "wait_for": ["right"]},  # of a row that is wrong: no mistake of its own
    ]
    said = told(tmp_path, wrong)
    for each in (
        "line 2: waits for 'nobody', which does not exist", "line 3: delay is -3: it is negative",
        "line 4: wait_for must be a list", "line 5: request_id is missing", "line 6: timestamp is missing",
    ):  # fmt: skip
        assert each in said
    assert "line 7" not in said
    circle = [AGENTIC[1], AGENTIC[2] | {"wait_for": ["right"]}, AGENTIC[3] | {"wait_for": ["left"]}]
    assert "line 2: waits for itself" in told(tmp_path, circle)
    assert "occurs in 2 rows" in told(tmp_path, [AGENTIC[1], AGENTIC[1]])


def test_too_few_blocks_and_too_long_a_trace(tmp_path: Path) -> None:
    row = MOONCAKE[0]
    assert "line 1: 2 hash ids are too few for 1025 tokens" in told(tmp_path, [row | {"input_length": 1025}])
    assert "spans more than a year" in told(tmp_path, [row, row | {"timestamp": 4e10}])
    assert "holds no requests" in told(tmp_path, [MOONCAKE[2]])
    assert "holds no requests" in told(tmp_path, [])


def test_bad_conversations_messages_and_spans(tmp_path: Path) -> None:
    for rows, each in [
        ([{"conversations": 3}], "line 1: conversations is 3"),
        ([{"conversations": [{"from": "human", "value": 4}]}], "line 1: turn 1 has no text but 4"),
        ([{"messages": []}], "line 1: messages is []"),
        (
            [{"messages": [{"role": "user", "content": "x"}]}],
            "not from the assistant, and there is no output_length",
        ),
        ([{"messages": [3, {"role": "user", "content": "x"}]}], "message 1 is 3"),
        ([SPAN | {"end_time": "2026-02-25T09:00:00Z"}], "line 1: it ends before it starts"),
        ([SPAN | {"start_time": "soon"}], "line 1: start_time is 'soon'"),
        ([SPAN | {"attributes": {"gen_ai.usage.input_tokens": 3}}], "it states neither"),
        ([{"spans": [SPAN, SPAN | {"attributes": 3}]}], "line 1, span 2: attributes is 3"),
        ([{"resourceSpans": [{"scopeSpans": 3}]}], "line 1: scopeSpans must be a list"),
        ([{"colour": "red"}], "the first row is not a request of a trace; it has colour"),
    ]:
        assert each in told(tmp_path, rows)


def test_a_million_mistakes_are_counted(tmp_path: Path) -> None:
    said = told(tmp_path, [MOONCAKE[0] | {"input_length": -1}] * 50)
    assert "and 38 more" in said
    assert len(said) < 5000


@pytest.mark.parametrize(("name", "content"), [("a.csv", AZURE), ("c.json", json.dumps(CONVERSATIONS))])
def test_a_trace_is_a_workload_with_what_was_done_to_it(tmp_path: Path, name: str, content: str) -> None:
    (tmp_path / name).write_text(content)
    file = tmp_path / "w.toml"
    file.write_text(
        f'[workloads.t]\nkind = "trace"\npath = "{name}"\ndataset = "d"\nversion = "1"\n'
        'subset_method = "all"\n'
    )
    made = read_workload_file(file)["t"]
    assert isinstance(made, TraceWorkload)
    assert "left out" in made.specification()["dataset"]["preprocessing"][-1]
    if name == "a.csv":
        assert made.offsets_ns == (0, 52_000_000)
        return
    assert [r.shared_prefix_tokens for r in made.requests(2, 1)] == [
        0,
        reference_tokenizer().count(SAID) // 16 * 16,
    ]
    with pytest.raises(SuiteError, match="needs a workload with arrival instants"):
        build(ttft.Parameters, {"workload": made, "arrival": "trace"})
