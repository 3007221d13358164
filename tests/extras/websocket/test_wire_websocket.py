"""WebSocket without a socket: bytes in any pieces, messages out; and Responses by messages."""

from __future__ import annotations

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from websocket_script import BOOM, completed, created, delta, fragments, frame, handshake, ping, refused, text
from websockets.frames import BINARY, CLOSE, CONT, PONG, TEXT

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.extras.websocket.transport import MessageReader, Received, text_frame
from pytest_llmbench.http_client import http_beside, is_websocket
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.catalogue import dialect_at
from pytest_llmbench.wire.dialect import EncodeOptions, MessageDialect
from pytest_llmbench.wire.sse import SSEDecoder, as_event
from pytest_llmbench.wire.stream import chunks_of

URL = "ws://h:8000/v1/responses"
MIDDLE = "z" * 300
"""Its frame has a length of two bytes."""
MESSAGES = [created(), delta("Grüße, 海"), delta(MIDDLE), delta("three"), completed()]
SENT = b"".join(
    (
        text(MESSAGES[0]),
        ping(b"one"),
        fragments(MESSAGES[1], 3, between=ping(b"two")),
        text(MESSAGES[2]),
        frame(PONG, b"nobody asked"),
        fragments(MESSAGES[3], 2),
        text(MESSAGES[4]),
        frame(CLOSE, BOOM),
    )
)


def opened() -> MessageReader:
    reader = MessageReader(URL)
    reader.feed(handshake(reader.opening().decode()))
    assert reader.is_open
    return reader


def feed(reader: MessageReader, *pieces: bytes) -> list[Received]:
    return [reader.feed(piece) for piece in pieces if piece]


def told(reads: list[Received]) -> list[Any]:
    return [json.loads(message) for read in reads for message in read.messages]


def client_frames(raw: bytes) -> list[tuple[int, bytes]]:
    """Opcode and payload of small frames as a client writes them."""
    found = []
    while raw:
        length = raw[1] & 0x7F
        mask, data = raw[2:6], raw[6 : 6 + length]
        found.append((raw[0] & 0x0F, bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))))
        raw = raw[6 + length :]
    return found


ANSWERS = [(10, b"one"), *[(10, b"two")] * 2, (8, BOOM)]
"""Each ping has its pong, and the close its echo."""


def test_messages_do_not_depend_on_where_the_bytes_are_cut() -> None:
    for cut in range(len(SENT) + 1):
        reader = opened()
        answers = b""
        reads = []
        for piece in (SENT[:cut], SENT[cut:]):
            reads += feed(reader, piece)
            answers += reader.to_send()
        assert told(reads) == MESSAGES, cut
        assert client_frames(answers) == ANSWERS
        assert (reader.closed, reader.closed_normally) == ("1011 (internal error) boom", False)
        assert (reader.is_open, reader.is_over, reader.problem) == (False, True, "")


def test_byte_by_byte_a_message_is_there_with_its_last_byte() -> None:
    reader = opened()
    reads = [reader.feed(SENT[at : at + 1]) for at in range(len(SENT))]
    assert told(reads) == MESSAGES
    places = [at for at, read in enumerate(reads) if read.messages]
    first = len(text(MESSAGES[0]))
    assert places[0] == first - 1
    assert places[-1] == len(SENT) - len(frame(CLOSE, BOOM)) - 1


@given(st.lists(st.integers(0, len(SENT)), max_size=8))
def test_any_cuts(cuts: list[int]) -> None:
    places = [0, *sorted(cuts), len(SENT)]
    reads = feed(opened(), *(SENT[a:b] for a, b in pairwise(places)))
    assert told(reads) == MESSAGES


def test_the_handshake_may_be_cut_anywhere_and_bring_messages_along() -> None:
    reader = MessageReader(URL)
    whole = handshake(reader.opening().decode())
    for cut in range(len(whole) + 1):
        reader = MessageReader(URL)
        answer = handshake(reader.opening().decode()) + text(MESSAGES[1])
        reads = feed(reader, answer[:cut], answer[cut:])
        assert reader.is_open
        assert told(reads) == [MESSAGES[1]]


