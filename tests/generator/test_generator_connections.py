"""Connections: kept, reused, found stale, opened beforehand, counted."""

from __future__ import annotations

import threading
from collections.abc import Callable

from scripted_server import HEAD, LAST, REPLY, Conversation, ScriptedServer, chunk, chunked, reply, text_event

from pytest_llmbench.generator.loop_thread import LoopFactory
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.outcome import Outcome
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.records import OUTCOMES

Serve = Callable[..., ScriptedServer]
GeneratorFor = Callable[..., LoadGenerator]
MakePlan = Callable[..., LoadPlan]


def test_connections_live_on_between_requests_and_plans(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan, loop_factory: LoopFactory
) -> None:
    server = serve(reply(REPLY))
    generator = generator_for(server, loop_factory=loop_factory)
    first = generator.run(plan(10, load=ClosedLoop(2)))
    second = generator.run(plan(10, load=ClosedLoop(2)))
    assert server.accepted == 2
    assert (first.selfcheck.connections_prewarmed, first.selfcheck.connections_opened) == (2, 0)
    assert (second.selfcheck.connections_prewarmed, second.selfcheck.connections_opened) == (2, 0)


def test_the_connection_used_last_is_used_next(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan
) -> None:
    server = serve(reply(REPLY))
    generator = generator_for(server)
    generator.run(plan(4, load=ClosedLoop(4)))
    generator.run(plan(6, load=ClosedLoop(1)))
    assert len({served.connection for served in server.served[4:]}) == 1


def test_open_loop_opens_the_connections_that_it_lacks_and_counts_them(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan
) -> None:
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


def test_few_connections_are_ready_for_few_requests(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan
) -> None:
    seen = generator_for(serve(reply(REPLY))).run(plan(3, load=OpenLoop(rate=50, arrival="uniform")))
    assert seen.selfcheck.connections_prewarmed == 3


def test_connections_that_the_server_closed_while_idle_are_left_out(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan, loop_factory: LoopFactory
) -> None:
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


def test_stale_connections_are_replaced_once_and_counted(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan, loop_factory: LoopFactory
) -> None:
    """The server takes the request on a kept connection and closes without a byte: sent anew on a new one."""

    def script(conversation: Conversation) -> None:
        if conversation.turn == 1:
            conversation.close()
        else:
            conversation.send(REPLY)

    server = serve(script)
    seen = generator_for(server, loop_factory=loop_factory).run(plan(6))
    records = seen.records
    assert records.counts()["ok"] == 6
    assert list(records.stale_retries) == [0, 1, 1, 1, 1, 1]
    assert seen.selfcheck.stale_retries == 5
    assert seen.selfcheck.connections_opened == 5
    fresh = [served for served in server.served if served.turn == 0][1:]
    for row, served in enumerate(fresh, start=1):
        # the instant is that of the second sending, and the id is the same
        assert records.dispatched_ns[row] < records.submitted_ns[row]
        assert records.submitted_ns[row] < records.first_byte_ns[row]
        assert served.headers["x-request-id"] == records.request_id[row]


def test_a_fresh_connection_that_dies_is_a_failure(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan
) -> None:
    """The first sending meets a stale connection, the second a dead server: no third."""
    server = serve(lambda conversation: conversation.close())
    seen = generator_for(server).run(plan(1))
    assert seen.records.counts()["disconnected"] == 1
    assert list(seen.records.stale_retries) == [1]
    assert server.accepted == 2


def test_a_server_that_dies_with_the_request_in_hand_is_not_asked_again(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan
) -> None:
    def script(conversation: Conversation) -> None:
        conversation.wait(1.3)
        conversation.close()

    server = serve(script)
    seen = generator_for(server).run(plan(1))
    assert OUTCOMES[seen.records.outcome[0]] is Outcome.DISCONNECTED
    assert list(seen.records.stale_retries) == [0]
    assert len(server.served) == 1


def test_connection_close_is_obeyed(serve: Serve, generator_for: GeneratorFor, plan: MakePlan) -> None:
    closing = HEAD.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n") + chunked()
    server = serve(reply(closing))
    seen = generator_for(server).run(plan(3))
    assert seen.records.counts()["ok"] == 3
    assert [served.connection for served in server.served] == [0, 1, 2]
    assert seen.selfcheck.stale_retries == 0


def test_a_reply_with_an_unusual_end_is_found_and_remembered(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan
) -> None:
    """Trailers that nobody announced hide the end of the reply from the quick test. The sweep finds the first
    one; from then on every read of this server is parsed as it comes."""
    hidden = HEAD + chunk(text_event("x", "stop")) + LAST[:-2] + b"X-Sum: 1\r\n\r\n"
    server = serve(reply(hidden))
    seen = generator_for(server).run(plan(20))
    assert seen.records.counts()["ok"] == 20
    assert server.accepted == 1
    assert seen.duration_s < 5  # not 20 times the wait of the first


def test_bytes_on_an_idle_connection_end_it(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan
) -> None:
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
