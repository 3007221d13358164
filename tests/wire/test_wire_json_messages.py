"""JSON messages as they are described: requests, replies cut anywhere, odd values, mistakes of the tables."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator, Mapping
from copy import deepcopy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websocket_script import frame, handshake, text
from websockets.frames import TEXT

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.model.messages import Message, MessageArray
from pytest_llmbench.model.record import Outcome, TokenSource
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.catalogue import dialect, dialect_at, generates, over_websocket
from pytest_llmbench.wire.dialect import EncodeOptions, MessageDialect
from pytest_llmbench.wire.reply import STREAM_END, StreamSummary, read_stream
from pytest_llmbench.wire.sse import SSEEvent, as_event
from pytest_llmbench.wire.stream import chunks_of
from pytest_llmbench.wire.uniform import read_uniform
from pytest_llmbench.wire.websocket.description import read_description
from pytest_llmbench.wire.websocket.json_messages import JsonMessages
from pytest_llmbench.wire.websocket.messages import MessageReader

PLAIN: dict[str, Any] = {
    "path": "/generate",
    "request": {"prompt": "{prompt}", "n": "{max_tokens}", "temperature": "{temperature}"},
    "text": "delta",
    "end": "done",
}
TYPED: dict[str, Any] = {
    "request": {"type": "ask", "prompt": "{prompt}", "max": "{max_tokens}", "temperature": "{temperature}"},
    "text": {"at": "data.text", "when": {"type": "token"}},
    "reasoning": {"at": "data.text", "when": {"type": "thought"}},
    "end": {"when": {"type": ["end", "stopped"]}},
    "finish_reason": "data.why",
    "error": {"at": "data.message", "when": {"type": "failed"}},
    "error_status": "data.code",
    "input_tokens": "data.usage.0.prompt",
    "output_tokens": "data.usage.0.reply",
    "cached_tokens": "data.usage.0.cached",
    "reasoning_tokens": "data.usage.0.thoughts",
}
COUNTED = {**PLAIN, "output_tokens": "n"}
SAYING_ALL = {**PLAIN, "accumulates": True}
BY_CLOSING = {"request": "{prompt}".join(('["say", {"p": "', '"}]')), "text": "1"}


def described(table: Mapping[str, Any]) -> JsonMessages:
    mistakes: list[str] = []
    found = read_description(table, mistakes)
    assert not mistakes
    assert found is not None
    return found


def mistakes_in(table: Mapping[str, Any]) -> list[str]:
    mistakes: list[str] = []
    assert read_description(table, mistakes) is None
    return mistakes


def typed(kind: str, **data: Any) -> dict[str, Any]:
    return {"type": kind, "data": data}


PLAIN_REPLY: list[Any] = [
    {"state": "queued"},
    {"delta": "Grüße"},
    {"delta": " 漢"},
    {"delta": "", "done": True},
]
USAGE = [{"prompt": 9, "reply": 4, "cached": 8, "thoughts": 1}]
TYPED_REPLY: list[Any] = [
    typed("thought", text="hm"),
    typed("token", text="one"),
    typed("token", text=" two"),
    typed("end", text="one two", why="length", usage=USAGE),
]
COUNTED_REPLY: list[Any] = [{"delta": "a b", "n": 2}, {"delta": " c", "n": 3}, {"done": True, "n": 3}]
ALL_SO_FAR: list[Any] = [{"delta": "a"}, {"delta": "a b"}, {"delta": "a b c", "done": True}]
LISTS: list[Any] = [["token", "a"], ["token", " b"]]

REPLIES: dict[str, tuple[dict[str, Any], list[Any], dict[str, Any]]] = {
    "plain": (
        PLAIN,
        PLAIN_REPLY,
        {"text": "Grüße 漢", "finish_reason": STREAM_END, "output_tokens": 2, "token_source": "chunk_count"},
    ),
    "typed": (
        TYPED,
        TYPED_REPLY,
        {
            "text": "one two", "reasoning": "hm", "finish_reason": "length", "token_source": "server_usage",
            "output_tokens": 4, "input_tokens": 9, "cached_tokens": 8, "reasoning_tokens": 1,
        },
    ),
    "counted": (
        COUNTED,
        COUNTED_REPLY,
        {"text": "a b c", "output_tokens": 3, "chunk_tokens": [2, 1], "attribution": "exact"},
    ),
    "all so far": (SAYING_ALL, ALL_SO_FAR, {"text": "a b c", "output_tokens": 3}),
    "by closing": (BY_CLOSING, LISTS, {"text": "a b", "finish_reason": STREAM_END}),
}  # fmt: skip
EACH = pytest.mark.parametrize("name", REPLIES)


def summary_of(spoken: JsonMessages, reads: list[tuple[bytes, int]]) -> StreamSummary:
    return read_stream(list(chunks_of(reads, spoken)))


def events(*payloads: object) -> bytes:
    return b"".join(as_event(json.dumps(payload, ensure_ascii=False).encode()) for payload in payloads)


def outcome(table: Mapping[str, Any], *payloads: object) -> tuple[Outcome, str | None]:
    found = summary_of(described(table), [(events(*payloads), 0)])
    return found.outcome, found.error


# --- replies


@EACH
def test_known_answers(name: str) -> None:
    table, reply, wanted = REPLIES[name]
    summary = summary_of(described(table), [(events(*reply), 5)])
    assert {key: getattr(summary, key) for key in wanted} == wanted
    assert (summary.outcome, summary.error) == (Outcome.OK, None)


@EACH
def test_cut_at_every_byte(name: str) -> None:
    """From frames to a summary. Each chunk has the instant of the read with its last byte."""
    table, reply, _ = REPLIES[name]
    spoken, sent = described(table), b"".join(map(text, reply))
    whole = arrived(spoken, [sent])
    bytewise = arrived(spoken, [sent[at : at + 1] for at in range(len(sent))])
    assert len(set(bytewise.chunk_ns)) == len(bytewise.chunk_ns)
    for cut in range(len(sent) + 1):
        halves = arrived(spoken, [sent[:cut], sent[cut:]])
        assert halves.chunk_ns == [int(at >= cut) for at in bytewise.chunk_ns]
        assert (halves.text, halves.reasoning, halves.outcome, halves.output_tokens, halves.chunk_tokens) == (
            whole.text, whole.reasoning, whole.outcome, whole.output_tokens, whole.chunk_tokens,
        )  # fmt: skip


def arrived(spoken: JsonMessages, pieces: list[bytes]) -> StreamSummary:
    """What comes of a reply in these reads, the stamp of each being its number."""
    reader = MessageReader("ws://h/x")
    reader.feed(handshake(reader.opening().decode()))
    reads = []
    for number, piece in enumerate(pieces):
        read = reader.feed(piece)
        reads.append((b"".join(map(as_event, read.messages)), number))
    return summary_of(spoken, reads)


@EACH
def test_the_last_message_and_no_other_ends_a_reply(name: str) -> None:
    table, reply, _ = REPLIES[name]
    last = [described(table).is_last(json.dumps(message).encode()) for message in reply]
    assert last == [False] * (len(reply) - 1) + [name != "by closing"]


@pytest.mark.parametrize("name", ["plain", "counted", "typed"])
def test_replies_read_as_a_whole_are_those_read_event_by_event(name: str) -> None:
    table, reply, _ = REPLIES[name]
    if name == "plain":
        table, reply = {**table, "output_tokens": "n"}, [*reply[1:-1], {"done": True, "n": 2}]
    spoken, body = described(table), events(*reply)
    usual = read_uniform([body], [5], spoken)
    assert usual in (None, summary_of(spoken, [(body, 5)]))
    assert (usual is not None) == (name == "plain")


def test_text_that_ends_a_reply_is_not_taken_for_other_text() -> None:
    """Whoever compares the bytes around texts must not miss what one of them means."""
    table = {**PLAIN, "end": {"when": {"delta": "[END]"}}}
    body = events({"delta": "a"}, {"delta": "b"}, {"delta": "[END]"})
    chunks = list(chunks_of([(body, 0)], described(table)))
    assert [chunk.done for chunk in chunks] == [False, False, True]


def test_what_is_not_declared_is_not_known() -> None:
    found = summary_of(described(PLAIN), [(events({"delta": "x", "n": 9}, {"done": True, "usage": 7}), 0)])
    assert (found.input_tokens, found.cached_tokens, found.token_source) == (
        None,
        None,
        TokenSource.CHUNK_COUNT,
    )


@pytest.mark.parametrize(
    ("table", "payloads", "wanted", "said"),
    [
        (PLAIN, [{"delta": "x"}], Outcome.TRUNCATED, "without a finish reason or an end marker"),
        (PLAIN, [{"done": True}], Outcome.EMPTY, "no content"),
        (PLAIN, [{"delta": "x"}, {"error": "no slot"}], Outcome.IN_BAND_ERROR, "no slot"),
        (PLAIN, [{"error": {"message": "later", "code": 429}}], Outcome.RATE_LIMITED, "later"),
        (PLAIN, [{"error": True, "message": "broken"}], Outcome.IN_BAND_ERROR, "broken"),
        (PLAIN, [{"error": {"code": "content_filter"}}], Outcome.REFUSED, "content_filter"),
        (PLAIN, [{"error": None, "delta": "x"}, {"error": "", "done": True}], Outcome.OK, None),
        (PLAIN, [{"delta": {"text": "x"}}], Outcome.UNDECODABLE, "text that is no text but dict"),
        (PLAIN, [{"delta": "x"}, {"delta": 7}], Outcome.UNDECODABLE, "text that is no text but int"),
        (TYPED, [typed("token", text="x"), typed("end")], Outcome.TRUNCATED, "gave no finish reason"),
        (
            TYPED,
            [typed("token", text="x"), typed("end", why="oom")],
            Outcome.IN_BAND_ERROR,
            "oom is not a normal",
        ),
        (TYPED, [typed("failed", message="full", code=503)], Outcome.IN_BAND_ERROR, "full"),
        (TYPED, [typed("queued"), typed("failed", message="full", code=429)], Outcome.RATE_LIMITED, "full"),
        (
            TYPED,
            [typed("token", text="x"), typed("failed", message="full", code=429)],
            Outcome.IN_BAND_ERROR,
            "full",
        ),
        (TYPED, [typed("failed")], Outcome.TRUNCATED, "without a finish reason"),
    ],
)
def test_how_replies_end(
    table: dict[str, Any], payloads: list[Any], wanted: Outcome, said: str | None
) -> None:
    found, error = outcome(table, *payloads)
    assert found is wanted
    assert (said is None and error is None) or str(said) in str(error)


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        (typed("failed", message="full", code=429), 429),
        (typed("failed", message="full", code=200), None),
        (typed("failed", message="full", code="429"), None),
        (typed("failed", message="full", code=True), None),
        (typed("failed", message="full"), None),
        (typed("token", message="full", code=429), None),
    ],
)
def test_the_status_of_a_refusal(payload: dict[str, Any], status: int | None) -> None:
    spoken, message = described(TYPED), json.dumps(payload).encode()
    assert spoken.refusal_status(message) == status
    assert spoken.is_error(message) == spoken.is_last(message) == (payload["type"] == "failed")


@pytest.mark.parametrize("message", [b"", b"\xff", b'{"done":', b"[" * 100_000 + b'"done"', b"null", b"7"])
def test_what_says_nothing_ends_nothing(message: bytes) -> None:
    spoken = described(PLAIN)
    assert not spoken.is_last(message)
    assert not spoken.is_error(message)
    assert spoken.refusal_status(message) is None


def test_messages_that_are_no_json_or_empty() -> None:
    decode = described(PLAIN).decode
    assert "no JSON: [DONE]" in decode(SSEEvent("[DONE]", "message", 0, 0)).problem
    assert "no JSON" in decode(SSEEvent("[" * 100_000, "message", 0, 0)).problem
    assert decode(SSEEvent(" ", "message", 0, 0)).problem == ""
    assert decode(SSEEvent("x", "message", 0, 0, problem="bytes")).problem == "bytes"


def test_keys_that_a_server_may_write_in_another_way_are_read() -> None:
    """Only texts that every writer of JSON writes alike are looked for in the bytes."""
    spoken = described({**PLAIN, "end": {"when": {"état": "a/b"}}, "error": "größe"})
    for ascii_only in (True, False):
        message = json.dumps({"état": "a/b"}, ensure_ascii=ascii_only).replace("/", "\\/").encode()
        assert spoken.is_last(message)
        assert spoken.is_last(json.dumps({"größe": 1}, ensure_ascii=ascii_only).encode())


@pytest.mark.parametrize(
    ("wanted", "found", "is_end"),
    [(True, True, True), (True, 1, False), (1, True, False), (1, 1.0, True), ("1", 1, False), (0, 0, True)],
)
def test_conditions_compare_as_json_does(wanted: Any, found: Any, is_end: bool) -> None:
    spoken = described({**PLAIN, "end": {"when": {"state": wanted}}})
    assert spoken.is_last(json.dumps({"state": found}).encode()) is is_end


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8) | st.just(10**400),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=6,
)


def places_in(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield path
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in items:
        yield from places_in(inner, (*path, key))


def with_odd(reply: list[Any], path: tuple[Any, ...], odd: Any) -> list[Any]:
    changed: Any = deepcopy(reply)
    at = changed
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = odd
    return list(changed)


@EACH
@given(data=st.data())
def test_no_value_in_any_place_makes_it_raise(name: str, data: st.DataObject) -> None:
    table, reply, _ = REPLIES[name]
    spoken = described(table)
    path = data.draw(st.sampled_from([path for path in places_in(reply) if path]))
    changed = with_odd(reply, path, data.draw(ODD))
    written = [json.dumps(message).encode() for message in changed]
    body = b"".join(map(as_event, written))
    for message in written:
        if not spoken.is_last(message):
            assert not spoken.is_error(message)
        assert spoken.refusal_status(message) is None or spoken.is_error(message)
    summary = summary_of(spoken, [(body, 0)])
    done = any(chunk.done or chunk.error for chunk in chunks_of([(body, 0)], spoken))
    assert done == any(map(spoken.is_last, written))
    if summary.outcome is Outcome.OK:
        assert summary.text.strip()
    usual = read_uniform([body], [0], spoken)
    assert usual in (None, summary)


# --- requests


def asked(table: Mapping[str, Any], prompt: str = "hi", **options: Any) -> Any:
    spoken = described(table)
    request = PlannedRequest(0, max_tokens=8, input_tokens=1, text=prompt)
    return json.loads(spoken.message(spoken.encode(request, EncodeOptions("m", **options)), "run-7"))


def test_a_request_is_the_message_with_its_values() -> None:
    table = {
        **PLAIN,
        "request": {
            "id": "{request_id}",
            "again": "id={request_id};",
            "chat": {"messages": "{messages}", "of": ["{model}", "n={max_tokens}", 3, None, True]},
            "max": "{max_tokens}",
            "t": "{temperature}",
            "eos": "{ignore_eos}",
            "as text": "{temperature}/{ignore_eos}/{model}",
        },
    }
    assert asked(table, 'say "hi"\n') == {
        "id": "run-7",
        "again": "id=run-7;",
        "chat": {
            "messages": [{"role": "user", "content": 'say "hi"\n'}],
            "of": ["m", "n=8", 3, None, True],
        },
        "max": 8,
        "t": 0.0,
        "eos": False,
        "as text": "0.0/false/m",
    }
    assert asked(table, ignore_eos=True)["eos"] is True


def test_messages_have_their_roles_where_a_description_takes_messages() -> None:
    """Tools, which a description has no place for, are what the system says first."""
    said = (Message("user", 'say "hi"'), Message("assistant", "hi"), Message("user", "and now?"))
    spoken = described({**PLAIN, "request": {"chat": "{messages}"}})
    told = [{"role": each.role, "content": each.content} for each in said]
    for tools, first in (("", []), ('[{"type":"function"}]', [{"role": "system"}])):
        array = MessageArray(said, tools)
        request = PlannedRequest(0, 8, 1, text=array.rendered, messages=array)
        chat = json.loads(spoken.encode(request, EncodeOptions("m")))["chat"]
        assert chat[len(first) :] == told
        assert [each["content"] for each in chat[: len(first)]] == [f"tools: {tools}"] * len(first)
    assert spoken.message_roles
    as_text = described(PLAIN)
    assert not as_text.message_roles
    assert json.loads(as_text.encode(request, EncodeOptions("m")))["prompt"] == array.rendered


def test_a_request_written_as_json() -> None:
    table = {**PLAIN, "request": ' [ "say", {"p": "Q: {prompt} A:", "stop": null}, "{max_tokens}" ]'}
    assert asked(table) == ["say", {"p": "Q: hi A:", "stop": None}, 8]


@given(st.text(st.characters(codec="utf-8")))
def test_any_prompt_arrives_as_it_is(prompt: str) -> None:
    table = {**PLAIN, "request": {"p": 'in "{prompt}"', "id": "{request_id}", "quoted": '"{model}'}}
    assert asked(table, prompt) == {"p": f'in "{prompt}"', "id": "run-7", "quoted": '"m'}


@pytest.mark.parametrize(
    "prompt",
    ["{request_id}", "{prompt}", r"\u007brequest_id\u007d", "\\" + r"\u007brequest_id\u007d", '"{model}"'],
)
def test_a_prompt_with_what_stands_for_values_keeps_it(prompt: str) -> None:
    table = {**PLAIN, "request": {"id": "{request_id}", "p": "{prompt}", "n": "{max_tokens}"}}
    assert asked(table, prompt) == {"id": "run-7", "p": prompt, "n": 8}


def test_json_within_a_text() -> None:
    table = {**PLAIN, "request": {"payload": '{"m": {messages}}'}}
    assert json.loads(asked(table, 'a "b"')["payload"]) == {"m": [{"role": "user", "content": 'a "b"'}]}


def test_extra_fields_go_over_the_message() -> None:
    table = {**PLAIN, "request": {"p": "{prompt}", "options": {"a": 1, "b": 2}}}
    extra = {"options": {"b": 3, "model": "{model}"}, "brace": "{other}"}
    assert asked(table, extra_body=extra) == {
        "p": "hi",
        "options": {"a": 1, "b": 3, "model": "m"},
        "brace": "{other}",
    }
    assert asked(table) == {"p": "hi", "options": {"a": 1, "b": 2}}  # and the description is left as it was
    with pytest.raises(SuiteError, match="is a list, which has no place for seed"):
        asked(BY_CLOSING, extra_body={"seed": 1})


def test_what_it_cannot_send() -> None:
    with pytest.raises(SuiteError, match="does not ask a server to go on past") as caught:
        asked(PLAIN, ignore_eos=True)
    assert '"{ignore_eos}"' in str(caught.value)
    with pytest.raises(GeneratorError, match="takes text, not token ids"):
        asked(PLAIN, prompt_form="token_ids")
    with pytest.raises(GeneratorError, match="cannot be sent as UTF-8"):
        asked(PLAIN, "\ud800")


def test_what_is_the_same_in_all_requests() -> None:
    table = {
        **PLAIN,
        "request": {"type": "ask", "in": {"p": "{prompt}"}, "options": {"n": "{max_tokens}", "stop": ["\n"]}},
    }
    assert described(table).further_fields == {"type": "ask", "options": {"stop": ["\n"]}}
    assert described(table).unsent == ("temperature",)
    assert described(BY_CLOSING).further_fields == {"0": "say"}
    assert described(BY_CLOSING).unsent == ("max_tokens", "temperature")
    assert described(PLAIN).further_fields == {}
    assert described(PLAIN).unsent == ()


# --- tables


def test_a_path_with_dots_may_stand_without_quotes() -> None:
    written = {"delta": {"kind": "text", "more": {"0": [1, 2]}}}
    quoted = {"delta.kind": "text", "delta.more.0": [1, 2]}
    tables = [{**PLAIN, "text": {"at": "delta.say", "when": when}} for when in (written, quoted)]
    assert described(tables[0]) == described(tables[1])


def test_all_mistakes_are_told_together() -> None:
    assert mistakes_in(
        {
            "request": {"q": "{promt}", "{model}": 1},
            "end": {"at": "a..b", "wen": {}},
            "error": {},
            "finish_reason": {"when": {"type": "end"}},
            "output_tokens": "field:usage.n",
            "input_tokens": {"at": "n", "when": {"kind": {"a": []}, "b c": 1}},
            "cached_tokens": {"at": 3, "when": "end"},
        }
    ) == [
        "json_messages.request has {promt}, did you mean prompt?",
        'json_messages.request does not hold the prompt: put "{prompt}" or "{messages}" where it belongs',
        "json_messages.request has {model} in a key: placeholders stand in values",
        "json_messages.end.wen: unknown key, did you mean when?",
        "json_messages.end.at is 'a..b': write keys and numbers with dots between, such as choices.0.text",
        "json_messages.finish_reason.at is missing: the path of the place",
        "json_messages.error.at is missing: the path of the place",
        "json_messages.input_tokens.when.kind.a is []: give a value (text, a number, true, false), or a list "
        "of them",
        "json_messages.input_tokens.when is 'b c': write keys and numbers with dots between, such as "
        "choices.0.text",
        "json_messages.output_tokens is 'field:usage.n': write the path alone, without field:",
        "json_messages.cached_tokens.at is 3: give a path in quotes, such as delta.text",
        "json_messages.cached_tokens.when is 'end': give a table of paths and their values",
        "json_messages.text is missing: where in a message is what it adds to the reply?",
    ]


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"request": None}, "json_messages.request is missing"),
        ({"request": "{prompt}"}, "json_messages.request is no JSON: "),
        ({"request": '"{prompt}"'}, "is neither an object nor a list"),
        ({"request": {"p": "{prompt}", "x": float("nan")}}, "json_messages.request is no JSON: "),
        ({"request": {"p": "{prompt}", "x": {1, 2}}}, "json_messages.request is no JSON: "),
        ({"request": {"p": "{prompt}", "x": "\ud800"}}, "json_messages.request is no JSON: "),
        ({"request": {"p": "{prompt}", "m": "{messages}"}}, "holds the prompt 2 times"),
        ({"request": {"p": "{prompt} {prompt}"}}, "holds the prompt 2 times"),
        ({"request": {"p": "{prompt}", "x": "{unheard_of}"}}, "{unheard_of}, known: prompt, messages, model"),
        ({"reasoning": "think", "accumulates": True}, "accumulates is of text alone"),
        ({"reasoning": "delta"}, "reasoning and json_messages.text are the same place"),
        ({"end": {"when": {"type": []}}}, "json_messages.end.when.type is []: give a value"),
    ],
)
def test_mistakes(changes: dict[str, Any], told: str) -> None:
    (mistake,) = mistakes_in({**PLAIN, **changes})
    assert told in mistake


@given(st.dictionaries(st.sampled_from(sorted({*TYPED, "path", "accumulates"})), ODD, max_size=5))
def test_no_table_makes_it_raise(table: dict[str, Any]) -> None:
    mistakes: list[str] = []
    found = read_description({**PLAIN, **table}, mistakes)
    assert found is None or not mistakes


# --- the dialect


def test_a_description_is_a_dialect_that_travels() -> None:
    spoken = described(TYPED)
    assert isinstance(spoken, MessageDialect)
    assert (spoken.name, spoken.protocol, spoken.path) == ("json-messages", "websocket", "")
    assert pickle.loads(pickle.dumps(spoken)) == spoken
    assert hash(spoken) == hash(described(TYPED))
    assert spoken != described(PLAIN)
    assert [described(REPLIES[name][0]).ends_with_body for name in REPLIES] == [False] * 4 + [True]


def test_it_goes_by_its_name_and_needs_a_description() -> None:
    spoken = described(PLAIN)
    assert over_websocket("json-messages", spoken) is spoken
    assert dialect_at("wss://h/x", "json-messages", spoken) is spoken
    assert over_websocket("auto", spoken).name == "openai-responses"
    assert generates("json-messages")
    with pytest.raises(SuiteError, match=r"(?s)needs a description.*json_messages of the SUT file"):
        over_websocket("json-messages")
    for url in ("http://h/v1", "sim"):
        with pytest.raises(SuiteError, match="json-messages is spoken over WebSocket alone"):
            dialect_at(url, "json-messages", spoken)
    with pytest.raises(SuiteError, match="did you mean 'json-messages'"):
        dialect("json-mesages")


def test_frames_of_text_alone() -> None:
    """A message that is cut into frames is one message, as everywhere."""
    reader = MessageReader("ws://h/x")
    reader.feed(handshake(reader.opening().decode()))
    read = reader.feed(frame(TEXT, b'{"done": true}'))
    assert [described(PLAIN).is_last(message) for message in read.messages] == [True]