def test_the_request_for_a_websocket() -> None:
    reader = MessageReader("wss://h/v1/responses?a=b", [("Authorization", "Bearer k"), ("User-Agent", "we")])
    first, *lines = reader.opening().decode().split("\r\n")
    headers = dict(line.split(": ") for line in lines if line)
    assert first == "GET /v1/responses?a=b HTTP/1.1"
    assert (headers["Host"], headers["Authorization"], headers["User-Agent"]) == ("h", "Bearer k", "we")
    assert (headers["Upgrade"], headers["Sec-WebSocket-Version"]) == ("websocket", "13")
    assert "Sec-WebSocket-Extensions" not in headers  # no compression


def test_control_frames_are_no_part_of_a_message() -> None:
    reader = opened()
    assert not reader.feed(ping()).of_messages
    assert not reader.feed(frame(PONG)).of_messages
    whole = text(MESSAGES[1])
    assert reader.feed(whole[:5]) == Received([], of_messages=True)
    assert reader.feed(whole[5:]).of_messages
    assert reader.feed(frame(TEXT, b"{", fin=False)) == Received([], of_messages=True)
    assert reader.feed(frame(CONT, b"}")).messages == [b"{}"]
    assert not reader.feed(frame(CLOSE, BOOM)).of_messages


@pytest.mark.parametrize("at_once", [1, 2, 3, 7])
def test_a_ping_in_pieces_is_no_part_of_a_message(at_once: int) -> None:
    reader = opened()
    pings = ping(b"\x01" * 100) * 7
    assert not any(reader.feed(pings[at : at + at_once]).of_messages for at in range(0, len(pings), at_once))
    assert reader.feed(text(MESSAGES[1])[:5]).of_messages


def test_a_close_frame_in_the_midst_of_a_message_is_the_close_that_it_is() -> None:
    reader = opened()
    reader.feed(frame(TEXT, b"{", fin=False) + frame(CLOSE, BOOM))
    assert reader.closed == "1011 (internal error) boom"
    assert reader.is_over


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (frame(BINARY, b"{}"), "a binary message"),
        (b"\x81\x82\x01\x02\x03\x04\x7a\x7f", "not WebSocket: incorrect masking"),  # as clients send
        (b"\xf1\x00", "not WebSocket: reserved bits"),
        (b"\x83\x00", "not WebSocket: invalid opcode"),
        (frame(CONT, b"x"), "not WebSocket: unexpected continuation frame"),
        (frame(TEXT, b"{", fin=False) + text({}), "not WebSocket: expected a continuation frame"),
        (frame(TEXT, b"x" * 2_000), "not WebSocket: "),
        (frame(CLOSE, b"\x03"), "not WebSocket: close frame too short"),
    ],
)
def test_what_is_not_websocket_or_not_for_us(data: bytes, said: str) -> None:
    reader = MessageReader(URL, max_message_bytes=1_000)
    reader.feed(handshake(reader.opening().decode()))
    assert told([reader.feed(data)]) == []
    assert said in reader.problem
    assert reader.is_over


@given(st.lists(st.binary(max_size=300), max_size=4))
def test_no_bytes_make_it_raise(pieces: list[bytes]) -> None:
    for reader in (opened(), MessageReader(URL)):
        reader.opening()
        feed(reader, *pieces)
        reader.to_send()
        reader.end()
        reader.end()
        assert not reader.is_open
        assert reader.closing() == b""


