"""Servers that behave badly but must be measured, or refused in words, without harm to this process."""

from __future__ import annotations

import resource

import pytest
from scripted_server import (
    HEAD,
    STREAM,
    Conversation,
    Script,
    chunk,
    chunked,
    plain,
    text_event,
)

from pytest_llmbench.generator.limits import LoadLimits
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.model.plan import ClosedLoop, OpenLoop
from pytest_llmbench.model.records import OUTCOMES

BODY = b"".join(STREAM)
EVENTS = "Content-Type: text/event-stream\r\n"


def until_refused(head: bytes, block: bytes) -> Script:
    def script(conversation: Conversation) -> None:
        conversation.send(head)
        while not conversation.server.stopping.is_set():
            conversation.send(block)

    return script


@pytest.mark.parametrize(
    ("head", "block"),
    [
        pytest.param(HEAD, chunk(b"x" * 65536), id="a chunked body without end"),
        pytest.param(HEAD, chunk(text_event("word")) * 200, id="a stream of events without end"),
        pytest.param(
            f"HTTP/1.1 200 OK\r\n{EVENTS}Content-Length: {10**11}\r\n\r\n".encode(), b"x" * 65536, id="100 GB"
        ),
        pytest.param(f"HTTP/1.0 200 OK\r\n{EVENTS}\r\n".encode(), b"x" * 65536, id="until it closes"),
        pytest.param(b"HTTP/1.1 200 OK\r\n", b"x-more: of the same\r\n" * 1000, id="a head without end"),
        pytest.param(b"HTTP/1.1 100 \r\n\r\n", b"HTTP/1.1 103 \r\n\r\n" * 999, id="interim without end"),
    ],
)
def test_a_reply_without_end_is_cut_off_and_costs_bounded_memory(serve, generator_for, plan, head, block):
    limits = LoadLimits(most_reply_bytes=8 * 1024 * 1024)
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen = generator_for(serve(until_refused(head, block)), limits=limits).run(plan(2, load=ClosedLoop(2)))
    assert [OUTCOMES[each] for each in seen.records.outcome] == ["undecodable"] * 2
    assert all("was cut off" in str(error) or "head" in str(error) for error in seen.records.error)
    # What comes in until the next look, a quarter of a second later, goes beyond the ceiling.
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib < 800 * 1024


def test_the_ceiling_lets_every_sensible_reply_through(serve, generator_for, plan):
    """More than one ceiling over a connection's life, but not in one reply."""
    assert LoadLimits().most_reply_bytes >= 32 * 1024 * 1024  # 100,000 tokens in events of 300 bytes
    padded = HEAD + chunk(b": " + b"x" * 30_000_000 + b"\n\n") + chunk(BODY) + b"0\r\n\r\n"
    server = serve(lambda conversation: conversation.send(padded))
    assert generator_for(server).run(plan(3)).records.counts()["ok"] == 3
    assert server.accepted == 1


def test_a_head_in_many_small_reads_is_a_head(ask):
    """Of a slow server, or behind many proxies: no sign of a reply without end."""

    def script(conversation: Conversation) -> None:
        for number in range(400):
            conversation.send(f"x-more-{number}: of the same\r\n".encode() if number else HEAD[:-2])
            conversation.wait(0.001)
        conversation.send(b"\r\n" + chunked())

    seen = ask(script)
    assert OUTCOMES[seen.records.outcome[0]] == "ok"


def closing(head: str) -> Script:
    def script(conversation: Conversation) -> None:
        conversation.send(head.encode() + BODY)
        conversation.close()

    return script


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(f"HTTP/1.1 200 OK\r\n{EVENTS}Connection: close\r\n\r\n", id="says that it closes"),
        pytest.param(f"HTTP/1.1 200 OK\r\n{EVENTS}Content-Length: {len(BODY)}\r\n\r\n", id="just closes"),
        pytest.param(f"HTTP/1.0 200 OK\r\n{EVENTS}\r\n", id="http/1.0"),
    ],
)
def test_a_server_that_closes_every_connection_is_measured(serve, plan, head):
    """By the measuring process, in both load models; every connection that it costs is counted.

    One that just closes may meet a request on its way: that one is lost, and not sent a second time. After a
    few its connections are kept no more.
    """
    announced = "Length" not in head
    server = serve(closing(head))
    ok = 0
    with DistributedLoadGenerator(Address(server.url), "openai-chat", workers=1, model="m") as generator:
        for load in (OpenLoop(200.0), ClosedLoop(4)):
            seen = generator.run(plan(60, load=load))
            assert seen.interrupted is None
            counts = seen.records.counts()
            assert counts["ok"] + counts["disconnected"] == 60
            assert counts["disconnected"] <= (0 if announced else 8)
            ok += counts["ok"]
            check = seen.selfcheck
            # Some of the first may go over a connection that was open before the plan.
            assert check.connections_prewarmed + check.connections_opened >= counts["ok"] - 1
    assert len({served.connection for served in server.served}) == len(server.served) == ok


def test_a_proxy_that_buffers_shows_as_chunks_of_one_read(serve, generator_for, plan):
    server = serve(lambda conversation: conversation.send(plain("200 OK", BODY, EVENTS)))
    check = generator_for(server).run(plan(5)).selfcheck
    assert (check.content_chunks, check.coalesced_chunks) == (10, 5)


@pytest.mark.parametrize("event", [b"data: \n\n", b"data: {}\n\n", text_event("x")])
def test_a_reply_of_more_events_than_any_has_is_read_no_further(event, ask, monkeypatch):
    monkeypatch.setattr("pytest_llmbench.wire.stream.MOST_EVENTS", 1000)
    seen = ask(
        lambda conversation: conversation.send(
            HEAD + chunk(b": event by event\r\n" + event * 5000 + BODY) + b"0\r\n\r\n"
        )
    )
    assert OUTCOMES[seen.records.outcome[0]] == "undecodable"
    assert "more than 1,000 events" in str(seen.records.error[0])
