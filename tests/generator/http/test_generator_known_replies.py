"""Responses recognised as a whole: the record is what an exact parse gives, however the bytes were cut and
whatever became of any of them."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from virtual_clock import VirtualClock

from pytest_llmbench.generator.http.connection import Connection
from pytest_llmbench.generator.http.http1 import Http1, Lessons
from pytest_llmbench.generator.http.pool import Lone
from pytest_llmbench.generator.http.transport import End, Exchange, abandon
from pytest_llmbench.generator.prepared import PreparedRequest
from pytest_llmbench.generator.reply_reader import ReplyReader
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.wire.catalogue import dialect

HEAD = b"HTTP/1.1 200 OK\r\nDate: now\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"


def sized(data: bytes, style: bytes = b"%x") -> bytes:
    return style % len(data) + b"\r\n" + data + b"\r\n"


def response(
    identity: str,
    words: Sequence[str],
    *,
    head: bytes = HEAD,
    style: bytes = b"%x",
    role: bool = True,
    **dumping: Any,
) -> bytes:
    """A streamed chat reply as a server sends it, an event to a chunk."""

    def event(delta: dict[str, Any] | None, finish: str | None = None, **more: Any) -> bytes:
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
        payload = {"id": identity, "object": "chat.completion.chunk", "model": "m-large", "choices": choices}
        payload |= more
        return f"data: {json.dumps(payload, **dumping)}\n\n".encode()

    events = [event({"role": "assistant", "content": ""})] if role else []
    events += [event({"content": word}) for word in words]
    usage = {"prompt_tokens": 9, "completion_tokens": len(words)}
    events += [event({}, "stop"), event(None, usage=usage), b"data: [DONE]\n\n"]
    return head + b"\r\n" + b"".join(sized(each, style) for each in events) + b"0\r\n\r\n"


@pytest.fixture(scope="module", autouse=True)
def loop() -> Iterator[None]:
    Desk.loop = asyncio.new_event_loop()
    yield
    Desk.loop.close()


class Desk:
    """A connection without a socket, its pool, and the reader of its replies."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, api: str = "chat") -> None:
        self.too_early = 0
        self.lessons = Lessons()
        self.reader = ReplyReader(dialect(api))
        self.recognised = False

    def adopt(self, connection: Connection) -> None: ...
    def release(self, spoken: Lone) -> None: ...
    def drop(self, connection: Connection) -> None: ...
    def hung_up(self) -> None: ...
    def retry(self, exchange: Exchange) -> None: ...

    def look_soon(self, spoken: Lone, exchange: Exchange) -> None:
        spoken.look(exchange)

    def write(self, data: bytes) -> bool:
        return True

    def close(self) -> None: ...

    def record(self, reads: Iterable[bytes]) -> RequestRecord:
        """Of one request that got this; broken off by us if that was not all."""
        connection = Connection(self, VirtualClock(1), None, self.loop.create_future())
        spoken = Http1(connection, self, self.lessons)
        connection.attach(self)
        ended: list[Exchange] = []
        exchange = Exchange(PreparedRequest("r", b"x", 0, 5, 5), 1, 1, ended.append)
        spoken.submit(exchange, reused=False)
        for number, read in enumerate(reads):
            if not ended:
                connection.received(read, 1000 + number)
        if not ended:
            abandon(exchange, End.CANCELLED, 2000, "not complete")
        self.recognised = exchange.known is not None
        steps = self.reader.steps(ended[0])
        while True:
            try:
                next(steps)
            except StopIteration as stop:
                return comparable(stop.value)


def comparable(record: RequestRecord) -> RequestRecord:
    return dataclasses.replace(record, chunk_ns=list(record.chunk_ns), chunk_tokens=list(record.chunk_tokens))


def exactly(reads: Iterable[bytes], api: str = "chat") -> RequestRecord:
    return Desk(api).record(reads)


def taught(*lessons: bytes, api: str = "chat") -> Desk:
    desk = Desk(api)
    for lesson in lessons:
        desk.record([lesson])
    return desk


FIRST = response("reply-0001", ["The", " sky", " is", " blue", "."])
NEXT = response("reply-0002", ["Grass", " and", " trees", " are", " green"])
# For what is done at each byte: a first word, one within and a last one.
BRIEF = response("reply-0001", ["The", " sky", "."])
BRIEF_NEXT = response("reply-0002", ["Grass", " and", " green"])


def test_a_reply_like_an_earlier_one_is_recognised():
    desk = taught(FIRST)
    assert desk.record([NEXT]) == exactly([NEXT])
    assert desk.recognised
    assert desk.record([NEXT]).output_tokens == 5


def test_sizes_of_two_and_of_three_digits_in_one_reply_are_recognised():
    words = [" a", " " + 200 * "b", " c"]
    desk = taught(*(response(f"id-{number}-abc", words) for number in range(3)))
    reply = response("id-7-abc", words)
    assert desk.record([reply]) == exactly([reply])
    assert desk.recognised


