"""Where the instants of a record are taken (appendix B)."""

from __future__ import annotations

from planned_load import TextWorkload
from scripted_server import (
    DONE,
    FINISH,
    HEAD,
    LAST,
    REPLY,
    ROLE,
    USAGE,
    Conversation,
    chunk,
    chunked,
    event,
    reply,
    text_event,
)

from pytest_llmbench.model.plan import ClosedLoop
from pytest_llmbench.model.records import MISSING

STEP_S = 0.04
STEP_NS = int(STEP_S * 1e9)


def test_submitted_when_last_byte_has_left(serve, generator_for, plan, loop_factory):
    """A body of several MB and a server that reads it slowly: the submission is the end of sending, not its
    beginning (appendix B.1). Both ends share the clock."""

    def script(conversation: Conversation) -> None:
        starts.append(conversation.server)
        conversation.wait(0.3)
        conversation.read_body(piece=1 << 18, pause_s=0.005)
        ends.append(conversation.read_ns)
        conversation.send(REPLY)

    starts: list[object] = []
    ends: list[int] = []
    server = serve(script, read_body=False, receive_buffer=1 << 16)
    big = TextWorkload(text="x" * 12_000_000)
    seen = generator_for(server, loop_factory=loop_factory).run(plan(1, workload=big))
    records = seen.records
    assert seen.records.counts()["ok"] == 1
    took_ns = records.submitted_ns[0] - records.dispatched_ns[0]
    assert took_ns > 300_000_000
    # The last bytes fit into buffers of the kernel, so sending ends before reading does.
    assert records.submitted_ns[0] < ends[0] < records.first_byte_ns[0]


def test_a_small_request_is_submitted_at_once(ask):
    """... so its instant lies before the server's answer even when that is immediate."""
    seen = ask(reply(REPLY), requests=20)
    records = seen.records
    assert (records.scheduled_ns <= records.dispatched_ns).all()
    assert (records.dispatched_ns <= records.submitted_ns).all()
    assert (records.submitted_ns < records.first_byte_ns).all()
    assert (records.first_content_ns <= records.last_content_ns).all()
    assert (records.last_content_ns <= records.finished_ns).all()


def test_first_content_is_a_parsed_data_event(ask, loop_factory):
    """Headers, a role-only event, half of the first content event, then its other half: only that counts."""
    content = chunk(text_event("one"))

    def script(conversation: Conversation) -> None:
        conversation.send(HEAD)
        conversation.pause(STEP_S)
        conversation.send(chunk(ROLE))
        conversation.pause(STEP_S)
        conversation.send(content[:20])
        conversation.pause(STEP_S)
        conversation.send(content[20:])
        conversation.pause(STEP_S)
        conversation.send(chunk(text_event(" two")) + chunk(FINISH))
        conversation.pause(STEP_S)
        conversation.send(chunk(USAGE) + chunk(DONE) + LAST)

    records = ask(script, loop_factory=loop_factory).records
    first_byte, first_event = records.first_byte_ns[0], records.first_event_ns[0]
    assert first_event - first_byte > STEP_NS * 0.9
    assert records.first_content_ns[0] - first_event > STEP_NS * 1.9
    assert list(records.chunk_ns) == [records.first_content_ns[0], records.last_content_ns[0]]
    assert records.last_content_ns[0] - records.first_content_ns[0] > STEP_NS * 0.9
    assert records.finished_ns[0] - records.last_content_ns[0] > STEP_NS * 0.9


def test_whitespace_and_reasoning_are_not_first_content(ask):
    def script(conversation: Conversation) -> None:
        conversation.send(HEAD + chunk(event({"choices": [{"index": 0, "delta": {"reasoning": "hm"}}]})))
        conversation.pause(STEP_S)
        conversation.send(chunk(text_event("\n")))
        conversation.pause(STEP_S)
        conversation.send(chunked([text_event("x", "stop"), DONE]))

    records = ask(script).records
    assert records.first_reasoning_ns[0] == records.first_nonempty_ns[0] == records.first_byte_ns[0]
    assert records.first_content_ns[0] - records.first_nonempty_ns[0] > STEP_NS * 1.9


def test_chunks_of_one_read_are_counted_as_coalesced(ask):
    seen = ask(reply(HEAD + chunked([text_event(word) for word in "abcde"] + [FINISH, DONE])))
    assert list(seen.records.coalesced_chunks) == [4]
    assert (seen.selfcheck.content_chunks, seen.selfcheck.coalesced_chunks) == (5, 4)
    assert len(set(seen.records.chunk_ns.tolist())) == 1


def test_what_is_sent(ask, serve, generator_for, plan):
    server = serve(reply(REPLY))
    seen = generator_for(server).run(plan(3, first=2, load=ClosedLoop(3)))
    assert list(seen.records.index) == [2, 3, 4]
    assert set(seen.records.request_id) == {served.headers["x-request-id"] for served in server.served}
    for served in server.served:
        assert served.head.startswith("POST /v1/chat/completions HTTP/1.1\r\n")
        assert served.headers["host"] == f"127.0.0.1:{server.port}"
        assert served.headers["accept-encoding"] == "identity"
        assert served.headers["user-agent"].startswith("pytest-llmbench/")
        assert b'"stream":true' in served.body
    again = generator_for(server).run(plan(3))
    assert not set(again.records.request_id) & set(seen.records.request_id)


def test_no_instant_is_made_up(ask):
    records = ask(lambda conversation: conversation.close()).records
    for name in ("first_byte_ns", "first_event_ns", "first_content_ns", "last_content_ns", "output_tokens"):
        assert getattr(records, name)[0] == MISSING
