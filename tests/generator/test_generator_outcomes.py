"""What each kind of reply becomes, byte by byte, over a real socket."""

from __future__ import annotations

import pytest
from planned_load import TextWorkload
from scripted_server import (
    HEAD,
    LAST,
    REPLY,
    STREAM,
    Conversation,
    Script,
    chunk,
    chunked,
    event,
    plain,
    reply,
    text_event,
)

from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import MISSING, OUTCOMES

BODY = b"".join(STREAM)
EVENT_STREAM = "Content-Type: text/event-stream\r\n"


def outcome(seen: Observation, row: int = 0) -> Outcome:
    return OUTCOMES[seen.records.outcome[row]]


def then_close(data: bytes) -> Script:
    def script(conversation: Conversation) -> None:
        conversation.send(data)
        conversation.close()

    return script


def then_reset(data: bytes) -> Script:
    def script(conversation: Conversation) -> None:
        conversation.send(data)
        conversation.wait(0.2)  # a reset throws away what the receiver has not read
        conversation.reset()

    return script


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(REPLY, id="chunked"),
        pytest.param(HEAD + chunked([BODY]), id="one chunk"),
        pytest.param(
            HEAD + b"".join(chunk(part) for part in STREAM) + b"000;x=1\r\n\r\n", id="last chunk extended"
        ),
        pytest.param(
            HEAD.replace(b"\r\n\r\n", b"\r\nTrailer: X-Sum\r\n\r\n") + chunked()[:-2] + b"X-Sum: 1\r\n\r\n",
            id="trailers",
        ),
        pytest.param(plain("200 OK", BODY, EVENT_STREAM), id="content-length"),
        pytest.param(
            b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + REPLY, id="1xx"
        ),
        pytest.param(HEAD + chunked([part.replace(b"\n", b"\r\n") for part in STREAM]), id="crlf events"),
        pytest.param(REPLY.replace(b"200 OK", b"200 "), id="no reason phrase"),
    ],
)
def test_a_complete_reply_is_ok(ask, loop_factory, data):
    seen = ask(reply(data), loop_factory=loop_factory)
    records = seen.records
    assert (outcome(seen), records.error[0]) == (Outcome.OK, None)
    assert (records.output_tokens[0], records.input_tokens[0], records.http_status[0]) == (2, 7, 200)
    assert records.finish_reason == ["stop"]
    assert list(records.chunk_tokens) == [1, 1]


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n", id="close"
        ),
        pytest.param(b"HTTP/1.0 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", id="http/1.0"),
        pytest.param(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n\r\n", id="no framing"),
    ],
)
def test_a_body_may_end_with_the_connection(ask, loop_factory, head):
    seen = ask(then_close(head + BODY), loop_factory=loop_factory)
    assert outcome(seen) is Outcome.OK


@pytest.mark.parametrize("status", ["401 Unauthorized", "404 Not Found", "500 Internal Server Error"])
def test_error_statuses(ask, status):
    seen = ask(
        reply(plain(status, b'{"error": {"message": "wrong key"}}', "Content-Type: application/json\r\n"))
    )
    assert outcome(seen) is Outcome.HTTP_ERROR
    assert seen.records.http_status[0] == int(status[:3])
    assert f"HTTP {status}: wrong key" in (seen.records.error[0] or "")
    assert seen.records.first_content_ns[0] == MISSING
    assert seen.records.submitted_ns[0] != MISSING


@pytest.mark.parametrize(
    "data",
    [
        plain("429 Too Many Requests"),
        plain("503 Service Unavailable", b"", "Retry-After: 1\r\n"),
        # an error page whose end never comes: the status has said enough
        b"HTTP/1.1 429 Too Many Requests\r\nContent-Length: 100\r\n\r\nslow down",
    ],
    ids=["429", "503 with Retry-After", "429 cut off"],
)
def test_rate_limits(ask, data):
    assert outcome(ask(then_close(data))) is Outcome.RATE_LIMITED


