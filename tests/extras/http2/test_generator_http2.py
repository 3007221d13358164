"""Load over HTTP/2: instants, connections and their streams, and what servers may do to them."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading

import pytest
from h2.events import ConnectionTerminated, StreamReset
from http2_frames import away
from http2_script import EVENTS, Asked, Peer, answers, each, peers
from hyperframe.frame import SettingsFrame
from hypothesis import given
from hypothesis import strategies as st
from planned_load import TextWorkload
from scripted_load import IMPATIENT, MakePlan, Run, Secured, Serve, Wire, only, outcomes, runner
from scripted_server import REPLY, STREAM, Conversation, plain, reply, text_event
from virtual_clock import VirtualClock

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.extras.http2.transport import Http2, Http2Head, Requests, carry
from pytest_llmbench.generator.http.connection import Connection
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.http.transport import End, Exchange, abandon
from pytest_llmbench.generator.loop_thread import LoopFactory
from pytest_llmbench.generator.prepared import PreparedRequest
from pytest_llmbench.generator.reply_reader import ReplyReader
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.plan import ClosedLoop, Deadlines
from pytest_llmbench.model.record import Outcome, RequestRecord
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.timing import MonotonicClock
from pytest_llmbench.wire.openai_chat import OpenAIChat


@pytest.fixture
def run(serve: Serve, plan: MakePlan) -> Run:
    return runner(serve, plan, lambda server: server.url, OpenAIChat, http2=True)


def gather(peer: Peer, count: int) -> list[Asked]:
    """So many requests, all of them unanswered."""
    found = [peer.next() for _ in range(count)]
    return [asked for asked in found if asked is not None]


# --- what is measured


def test_a_record_is_that_of_the_same_reply_over_http1(serve: Serve, plan: MakePlan, run: Run) -> None:
    over_2 = run(peers(answers()), 5).records
    with LoadGenerator(Target.parse(serve(reply(REPLY)).url), OpenAIChat(), model="m") as generator:
        over_1 = generator.run(plan(5)).records
    for name in ("outcome", "output_tokens", "input_tokens", "http_status", "token_source", "finish_reason"):
        assert list(getattr(over_2, name)) == list(getattr(over_1, name)), name
    assert len(over_2.chunk_ns) == len(over_1.chunk_ns) == 10


def test_the_request(run: Run) -> None:
    asked: list[Asked] = []

    def note(peer: Peer, one: Asked) -> None:
        asked.append(one)
        peer.send(one.reply())

    headers = {"Authorization": "Bearer k", "User-Agent": "mine", "X-Tenant": "t"}
    seen = run(peers(each(note)), extra_body={"seed": 3}, target={"headers": headers})
    (one,) = asked
    body = json.loads(one.body)
    assert (body["model"], body["stream"], body["seed"]) == ("m", True, 3)
    told = dict(one.headers)
    port = told.pop(":authority").removeprefix("127.0.0.1:")
    assert port.isdigit()
    assert told == {
        ":method": "POST",
        ":scheme": "http",
        ":path": "/v1/chat/completions",
        "user-agent": "mine",
        "accept": "text/event-stream, application/json",
        "accept-encoding": "identity",
        "content-type": "application/json",
        "authorization": "Bearer k",
        "x-tenant": "t",
        "x-request-id": seen.records.request_id[0],
        "content-length": str(len(one.body)),
    }
    assert seen.facts.value("wire.http_version") == "2"
    assert seen.facts.value("streaming.protocol") == "sse"
    assert seen.selfcheck.transport == "http/2"


def test_trailers_end_a_reply(run: Run) -> None:
    def answer(peer: Peer, asked: Asked) -> None:
        body = asked.data(b"".join(STREAM))
        peer.send(asked.head(status=103) + asked.head(EVENTS) + body + asked.trailers(("x-took", "3")))

    assert only(run(peers(each(answer)))) == ("ok", "")


def test_over_tls(run: Run, secured: Secured, loop_factory: LoopFactory) -> None:
    context, ca_file = secured("http/1.1", "h2")
    chosen: list[str | None] = []
    opened: list[Peer] = []

    def answer(peer: Peer, asked: Asked) -> None:
        sock = peer.conversation.sock
        assert isinstance(sock, ssl.SSLSocket)
        chosen.append(sock.selected_alpn_protocol())
        assert (":scheme", "https") in asked.headers
        peer.send(asked.reply())

    seen = run(
        peers(each(answer), opened),
        12,
        load=ClosedLoop(3),
        server={"tls": context},
        target={"ca_file": ca_file},
        loop_factory=loop_factory,
    )
    assert seen.records.counts()["ok"] == 12
    assert len(opened) == 1
    assert set(chosen) == {"h2"}


# --- streams and connections


def test_requests_share_a_connection(run: Run, loop_factory: LoopFactory) -> None:
    """The server answers when all are there, a part of each in turn."""
    opened: list[Peer] = []

    def turn(peer: Peer) -> None:
        for _ in range(3):
            asked = gather(peer, 8)
            peer.send(b"".join(one.head(EVENTS) for one in asked))
            for part in STREAM:
                peer.send(b"".join(one.data(part) for one in asked))
            peer.send(b"".join(one.data(b"", end=True) for one in reversed(asked)))
        assert peer.next() is None

    seen = run(peers(turn, opened), 24, load=ClosedLoop(8), loop_factory=loop_factory)
    assert seen.records.counts()["ok"] == 24, seen.records.error
    assert [peer.asked for peer in opened] == [24]
    assert list(seen.records.output_tokens) == [2] * 24
    assert (seen.selfcheck.connections_prewarmed, seen.selfcheck.connections_opened) == (1, 0)
    assert opened[0].got(ConnectionTerminated)  # it is closed with a word
    assert not opened[0].got(StreamReset)


@pytest.mark.parametrize(("most", "concurrency", "connections"), [(1, 4, 4), (3, 7, 3), (4, 4, 1)])
def test_no_connection_has_more_streams_than_the_server_allows(
    run: Run, most: int, concurrency: int, connections: int
) -> None:
    opened: list[Peer] = []

    def answer(peer: Peer, asked: Asked) -> None:
        peer.conversation.wait(0.02)
        peer.send(asked.reply())

    script = peers(each(answer), opened, MAX_CONCURRENT_STREAMS=most)
    seen = run(script, 30, load=ClosedLoop(concurrency))
    assert seen.records.counts()["ok"] == 30, seen.records.error
    assert len(opened) == connections
    assert max(peer.most_open for peer in opened) <= most  # fewer where an answer came before the next one
    assert sum(peer.asked for peer in opened) == 30
    assert seen.selfcheck.connections_prewarmed == connections
    assert seen.selfcheck.connections_opened == 0


def test_what_needs_a_further_connection_shares_it(serve: Serve) -> None:
    """25 requests at once, where the server allows 10 and one connection is open: two more, side by side."""
    opened: list[Peer] = []
    further = threading.Barrier(2, timeout=10.0)

    def script(conversation: Conversation) -> None:
        if conversation.number >= 1:
            further.wait()  # neither of the two is open before the other has been asked for
        peers(answers(), opened, MAX_CONCURRENT_STREAMS=10)(conversation)

    target = Target.parse(serve(script, read_body=False).url, http2=True)
    head, made = carry(target, OpenAIChat(), "/v1/chat/completions", "")

    async def load() -> tuple[list[Exchange], int]:
        transport, over = made(MonotonicClock(), True), asyncio.Event()
        ended: list[Exchange] = []

        def end(exchange: Exchange) -> None:
            ended.append(exchange)
            if len(ended) == 25:
                over.set()

        assert await transport.prewarm(1, 5.0) == 1
        for number in range(25):
            request = PreparedRequest(f"r{number}", head.wire(f"r{number}", b"{}"), number, 1, 1)
            transport.send(Exchange(request, 0, 0, end))
        async with asyncio.timeout(20.0):
            await over.wait()
        await transport.close()
        return ended, transport.opened

    ended, connections = asyncio.run(load())
    assert {exchange.end for exchange in ended} == {End.COMPLETE}
    assert connections == 3
    assert sorted(peer.asked for peer in opened) == [5, 10, 10]


def test_a_limit_that_is_raised(run: Run) -> None:
    opened: list[Peer] = []

    def limit(value: int) -> bytes:
        return SettingsFrame(0, settings={SettingsFrame.MAX_CONCURRENT_STREAMS: value}).serialize()

    def turn(peer: Peer) -> None:
        """What the second connection has no room for comes over the first one, which is not idle."""
        (first,) = gather(peer, 1)
        if peer.conversation.number == 1:
            peer.conversation.wait(0.1)
            peer.send(first.reply() + away(first.stream))
            return
        peer.send(limit(4))
        peer.send(first.reply() + b"".join(one.reply() for one in gather(peer, 1)))
        answers()(peer)

    seen = run(peers(turn, opened, MAX_CONCURRENT_STREAMS=1), 6, load=ClosedLoop(2))
    assert seen.records.counts()["ok"] == 6, seen.records.error
    assert [peer.asked for peer in opened] == [5, 1]


def test_a_server_that_allows_no_stream_is_told_in_words(run: Run) -> None:
    seen = run(peers(answers(), MAX_CONCURRENT_STREAMS=0), 2)
    for outcome, error in outcomes(seen):
        assert outcome == "undecodable"
        assert "allows no stream (MAX_CONCURRENT_STREAMS 0)" in error


@pytest.mark.parametrize("goes", [True, False])
def test_a_server_that_goes_away_at_once_is_told_in_words(run: Run, goes: bool) -> None:
    """It takes no stream: asking on one further connection after the other would never end."""
    numbers: set[int] = set()

    def script(conversation: Conversation) -> None:
        numbers.add(conversation.number)
        conversation.send(SettingsFrame(0).serialize() + (away(0, 11, b"too many") if goes else b""))
        if not goes:
            conversation.close()

    seen = run(script, 2, deadlines=IMPATIENT)
    for outcome, error in outcomes(seen):
        assert outcome == "disconnected"
        assert not goes or "went away (ENHANCE_YOUR_CALM too many) before it took a request" in error
    assert len(numbers) <= 4


@pytest.mark.parametrize("window", [65_535, 10])
def test_requests_larger_than_the_windows(run: Run, loop_factory: LoopFactory, window: int) -> None:
    bodies: list[bytes] = []

    def answer(peer: Peer, asked: Asked) -> None:
        bodies.append(asked.body)
        peer.send(asked.reply())

    size = 1_000_000 if window > 10 else 3_000
    seen = run(
        peers(each(answer), INITIAL_WINDOW_SIZE=window),
        6,
        load=ClosedLoop(3),
        workload=TextWorkload(text="x" * size),
        loop_factory=loop_factory,
    )
    assert seen.records.counts()["ok"] == 6, seen.records.error
    assert all(len(json.loads(body)["messages"][0]["content"]) >= size for body in bodies)
    assert (seen.records.submitted_ns != MISSING).all()


def test_a_window_that_is_shut_within_the_load_runs_into_the_deadline(run: Run) -> None:
    """The first request goes through, then the server gives nothing back."""
    opened: list[Peer] = []

    def turn(peer: Peer) -> None:
        for asked in gather(peer, 1):
            peer.send(asked.reply())
        peer.h2.acknowledge_received_data = lambda *_: None  # type: ignore[method-assign]
        assert peer.next() is None

    workload = TextWorkload(text="x" * 100_000)
    seen = run(peers(turn, opened, INITIAL_WINDOW_SIZE=200_000), 2, workload=workload, deadlines=IMPATIENT)
    assert outcomes(seen)[0][0] == "ok"
    assert outcomes(seen)[1][0] == "timeout"
    assert (
        "the server stopped reading the request within 0.5 s (between-chunks deadline)"
        in outcomes(seen)[1][1]
    )
    assert seen.records.submitted_ns[1] == MISSING
    assert opened[0].got(StreamReset)[-1].error_code == 8  # CANCEL


@pytest.mark.slow
def test_a_window_that_opens_by_and_by_does_not(run: Run) -> None:
    """Each part of the request that leaves begins the time anew, up to the total."""
    opened: list[Peer] = []

    def turn(peer: Peer) -> None:
        peer.h2.acknowledge_received_data = lambda *_: None  # type: ignore[method-assign]
        while not peer.whole:
            peer.conversation.wait(0.1)
            if peer.begun:
                (stream,) = peer.begun
                for of in (None, stream):
                    peer.h2.increment_flow_control_window(10_000, of)
                peer.send(peer.h2.data_to_send())
            peer.take(peer.conversation.sock.recv(65_536))
        peer.send(peer.whole.popleft().reply())
        peer.next()

    patience = {"connect_s": 5.0, "first_byte_s": 5.0, "between_chunks_s": 0.5, "drain_s": 15.0}
    workload = TextWorkload(text="x" * 170_000)
    for total_s, outcome in ((15.0, "ok"), (0.7, "timeout")):
        seen = run(peers(turn, opened), workload=workload, deadlines=Deadlines(total_s=total_s, **patience))
        assert only(seen)[0] == outcome, only(seen)
    assert "total deadline" in only(seen)[1]


# --- what servers do to streams


def test_a_reset_ends_one_stream_and_no_other(run: Run) -> None:
    opened: list[Peer] = []

    def turn(peer: Peer) -> None:
        one, two, three = gather(peer, 3)
        peer.send(one.head(EVENTS) + one.data(STREAM[0]) + two.head(EVENTS) + two.data(STREAM[0]))
        peer.conversation.wait(0.05)
        peer.send(one.reset(2) + three.reset(11))
        peer.send(b"".join(map(two.data, STREAM[1:])) + two.data(b"", end=True))
        for asked in peer:
            peer.send(asked.reply())

    seen = run(peers(turn, opened), 6, load=ClosedLoop(3))
    told = sorted(outcomes(seen))
    assert [outcome for outcome, _ in told] == ["disconnected"] * 2 + ["ok"] * 4
    assert "the server reset the stream (ENHANCE_YOUR_CALM) before the first byte" in told[0][1]
    assert "the server reset the stream (INTERNAL_ERROR) before the response was complete" in told[1][1]
    assert [peer.asked for peer in opened] == [6]


def test_what_the_server_has_not_begun_is_sent_once_more(run: Run) -> None:
    """REFUSED_STREAM on a connection that was there, then again: that one is a refusal."""
    opened: list[Peer] = []

    def answer(peer: Peer, asked: Asked) -> None:
        refused = peer.asked == 2 if peer.conversation.number == 0 else True
        peer.send(asked.reset(7) if refused else asked.reply())

    seen = run(peers(each(answer), opened, MAX_CONCURRENT_STREAMS=1), 2)
    assert outcomes(seen)[0][0] == "ok"
    outcome, error = outcomes(seen)[1]
    assert outcome == "disconnected"
    assert "reset the stream (REFUSED_STREAM)" in error
    assert list(seen.records.stale_retries) == [0, 1]
    assert [peer.asked for peer in opened] == [2, 1]


def test_a_server_that_goes_away_finishes_what_it_has_begun(run: Run) -> None:
    """After ten requests it says so, and has not begun the last of the four in flight."""
    opened: list[Peer] = []

    def turn(peer: Peer) -> None:
        for _ in range(2):
            for asked in gather(peer, 4):
                peer.send(asked.reply())
        asked = gather(peer, 4)
        peer.send(asked[0].head(EVENTS) + away(asked[2].stream, said=b"max_age"))
        peer.conversation.wait(0.05)
        for one in asked[1:3]:
            peer.send(one.reply())
        peer.send(b"".join(map(asked[0].data, STREAM)) + asked[0].data(b"", end=True))
        assert peer.next() is None

    def first_goes(peer: Peer) -> None:
        if peer.conversation.number == 0:
            turn(peer)
        else:
            answers()(peer)

    seen = run(peers(first_goes, opened), 40, load=ClosedLoop(4))
    assert seen.records.counts()["ok"] == 40, seen.records.error
    assert sorted(seen.records.stale_retries)[-2:] == [0, 1]
    assert opened[0].asked == 12
    assert sum(peer.asked for peer in opened) == 41
    assert opened[0].got(ConnectionTerminated)  # it was closed when it had nothing to do


def test_a_connection_that_breaks_takes_its_streams_along(run: Run) -> None:
    opened: list[Peer] = []

    def turn(peer: Peer) -> None:
        if peer.conversation.number == 0:
            one, _, _ = gather(peer, 3)
            peer.send(one.head(EVENTS) + one.data(STREAM[0]))
            peer.conversation.wait(0.05)
            peer.conversation.reset()
            return
        answers()(peer)

    seen = run(peers(turn, opened), 9, load=ClosedLoop(3))
    counts = seen.records.counts()
    assert (counts["disconnected"], counts["ok"]) == (3, 6)
    told = sorted(error for outcome, error in outcomes(seen) if outcome == "disconnected")
    assert "before the first byte" in told[0]
    assert "before the response was complete" in told[-1]
    assert all("Connection reset" in error for error in told)


def test_a_deadline_cancels_one_stream_and_no_other(run: Run) -> None:
    """What the server still sends of it is passed over, headers and all."""
    opened: list[Peer] = []

    def turn(peer: Peer) -> None:
        slow, quick = gather(peer, 2)
        peer.send(slow.head(EVENTS) + slow.data(STREAM[0]) + quick.reply())
        for number, asked in enumerate(peer):
            if number == 0:
                peer.until(StreamReset)
                peer.send(slow.data(STREAM[1]) + slow.trailers(("x-late", "1")))
            peer.send(asked.reply())

    script = peers(turn, opened)
    deadlines = Deadlines(connect_s=5.0, first_byte_s=5.0, between_chunks_s=0.3, total_s=15.0, drain_s=15.0)
    seen = run(script, 6, load=ClosedLoop(2), deadlines=deadlines)
    assert sorted(outcome for outcome, _ in outcomes(seen)) == ["ok"] * 5 + ["timeout"]
    (reset,) = opened[0].got(StreamReset)
    assert reset.error_code == 8  # CANCEL
    assert [peer.asked for peer in opened] == [6]


def test_a_server_that_has_fallen_silent_is_asked_on_another_connection(run: Run) -> None:
    opened: list[Peer] = []

    def turn(peer: Peer) -> None:
        if peer.conversation.number == 0:
            assert peer.next() is not None
            assert peer.next() is None
        else:
            answers()(peer)

    seen = run(peers(turn, opened), 3, deadlines=IMPATIENT)
    assert [outcome for outcome, _ in outcomes(seen)] == ["timeout", "ok", "ok"]
    assert "first-byte deadline" in outcomes(seen)[0][1]
    assert [peer.asked for peer in opened] == [1, 2]


def test_what_is_no_http2_ends_every_stream(run: Run) -> None:
    def turn(peer: Peer) -> None:
        one, _ = gather(peer, 2)
        peer.send(one.head(EVENTS) + one.head(EVENTS))

    for outcome, error in outcomes(run(peers(turn), 2, load=ClosedLoop(2))):
        assert outcome == "undecodable"
        assert error.startswith("not HTTP/2: ")


# --- replies are read as over HTTP/1.1


@pytest.mark.parametrize(
    ("status", "headers", "body"),
    [
        (429, {"retry-after": "7"}, b'{"error": {"message": "slow down"}}'),
        (503, {"retry-after": "2"}, b"overloaded"),
        (503, {}, b"no"),
        (400, {}, b'{"error": {"message": "no such model"}}'),
        (500, {}, b""),
        (200, {"content-type": "application/json"}, b'{"error": {"message": "queue full"}}'),
        (200, {"content-type": "text/html"}, b"<html>welcome</html>"),
        (200, {"content-type": "text/event-stream", "content-encoding": "gzip"}, b"\x1f\x8b"),
        (200, {"content-type": "text/event-stream"}, text_event("cut off")),
        (200, {"content-type": "text/event-stream"}, b"".join(STREAM)),
    ],
)
def test_a_reply_means_the_same(
    serve: Serve, plan: MakePlan, run: Run, status: int, headers: dict[str, str], body: bytes
) -> None:
    def answer(peer: Peer, asked: Asked) -> None:
        length = ("content-length", str(len(body)))
        peer.send(asked.head(*headers.items(), length, status=status) + asked.data(body, end=True))

    over_2 = run(peers(each(answer)))
    lines = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    server = serve(reply(plain(f"{status} X", body, lines)))
    with LoadGenerator(Target.parse(server.url), OpenAIChat(), model="m") as generator:
        over_1 = generator.run(plan())
    assert only(over_2) == only(over_1)
    assert only(over_2)[0] != "ok" or body == b"".join(STREAM)
    assert list(over_2.records.http_status) == list(over_1.records.http_status) == [status]


def test_a_body_that_is_not_as_long_as_its_headers_say(run: Run) -> None:
    def answer(peer: Peer, asked: Asked) -> None:
        peer.send(asked.head(EVENTS, ("content-length", "7")) + asked.data(b"".join(STREAM), end=True))

    outcome, error = only(run(peers(each(answer))))
    assert outcome == "undecodable"
    assert "Expected 7 bytes, received" in error


def test_an_answer_to_half_a_request(run: Run) -> None:
    """It is complete, but what was not sent of the request is missing in the window of the connection."""
    opened: list[Peer] = []

    def turn(peer: Peer) -> None:
        peer.h2.acknowledge_received_data = lambda *_: None  # type: ignore[method-assign]
        while not any(len(asked.body) == 65_535 for asked in peer.begun.values()):
            data = peer.conversation.sock.recv(65536)
            if not data:
                return
            peer.take(data)
        (asked,) = peer.begun.values()
        peer.send(asked.head(status=413, end=True))
        peer.until(ConnectionTerminated)

    seen = run(peers(turn, opened), 2, workload=TextWorkload(text="x" * 100_000))
    assert [outcome for outcome, _ in outcomes(seen)] == ["http_error"] * 2
    assert len(opened) == 2
    assert all(peer.got(StreamReset) for peer in opened)


def test_headers_that_http2_has_not_are_refused() -> None:
    with pytest.raises(SuiteError, match=r"(?s)'Upgrade'.*'TE'"):
        Target.parse("http://h", headers={"Upgrade": "x", "TE": "trailers"}, http2=True)
    Target.parse("http://h", headers={"Upgrade": "x"})


@pytest.mark.parametrize("url", ["ws://h", "grpc://h:1", "http+unix://%2Frun%2Fe.sock/v1"])
def test_other_ways_are_refused(url: str) -> None:
    with pytest.raises(SuiteError, match="--llm-http=2 is for http:// and https:// endpoints"):
        Target.parse(url, http2=True)


# --- reads that are late


@pytest.mark.parametrize(("apart", "unresolved"), [(True, [2, 1]), (False, [0, 0])])
def test_a_late_read_is_late_for_all_that_share_it(apart: bool, unresolved: list[int]) -> None:
    """Its stamp is that of its last packet: no chunk of it has an instant of its own."""
    wire, clock = Wire(apart=apart), VirtualClock(1_000)
    ended: list[Exchange] = []
    loop = asyncio.new_event_loop()
    try:
        connection = Connection(wire, clock, None, loop.create_future())
        http2 = Http2(connection, wire, Requests())
        connection.attach(wire)
        connection.received(SettingsFrame(0).serialize(), 900)
        head = Http2Head(Target.parse("http://h", http2=True), "/v1/chat/completions")
        for number in range(2):
            request = PreparedRequest(f"r{number}", head.wire(f"r{number}", b"{}"), number, 1, 1)
            http2.submit(Exchange(request, 1_000, 1_000, ended.append), reused=False)
        one, two = Asked(1, []), Asked(3, [])
        connection.received(one.head(EVENTS) + two.head(EVENTS), 2_000)
        pair = one.data(STREAM[0]) + one.data(STREAM[1])
        connection.received(pair + two.data(STREAM[0]), 9_000, 3_000)
        connection.received(two.data(STREAM[1]), 11_000, 10_000)
        for asked in (one, two):
            connection.received(b"".join(map(asked.data, STREAM[2:])) + asked.data(b"", end=True), 12_000)
    finally:
        loop.close()
    records = [_decoded(exchange) for exchange in ended]
    assert [record.outcome for record in records] == [Outcome.OK] * 2
    assert [record.unresolved_chunks for record in records] == unresolved
    early_ns = 9_000 - 3_000 if apart else None
    assert [record.first_content_early_ns or None for record in records] == [early_ns] * 2
    assert wire.asked == 2


def _decoded(exchange: Exchange) -> RequestRecord:
    steps = ReplyReader(OpenAIChat()).steps(exchange)
    while True:
        try:
            next(steps)
        except StopIteration as done:
            record: RequestRecord = done.value
            return record


def a_frame(draw: st.DrawFn) -> bytes:
    """Of any kind, on a stream that there is or is not."""
    kind, flags = draw(st.integers(0, 10)), draw(st.sampled_from([0, 1, 4, 5, 8, 255]))
    payload, stream = draw(st.binary(max_size=12)), draw(st.sampled_from([0, 1, 3, 5, 7]))
    return len(payload).to_bytes(3, "big") + bytes((kind, flags)) + stream.to_bytes(4, "big") + payload


def usual_frames() -> list[bytes]:
    asked = [Asked(number, []) for number in (1, 3, 5)]
    whole = [
        frame for one in asked for frame in (one.head(EVENTS), one.data(STREAM[0]), one.data(b"", end=True))
    ]
    limits = [SettingsFrame(0, settings={SettingsFrame.MAX_CONCURRENT_STREAMS: most}) for most in (0, 1, 9)]
    return [*whole, asked[0].reset(7), asked[1].reset(2), away(3), *(frame.serialize() for frame in limits)]


@given(
    st.lists(st.sampled_from(usual_frames()) | st.composite(a_frame)(), max_size=12),
    st.integers(1, 40),
    st.lists(st.tuples(st.integers(0, 12), st.integers(0, 2)), max_size=2),
)
def test_whatever_comes_each_exchange_ends_once(
    frames: list[bytes], step: int, given_up: list[tuple[int, int]]
) -> None:
    """In reads of any length, some exchanges given up between them; then the connection ends."""
    wire, clock = Wire(apart=True), VirtualClock(1_000)
    ended: list[Exchange] = []
    loop = asyncio.new_event_loop()
    try:
        connection = Connection(wire, clock, None, loop.create_future())
        http2 = Http2(connection, wire, Requests())
        connection.attach(wire)
        connection.received(SettingsFrame(0).serialize(), 900)
        head = Http2Head(Target.parse("http://h", http2=True), "/v1/chat/completions")
        exchanges = []
        for number in range(3):
            request = PreparedRequest(f"r{number}", head.wire(f"r{number}", b"{}"), number, 1, 1)
            exchanges.append(Exchange(request, 1_000, 1_000, ended.append))
            http2.submit(exchanges[-1], reused=number > 0)
        data = b"".join(frames)
        for turn, start in enumerate(range(0, len(data), step)):
            connection.received(data[start : start + step], 2_000 + turn, 1_500)
            for at, which in given_up:
                if at == turn:
                    abandon(exchanges[which], End.TIMEOUT, 3_000, "given up")
        connection.ended(None)
    finally:
        loop.close()
    gone = wire.resent + ended
    assert sorted(map(id, gone)) == sorted(map(id, exchanges))
    assert all(len(exchange.stamps) == len(exchange.bodies) for exchange in exchanges)
