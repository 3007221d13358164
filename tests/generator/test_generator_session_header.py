"""Each turn says which session it is of, for routers that keep a session on one replica."""

from __future__ import annotations

import pytest
from scripted_server import REPLY, ScriptedServer, reply

from pytest_llmbench.generator.http.request_head import RequestHead
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.plan import SessionSlots
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.sessions import SessionWorkload, turns_of

CHAT = SessionWorkload("chat", Fixed(3), Fixed(6), Fixed(5))


def named(server: ScriptedServer, header: str) -> list[str | None]:
    """The values of that header, by request as received."""
    return [request.headers.get(header.lower()) for request in server.served]


def told(facts: Facts) -> object:
    return facts.value("wire.session_header")


def test_turns_of_one_session_have_one_id_and_no_other_has_it(serve, generator_for, plan):
    server = serve(reply(REPLY))
    generator = generator_for(server)
    sessions = plan(turns_of(CHAT, 4, 1), workload=CHAT, load=SessionSlots(2))
    first, second = generator.run(sessions), generator.run(sessions)
    ids = named(server, "x-session-id")
    assert len(ids) == 24
    assert None not in ids
    by_id = {each: ids.count(each) for each in ids}
    assert len(by_id) == 8  # of the second load, which sends the same again, too
    assert set(by_id.values()) == {3}
    assert told(first.facts) == told(second.facts) == "x-session-id"


def test_independent_requests_have_none(serve, generator_for, plan):
    server = serve(reply(REPLY))
    seen = generator_for(server).run(plan(3))
    assert named(server, "x-session-id") == [None] * 3
    assert told(seen.facts) is None


@pytest.mark.parametrize("name", ["X-Conversation", ""])
def test_the_name_is_the_authors(serve, generator_for, plan, name):
    server = serve(reply(REPLY))
    sessions = plan(turns_of(CHAT, 2, 1), workload=CHAT, load=SessionSlots(1))
    seen = generator_for(server, session_header=name).run(sessions)
    assert named(server, "x-session-id") == [None] * 6
    assert told(seen.facts) == (name or "none")
    if name:
        assert len(set(named(server, name))) == 2


def test_the_bytes_of_a_turn():
    head = RequestHead(Target.parse("http://host/v1"), "/v1/x", session_header="x-session-id")
    assert head.wire("r-1", b"{}", "r-s0").endswith(
        b"\r\nx-request-id: r-1\r\nx-session-id: r-s0\r\nContent-Length: 2\r\n\r\n{}"
    )
    assert head.wire("r-1", b"{}").endswith(b"\r\nx-request-id: r-1\r\nContent-Length: 2\r\n\r\n{}")