def test_cut_at_any_byte():
    for at in range(1, len(BRIEF_NEXT)):
        reads = [BRIEF_NEXT[:at], BRIEF_NEXT[at:]]
        assert taught(BRIEF).record(reads) == exactly(reads), at


@settings(max_examples=150)
@given(places=st.lists(st.integers(1, len(NEXT) - 1), max_size=12, unique=True))
def test_cut_into_many_reads(places):
    bounds = [0, *sorted(places), len(NEXT)]
    reads = [NEXT[start:end] for start, end in itertools.pairwise(bounds)]
    assert taught(FIRST).record(reads) == exactly(reads)


def test_an_event_to_a_read_is_recognised_with_an_instant_each():
    reads = [part + b"\n\n\r\n" for part in NEXT.split(b"\n\n\r\n")]
    reads[-1] = b"0\r\n\r\n"
    assert b"".join(reads) == NEXT
    desk = taught(FIRST)
    record = desk.record(reads)
    assert desk.recognised
    assert record == exactly(reads)
    assert len(set(record.chunk_ns)) == 5
    assert record.coalesced_chunks == 0


def test_whatever_becomes_of_a_byte_the_record_is_the_exact_one():
    desk, reply = taught(BRIEF), BRIEF_NEXT
    new = b'\0"\\ \n\rZ9-'
    for at in range(len(reply)):
        before, behind = reply[:at], reply[at + 1 :]
        changed = {before + behind, before + new[at % 9 : at % 9 + 1] + behind, before + b"0" + reply[at:]}
        for damaged in sorted(changed - {reply}):
            assert desk.record([damaged]) == exactly([damaged]), damaged


@pytest.mark.parametrize(
    "words",
    [
        ["a", "b", "c", "d", "e"],
        ["a", " ", "\n", "d", "e"],
        [" ", "\n", "c", "d", "e"],
        ["\u200b", "\ufe0f", "c", "d", "e"],
        [" ", " ", " ", " ", " "],
        ["a" * 300, "b", "c" * 20, "d", "e"],
        ["", "b", "c", "d", "e"],
        ['"', "\\", "\u2028", "Grüße", "🦀"],
        ["a", "b", "c", "d"],
        ["reply-0002", "b", "c", "d", "e"],
        ["a", '"}, "finish_reason": null}]}', "c", "d", "e"],
    ],
)
@pytest.mark.parametrize("ascii_only", [True, False])
def test_texts_of_all_kinds(words: list[str], *, ascii_only: bool) -> None:
    lessons = [response("reply-0001", words[::-1], ensure_ascii=ascii_only), FIRST]
    other = response("reply-0002", words, ensure_ascii=ascii_only)
    for lesson in lessons:
        assert taught(lesson).record([other]) == exactly([other])


def with_head(*lines: bytes) -> Callable[[str, Sequence[str]], bytes]:
    def make(identity: str, words: Sequence[str]) -> bytes:
        own = b"".join(line.replace(b"ID", identity.encode()) + b"\r\n" for line in lines)
        return response(identity, words, head=HEAD + own)

    return make


@pytest.mark.parametrize(
    ("make", "recognised"),
    [
        (with_head(b"x-request-id: ID"), True),
        (with_head(b"connection: keep-alive"), True),
        (with_head(b"connection: close"), False),
        (with_head(b"keep-alive: ID"), False),
        (with_head(b"ID: x"), False),
        (lambda identity, words: response(identity, words, style=b"%X"), True),
        (lambda identity, words: response(identity, words, style=b"%04x"), False),
        (lambda identity, words: response(identity, words, role=False), True),
        (lambda identity, words: response(identity, words, separators=(",", ":")), True),
        (lambda identity, words: response(identity[:3], words), False),
    ],
)
def test_servers_of_all_kinds(make: Callable[[str, Sequence[str]], bytes], *, recognised: bool) -> None:
    desk = taught(make("reply-0001", ["one", " two"]))
    other = make("reply-0002", ["three", " four"])
    assert desk.record([other]) == exactly([other])
    assert desk.recognised is recognised


def test_ids_of_several_lengths_and_heads_of_several_seconds_are_known_side_by_side():
    later = HEAD.replace(b"now", b"then")
    replies = [
        response(identity, ["a", "b"], head=head)
        for identity in ("reply-1001", "reply-10001", "reply-100001")
        for head in (HEAD, later)
    ]
    desk = taught(*replies)
    for reply in replies:
        other = reply.replace(b"reply-1", b"reply-2")
        assert desk.record([other]) == exactly([other])
        assert desk.recognised


def test_more_than_one_response_is_no_known_response():
    desk = taught(FIRST)
    assert desk.record([NEXT + b"x"]) == exactly([NEXT + b"x"])
    assert not desk.recognised


def test_a_long_way_of_many_shapes_forgets_the_oldest():
    desk = taught(*(response("reply-0001" + "x" * n, ["a", "b"]) for n in range(40)))
    assert len(desk.lessons.known._shapes) <= 8
