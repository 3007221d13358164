"""Connections: kept, reused, found stale, opened beforehand, counted."""

from __future__ import annotations

import socket
import threading
import uuid

import pytest
from planned_load import TextWorkload
from scripted_server import (
    HEAD,
    LAST,
    REPLY,
    Conversation,
    chunk,
    chunked,
    plain,
    reply,
    text_event,
)

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.model.plan import ClosedLoop, OpenLoop
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import OUTCOMES
from pytest_llmbench.probes.access import Access, Credentials
from pytest_llmbench.probes.endpoint import examine


def test_connections_live_on_between_requests_and_plans(serve, generator_for, plan, loop_factory):
    server = serve(reply(REPLY))
    generator = generator_for(server, loop_factory=loop_factory)
    first = generator.run(plan(10, load=ClosedLoop(2)))
    second = generator.run(plan(10, load=ClosedLoop(2)))
    assert server.accepted == 2
    assert (first.selfcheck.connections_prewarmed, first.selfcheck.connections_opened) == (2, 0)
    assert (second.selfcheck.connections_prewarmed, second.selfcheck.connections_opened) == (2, 0)


def test_the_connection_used_last_is_used_next(serve, generator_for, plan):
    server = serve(reply(REPLY))
    generator = generator_for(server)
    generator.run(plan(4, load=ClosedLoop(4)))
    generator.run(plan(6, load=ClosedLoop(1)))
    assert len({served.connection for served in server.served[4:]}) == 1


def test_open_loop_opens_the_connections_that_it_lacks_and_counts_them(serve, generator_for, plan):
    """No request waits for a free connection, however many are in flight."""

    def script(conversation: Conversation) -> None:
        if len(server.served) == 80:
            all_here.set()
        all_here.wait(10)
        conversation.send(REPLY)

    all_here = threading.Event()
    server = serve(script)
    seen = generator_for(server).run(plan(80, load=OpenLoop(rate=500, arrival="uniform")))
    assert seen.records.counts()["ok"] == 80
    assert seen.selfcheck.peak_in_flight == 80
    assert (seen.selfcheck.connections_prewarmed, seen.selfcheck.connections_opened) == (64, 16)


def test_few_connections_are_ready_for_few_requests(serve, generator_for, plan):
    seen = generator_for(serve(reply(REPLY))).run(plan(3, load=OpenLoop(rate=50, arrival="uniform")))
    assert seen.selfcheck.connections_prewarmed == 3


def test_connections_that_the_server_closed_while_idle_are_left_out(serve, generator_for, plan, loop_factory):
    """Closed between two plans, so the loop has seen it: no stale retry, no failed request."""

    def script(conversation: Conversation) -> None:
        conversation.send(REPLY)
        if conversation.number < 4:
            conversation.close()
            if len(server.served) == 4:
                closed.set()

    closed = threading.Event()
    server = serve(script)
    generator = generator_for(server, loop_factory=loop_factory)
    generator.run(plan(4, load=ClosedLoop(4)))
    assert closed.wait(10)
    threading.Event().wait(0.05)  # for the last FIN to be seen
    seen = generator.run(plan(4, load=ClosedLoop(4)))
    assert seen.records.counts()["ok"] == 4
    assert seen.selfcheck.stale_retries == 0


def farewell(conversation: Conversation) -> None:
    """A reply and the end of the connection in one packet: before it is seen, the next request is written."""
    conversation.sock.send(REPLY, socket.MSG_MORE)
    conversation.close()


def test_requests_that_never_arrived_are_sent_on_a_new_connection_and_counted(
    serve, generator_for, plan, loop_factory
):
    """A server that does so every time is known by the third, and its connections are kept no more."""
    server = serve(farewell)
    seen = generator_for(server, loop_factory=loop_factory).run(plan(6))
    records = seen.records
    assert records.counts()["ok"] == 6
    assert list(records.stale_retries) == [0, 1, 1, 1, 0, 0]
    assert seen.selfcheck.stale_retries == 3
    assert seen.selfcheck.connections_opened == 5
    for row, served in enumerate(server.served):
        assert served.headers["x-request-id"] == records.request_id[row]
    # the instant is that of the second sending
    assert (records.dispatched_ns[1:4] < records.submitted_ns[1:4]).all()
    assert (records.submitted_ns < records.first_byte_ns).all()


def test_one_that_keeps_connections_and_loses_some_is_kept(serve, generator_for, plan):
    """Every second reply is the connection's last: those between go over kept ones all the same."""

    def script(conversation: Conversation) -> None:
        if conversation.turn == 1:
            farewell(conversation)
        else:
            conversation.send(REPLY)

    server = serve(script)
    seen = generator_for(server).run(plan(12))
    assert seen.records.counts()["ok"] == 12
    assert {served.turn for served in server.served[-4:]} == {0, 1}


@pytest.mark.parametrize("end", ["close", "reset", "half_close"])
@pytest.mark.parametrize("kernel_stamps", [True, False])
def test_a_request_that_arrived_is_never_sent_again(
    serve, generator_for, plan, loop_factory, end, kernel_stamps
):
    """The server takes it on a kept connection and hangs up without a byte: it may have been at work."""

    def script(conversation: Conversation) -> None:
        if conversation.turn == 1:
            getattr(conversation, end)()
        else:
            conversation.send(REPLY)

    server = serve(script)
    seen = generator_for(server, loop_factory=loop_factory, kernel_stamps=kernel_stamps).run(plan(6))
    assert seen.records.counts()["ok"] == seen.records.counts()["disconnected"] == 3
    assert seen.selfcheck.stale_retries == 0
    ids = [served.headers["x-request-id"] for served in server.served]
    assert len(ids) == len(set(ids)) == 6
    assert "kept one" in str(seen.records.error[1])