@pytest.mark.parametrize(
    ("answer", "status", "said"),
    [
        (b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\nnone", 404, "HTTP 404 in place of a WebSocket"),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nnone", 200, "HTTP 200 in place of"),
        (
            b"HTTP/1.1 101 Up\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            None,
            "Sec-WebSocket-Accept",
        ),
        (b"HTTP/1.1 101 Up\r\nUpgrade: h2c\r\nConnection: Upgrade\r\n\r\n", None, "Upgrade"),
        (b"SSH-2.0-OpenSSH_9.6\r\n", None, "no WebSocket handshake: "),
        (b"\n", None, "no WebSocket handshake: not HTTP"),
    ],
)
def test_handshakes_that_are_refused_or_none(answer: bytes, status: int | None, said: str) -> None:
    for cut in range(len(answer)):
        reader = MessageReader(URL)
        reader.opening()
        feed(reader, answer[:cut], answer[cut:])
        assert reader.refusal is not None
        assert reader.refusal.status == status
        assert said in reader.refusal.reason
        assert reader.refusal.body == (b"none" if status else b"")
        assert not reader.is_open


def test_a_refusal_without_a_length_ends_with_the_connection() -> None:
    reader = MessageReader(URL)
    reader.opening()
    reader.feed(b"HTTP/1.1 503 Busy\r\nRetry-After: 1\r\n\r\nfull")
    assert reader.refusal is None
    reader.end()
    assert reader.refusal is not None
    assert (reader.refusal.status, reader.refusal.body) == (503, b"full")
    assert ("Retry-After", "1") in reader.refusal.headers


def test_a_connection_that_ends_within_the_handshake_was_not_refused() -> None:
    reader = MessageReader(URL)
    reader.opening()
    reader.feed(b"HTTP/1.1 101 Swi")
    reader.end()
    assert (reader.refusal, reader.is_open) == (None, False)


def test_closing() -> None:
    reader = opened()
    ((opcode, data),) = client_frames(reader.closing())
    assert (opcode, data[:2]) == (8, b"\x03\xe8")
    assert reader.closing() == b""
    assert MessageReader(URL).closing() == b""


def test_a_message_of_the_client_is_one_masked_frame() -> None:
    assert client_frames(text_frame(b'{"a":1}')) == [(1, b'{"a":1}')]


@given(st.text())
def test_a_message_as_an_event_is_the_message(said: str) -> None:
    data = said.encode()
    (event,) = SSEDecoder().feed(as_event(data), 1, 0)
    lines = [line.decode() for line in data.splitlines()]
    assert event.data == "\n".join(lines)
    assert (event.event, event.terminated, event.problem) == ("message", True, "")


@pytest.mark.parametrize("indent", [None, 2])
def test_messages_that_span_lines_are_the_same_json(indent: int | None) -> None:
    payload = {"type": "response.output_text.delta", "delta": 'a "b"\n\r c'}
    (chunk,) = chunks_of([(as_event(json.dumps(payload, indent=indent).encode()), 5)], responses())
    assert (chunk.text, chunk.stamp_ns, chunk.problem) == ('a "b"\n\r c', 5, "")


# --- Responses


def responses() -> MessageDialect:
    return dialect_at("ws://h", "openai-responses")


def encoded(request_text: str = "hi", **extra: Any) -> Any:
    spoken = responses()
    options = EncodeOptions("m", ignore_eos=True, extra_body=extra)
    body = spoken.encode(PlannedRequest(0, max_tokens=8, input_tokens=1, text=request_text), options)
    return json.loads(spoken.message(body, "run-7"))


def test_a_request_is_a_message() -> None:
    assert encoded(seed=3) == {
        "type": "response.create",
        "metadata": {"request_id": "run-7"},
        "model": "m",
        "input": "hi",
        "store": False,
        "max_output_tokens": 8,
        "temperature": 0.0,
        "ignore_eos": True,
        "seed": 3,
    }


def test_metadata_of_the_suite_go_along() -> None:
    assert encoded(metadata={"team": "a"})["metadata"] == {"request_id": "run-7", "team": "a"}
    assert encoded(metadata={"request_id": "mine"})["metadata"] == {"request_id": "mine"}