@pytest.mark.parametrize(
    ("data", "expected", "said"),
    [
        (
            HEAD + chunked([text_event("x"), event({"error": {"message": "boom"}})]),
            Outcome.IN_BAND_ERROR,
            "boom",
        ),
        (HEAD + chunked([text_event("x")]), Outcome.TRUNCATED, "finish reason"),
        (HEAD + chunked([]), Outcome.EMPTY, "no event"),
        (HEAD + chunked([text_event("x", "content_filter")]), Outcome.REFUSED, "content_filter"),
        (HEAD + chunked([b"data: {nonsense\n\n"]), Outcome.UNDECODABLE, "nonsense"),
        (
            plain(
                "200 OK",
                b'{"choices": [{"message": {"content": "x"}}]}',
                "Content-Type: application/json\r\n",
            ),
            Outcome.UNDECODABLE,
            "without streaming",
        ),
        (
            plain("200 OK", b"\x1f\x8b\x08", EVENT_STREAM + "Content-Encoding: gzip\r\n"),
            Outcome.UNDECODABLE,
            "compressed",
        ),
        (b"SSH-2.0-OpenSSH_9.2\r\n", Outcome.UNDECODABLE, "not an HTTP response"),
        (HEAD + b"zz\r\n", Outcome.UNDECODABLE, "not an HTTP response"),
        (
            b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
            Outcome.UNDECODABLE,
            "101",
        ),
    ],
)
def test_replies_that_are_no_success(ask, data, expected, said):
    seen = ask(reply(data))
    assert outcome(seen) is expected
    assert said in (seen.records.error[0] or "")


@pytest.mark.parametrize("end", [then_close, then_reset], ids=["eof", "reset"])
def test_a_connection_lost_in_the_middle(ask, loop_factory, end):
    seen = ask(end(HEAD + chunk(text_event("one"))), loop_factory=loop_factory)
    assert outcome(seen) is Outcome.DISCONNECTED
    assert "before the response was complete" in (seen.records.error[0] or "")
    # what had arrived is kept
    assert seen.records.first_content_ns[0] != MISSING
    assert seen.records.http_status[0] == 200
    assert list(seen.records.chunk_ns) == [seen.records.first_content_ns[0]]


def test_a_half_close_in_the_middle(ask):
    def script(conversation: Conversation) -> None:
        conversation.send(HEAD + chunk(text_event("one")))
        conversation.half_close()

    assert outcome(ask(script)) is Outcome.DISCONNECTED


def test_eof_after_the_end_marker_is_a_whole_answer(ask):
    """The last HTTP chunk is missing, yet the stream said that it was done."""
    assert outcome(ask(then_close((HEAD + chunked())[: -len(LAST)]))) is Outcome.OK


def test_no_answer_at_all(ask):
    """On a connection that served a request before, so that it may be tried once more, and no more often."""
    seen = ask(lambda conversation: conversation.close(), requests=3)
    assert {outcome(seen, row) for row in range(3)} == {Outcome.DISCONNECTED}
    assert "before the first byte" in (seen.records.error[0] or "")


def test_nobody_listens(serve, generator_for, plan):
    server = serve(reply(REPLY))
    server.stop()
    seen = generator_for(server).run(plan(20))
    counts = seen.records.counts()
    assert (counts["submitted"], counts["disconnected"]) == (20, 20)
    assert "Connection refused" in (seen.records.error[0] or "")
    assert list(seen.records.submitted_ns) == [MISSING] * 20
    assert seen.interrupted is None


def test_a_reply_before_the_request_has_been_written(ask, loop_factory):
    """The server refuses a large body after its head: the status counts, the connection does not live on."""

    def script(conversation: Conversation) -> None:
        conversation.send(plain("413 Content Too Large", b"too large"))
        conversation.wait(0.5)
        conversation.close()

    big = TextWorkload(text="x" * 20_000_000)
    seen = ask(script, server={"read_body": False}, workload=big, loop_factory=loop_factory)
    assert outcome(seen) is Outcome.HTTP_ERROR
    assert seen.records.http_status[0] == 413
    assert seen.records.submitted_ns[0] == MISSING


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_replies_cut_into_small_reads(ask, loop_factory, size):
    def script(conversation: Conversation) -> None:
        for start in range(0, len(REPLY), size):
            conversation.send(REPLY[start : start + size])

    seen = ask(script, requests=3, loop_factory=loop_factory)
    assert seen.records.counts()["ok"] == 3


def test_bytes_after_the_end_cost_the_connection_not_the_reply(serve, generator_for, plan):
    server = serve(reply(REPLY + b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"))
    seen = generator_for(server).run(plan(3))
    assert seen.records.counts()["ok"] == 3
    assert server.accepted == 3


def test_a_chunk_that_looks_like_the_last_one(ask):
    """A read that ends like the end of a reply, but is not: the exact parse goes on reading."""
    trap = b"data: 0\r\n\r\n"

    def script(conversation: Conversation) -> None:
        head, _, rest = chunk(b": " + trap).partition(b"0\r\n\r\n")
        conversation.send(HEAD + head + b"0\r\n\r\n")
        conversation.wait(0.1)
        conversation.send(rest + chunked())

    assert outcome(ask(script)) is Outcome.OK