def test_what_a_server_resets_behind_each_first_reply_is_lost_three_times_and_no_more(
    serve, generator_for, plan, loop_factory
):
    """It hangs up when the next request has come, and has not read it. No reset tells so: it is data."""

    def script(conversation: Conversation) -> None:
        conversation.send(REPLY)
        conversation.sock.recv(1, socket.MSG_PEEK)
        conversation.close()

    server = serve(script)
    generator = generator_for(server, loop_factory=loop_factory)
    seen = generator.run(plan(12))
    ok = [outcome == OUTCOMES.index(Outcome.OK) for outcome in seen.records.outcome]
    assert ok == [True, False] * 3 + [True] * 6
    assert "kept one" in str(seen.records.error[1])
    assert seen.selfcheck.stale_retries == 0
    later = generator.run(plan(12))  # as the loads behind a warm-up
    assert later.records.counts()["ok"] == 12


@pytest.mark.parametrize("read_body", [True, False])
def test_a_request_of_which_a_part_arrived_is_never_sent_again(
    serve, generator_for, plan, loop_factory, read_body
):
    """Too large for the buffers of a server that reads its head alone, on a kept connection."""
    heads: list[str] = []

    def script(conversation: Conversation) -> None:
        heads.append(conversation.headers["x-request-id"])
        if conversation.turn == 0:
            conversation.read_body()
            conversation.send(REPLY)
        elif read_body:
            conversation.read_body()
            conversation.close()
        else:
            conversation.half_close()

    server = serve(script, read_body=False, receive_buffer=4096)
    long = TextWorkload(text="p" * 4_000_000)
    seen = generator_for(server, loop_factory=loop_factory).run(plan(4, workload=long))
    assert seen.records.counts()["disconnected"] == 2
    assert seen.selfcheck.stale_retries == 0
    assert len(heads) == len(set(heads)) == 4


def test_a_fresh_connection_that_dies_is_a_failure(serve, generator_for, plan):
    """The first sending never arrived, the second meets a dead server: no third."""

    def script(conversation: Conversation) -> None:
        if conversation.number == 0:
            farewell(conversation)
        conversation.close()

    server = serve(script)
    seen = generator_for(server).run(plan(2))
    assert seen.records.counts()["disconnected"] == 1
    assert list(seen.records.stale_retries) == [0, 1]
    assert server.accepted == 2


def test_connection_close_is_obeyed(serve, generator_for, plan):
    closing = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + chunked()
    server = serve(reply(closing))
    seen = generator_for(server).run(plan(3))
    assert seen.records.counts()["ok"] == 3
    assert [served.connection for served in server.served] == [0, 1, 2]
    assert seen.selfcheck.stale_retries == 0


def test_a_reply_with_an_unusual_end_is_found_and_remembered(serve, generator_for, plan):
    """Trailers that nobody announced hide the end of the reply from the quick test. The sweep finds the first
    one; from then on every read of this server is parsed as it comes."""
    hidden = HEAD + chunk(text_event("x", "stop")) + LAST[:-2] + b"X-Sum: 1\r\n\r\n"
    server = serve(reply(hidden))
    seen = generator_for(server).run(plan(100))
    assert seen.records.counts()["ok"] == 100
    assert server.accepted == 1
    assert seen.duration_s < 20  # not 100 times the wait of the first


def test_bytes_on_an_idle_connection_end_it(serve, generator_for, plan):
    def script(conversation: Conversation) -> None:
        conversation.send(REPLY)
        if conversation.number == 0:
            conversation.wait(0.05)
            conversation.send(b"220 hello\r\n")
            sent.set()

    sent = threading.Event()
    server = serve(script)
    generator = generator_for(server)
    assert generator.run(plan(1)).records.counts()["ok"] == 1
    assert sent.wait(10)
    threading.Event().wait(0.05)  # for the bytes to be read
    assert generator.run(plan(1)).records.counts()["ok"] == 1
    assert [served.connection for served in server.served] == [0, 1]


def test_middleware_that_wants_uuids_is_content_and_the_preflight_asks_as_the_load_does(
    serve, generator_for, plan
):
    """Servers check the id before anything else (asgi-correlation-id, llama-cpp-python)."""

    def script(conversation: Conversation) -> None:
        if conversation.head.startswith("GET"):
            conversation.send(plain("404 Not Found"))
            return
        try:
            uuid.UUID(conversation.headers["x-request-id"])
        except (KeyError, ValueError):
            conversation.send(plain("400 Bad Request", b"Invalid X-Request-ID"))
            return
        conversation.send(REPLY)

    server = serve(script)
    given = {"X-Team": "a", "user-agent": "mine/1"}
    assert examine(server.url, model="m", access=Access(Credentials(given))).model == "m"
    target = Target.parse(server.url, headers=given)
    seen = generator_for(server, target=target).run(plan(3))
    assert seen.records.counts()["ok"] == 3
    posted = [served.headers for served in server.served if served.head.startswith("POST")]
    assert len({each.pop("x-request-id") for each in posted}) == len(posted)
    for each in posted:
        del each["content-length"]
    assert all(each == posted[-1] for each in posted)
    assert posted[0]["user-agent"] == "mine/1"