def test_a_prompt_with_what_stands_for_the_id_keeps_it() -> None:
    hole = "\x1erequest id\x1e"
    assert encoded(hole)["input"] == hole


def test_what_it_cannot_send() -> None:
    request = PlannedRequest(0, max_tokens=8, input_tokens=1, token_ids=(1, 2))
    with pytest.raises(GeneratorError, match="takes text, not token ids"):
        responses().encode(request, EncodeOptions("m", prompt_form="token_ids"))
    with pytest.raises(SuiteError, match="set stream to false"):
        encoded(stream=False)


@pytest.mark.parametrize(
    ("payload", "last"),
    [
        (created(), False),
        (delta("x"), False),
        (delta('{"type": "response.completed"} "error"'), False),
        ({"type": "response.output_text.done", "text": '"response.completed"'}, False),
        ({"type": "response.created", "response": {"instructions": "response.completed"}}, False),
        (completed(), True),
        ({"type": "response.incomplete", "response": {}}, True),
        ({"type": "response.failed", "response": {"error": {"message": "no"}}}, True),
        ({"type": "response.cancelled", "response": {}}, True),
        (refused(429, "slow down"), True),
        ({"error": {"message": "no type"}}, True),
        ({"detail": "not found"}, True),
        ([], False),
        ("response.completed", False),
    ],
)
def test_the_last_message(payload: object, last: bool) -> None:
    assert responses().is_last(json.dumps(payload).encode()) is last
    assert responses().is_last(json.dumps(payload, indent=1).encode()) is last


@pytest.mark.parametrize("message", [b"", b"\xff", b'{"error":', b"[" * 100_000 + b'"error"'])
def test_what_is_no_json_ends_nothing(message: bytes) -> None:
    assert not responses().is_last(message)
    assert responses().refusal_status(message) is None


@pytest.mark.parametrize(
    ("payload", "status"),
    [
        (refused(429, "slow down"), 429),
        (refused(200, "fine"), None),
        ({"type": "error", "status": "429"}, None),
        ({"type": "error", "status": True}, None),
        ({"type": "error", "status": 4000}, None),
        ({"type": "error", "error": {"message": "x"}}, None),
        ({"type": "response.failed", "status": 500}, None),
    ],
)
def test_the_status_of_a_refusal(payload: dict[str, Any], status: int | None) -> None:
    message = json.dumps(payload).encode()
    assert responses().refusal_status(message) == status
    assert responses().is_error(message) == (payload["type"] == "error")


def test_dialects_that_have_a_form_over_websocket() -> None:
    for name in ("auto", "responses", "openai-responses"):
        spoken = dialect_at("ws://h", name)
        assert (spoken.name, spoken.protocol) == ("openai-responses", "websocket")
        assert isinstance(spoken, MessageDialect)
    with pytest.raises(SuiteError, match="--llm-api: openai-chat is not spoken over WebSocket") as caught:
        dialect_at("ws://h", "chat")
    assert "--llm-api=openai-responses" in str(caught.value)
    with pytest.raises(SuiteError, match="unknown API dialect"):
        dialect_at("ws://h", "respones")


def test_urls() -> None:
    assert http_beside("ws://h:8000/v1?a=b") == "http://h:8000/v1?a=b"
    assert http_beside(" wss://h/v1 ") == "https://h/v1"
    assert http_beside("http://ws/v1") == "http://ws/v1"
    assert [is_websocket(url) for url in ("ws://h", "wss://h", "http://h", "sim", "")] == [
        True, True, False, False, False,
    ]  # fmt: skip


@pytest.mark.parametrize("endpoint", ["replay", "replay:fast?max_num_seqs=4", "sim", "python:suite:app"])
def test_what_is_no_address_speaks_the_dialect_itself(endpoint: str) -> None:
    assert dialect_at(endpoint, "openai-embeddings").name == "openai-embeddings"
