"""Deadlines, stops and deaths: a run ends in bounded time and keeps what it measured (users' pain 14)."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable

import pytest
from planned_load import TextWorkload
from scripted_server import HEAD, REPLY, Conversation, chunk, reply, text_event
from waiting import in_thread

from pytest_llmbench.errors import GeneratorError
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.observation import INTERRUPTED_BY_CTRL_C
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, OpenLoop
from pytest_llmbench.model.record import Outcome, RequestRecord
from pytest_llmbench.model.records import MISSING, OUTCOMES
from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.openai_chat import OpenAIChat
from pytest_llmbench.wire.sse import SSEEvent


def stall(after: bytes = b"") -> Callable[[Conversation], None]:
    def script(conversation: Conversation) -> None:
        if after:
            conversation.send(after)
        conversation.wait(30)

    return script


def drip(conversation: Conversation) -> None:
    """A stream that never ends and never falls silent."""
    conversation.send(HEAD)
    while not conversation.server.stopping.wait(0.02):
        conversation.send(chunk(text_event("x")))


@pytest.mark.parametrize(
    ("script", "deadlines", "named"),
    [
        (stall(), Deadlines(first_byte_s=0.2), "first-byte deadline"),
        (stall(HEAD + chunk(text_event("x"))), Deadlines(between_chunks_s=0.2), "between-chunks deadline"),
        (drip, Deadlines(total_s=1.5), "total deadline"),
    ],
    ids=["first byte", "between chunks", "total"],
)
def test_deadlines(ask, loop_factory, script, deadlines, named):
    seen = ask(script, deadlines=deadlines, loop_factory=loop_factory)
    records = seen.records
    assert OUTCOMES[records.outcome[0]] is Outcome.TIMEOUT
    assert named in (records.error[0] or "")
    assert records.finished_ns[0] - records.submitted_ns[0] > 150_000_000
    assert (records.first_content_ns[0] != MISSING) == (named != "first-byte deadline")
    assert seen.interrupted is None


def test_connect_deadline(serve, generator_for, plan):
    """TLS towards a server that does not answer the handshake: connected, and yet not."""
    server = serve(reply(REPLY), greet=stall())
    generator = generator_for(server.url.replace("http:", "https:"))
    seen = generator.run(plan(2, deadlines=Deadlines(connect_s=0.2)))
    assert seen.records.counts()["timeout"] == 2
    assert "connect deadline" in (seen.records.error[0] or "")
    assert seen.selfcheck.connections_prewarmed == 0


def test_a_request_that_cannot_be_written(serve, generator_for, plan):
    server = serve(stall(), read_body=False)
    big = TextWorkload(text="x" * 30_000_000)
    seen = generator_for(server).run(plan(1, workload=big, deadlines=Deadlines(total_s=0.5)))
    assert seen.records.counts()["timeout"] == 1
    assert seen.records.submitted_ns[0] == MISSING


def test_stop_keeps_what_was_measured(serve, generator_for, plan):
    def script(conversation: Conversation) -> None:
        if len(server.served) <= 10:
            conversation.send(REPLY)
        else:
            conversation.send(HEAD + chunk(text_event("one")))
            if len(server.served) == 14:
                threading.Timer(0.1, generator.stop, ["enough"]).start()
            conversation.wait(30)

    server = serve(script)
    kept: list[RequestRecord] = []
    generator = generator_for(server)
    seen = generator.run(plan(1000, load=ClosedLoop(4)), kept.append)
    counts = seen.records.counts()
    assert seen.interrupted == "enough"
    assert (counts["ok"], counts["cancelled"], counts["submitted"]) == (10, 4, 14)
    assert len(kept) == 14
    cancelled = [record for record in kept if record.outcome is Outcome.CANCELLED]
    assert all(record.error == "enough" and record.first_content_ns is not None for record in cancelled)


def test_stop_during_the_schedule(serve, generator_for, plan):
    def script(conversation: Conversation) -> None:
        if len(server.served) == 10:
            generator.stop("enough")
        conversation.send(REPLY)

    server = serve(script)
    generator = generator_for(server)
    seen = generator.run(plan(1000, load=OpenLoop(rate=50)))
    assert seen.interrupted == "enough"
    assert 10 <= len(seen.records) < 500
    assert generator.run(plan(2)).interrupted is None  # and the generator is none the worse


def test_stop_without_a_plan_does_nothing(serve, generator_for, plan):
    generator = generator_for(serve(reply(REPLY)))
    generator.stop("early")
    assert generator.run(plan(1)).interrupted is None
    generator.stop("late")


def test_ctrl_c_gives_the_observation_so_far(serve, generator_for, plan):
    server = serve(signalling(signal.SIGINT, after=50))
    seen = generator_for(server).run(plan(4000, load=OpenLoop(rate=200)))
    assert seen.interrupted == INTERRUPTED_BY_CTRL_C
    assert 50 <= len(seen.records) < 3000
    assert seen.records.counts()["ok"] >= 49


def signalling(number: signal.Signals, *, after: int) -> Callable[[Conversation], None]:
    """Answers, and sends this process a signal with the reply to request number ``after``."""

    def script(conversation: Conversation) -> None:
        conversation.send(REPLY)
        if len(conversation.server.served) == after:
            signal.pthread_kill(threading.main_thread().ident or 0, number)

    return script


def test_an_error_raised_into_the_wait_ends_the_load(serve, generator_for, plan):
    """As test timeouts do it: a signal handler raises in the waiting thread."""

    def raise_(*_: object) -> None:
        raise RuntimeError("test timeout")

    generator = generator_for(serve(signalling(signal.SIGALRM, after=20)))
    before = signal.signal(signal.SIGALRM, raise_)
    try:
        with pytest.raises(RuntimeError, match="test timeout"):
            generator.run(plan(1000, load=OpenLoop(rate=100)))
    finally:
        signal.signal(signal.SIGALRM, before)
    assert generator.run(plan(1)).records.counts()["ok"] == 1


@pytest.mark.parametrize("load", [OpenLoop(rate=50), ClosedLoop(2)], ids=["open", "closed"])
def test_session_deadline(serve, generator_for, plan, load):
    generator = generator_for(
        serve(reply(after_s=0.05)), session_deadline_ns=time.monotonic_ns() + 1_500_000_000
    )
    seen = generator.run(plan(1000, load=load))
    assert seen.interrupted == "the session deadline has passed"
    assert seen.records.counts()["ok"] > 0
    assert len(seen.records) < 1000
    late = generator.run(plan(1000, load=load))  # nothing more is sent
    assert late.interrupted == "the session deadline has passed"
    assert len(late.records) == 0


@pytest.mark.parametrize("load", [OpenLoop(rate=300), ClosedLoop(8)], ids=["open", "closed"])
def test_server_dies_in_the_middle(serve, generator_for, plan, loop_factory, load):
    """Everything still planned fails fast as disconnected; each request has its record, on_record saw all."""

    def script(conversation: Conversation) -> None:
        if len(server.served) == 60 and not dying:
            dying.append(threading.Thread(target=server.stop))
            dying[0].start()
        conversation.send(HEAD + chunk(text_event("one")))
        conversation.wait(0.01)
        conversation.send(REPLY[len(HEAD) :])

    dying: list[threading.Thread] = []
    server = serve(script)
    kept: list[RequestRecord] = []
    generator = generator_for(server, loop_factory=loop_factory)
    seen = generator.run(plan(300, load=load), kept.append)
    dying[0].join()
    counts = seen.records.counts()
    assert counts["submitted"] == len(kept) == 300
    assert counts["ok"] + counts["disconnected"] == 300
    assert counts["ok"] >= 40
    assert counts["disconnected"] >= 200
    assert seen.interrupted is None
    assert seen.in_flight_at_end == 0


@pytest.mark.parametrize(
    ("end", "why"),
    [
        (lambda generator: generator.stop("over"), "over"),
        (LoadGenerator.close, "the load generator is being closed"),
    ],
    ids=["stopped", "closed"],
)
def test_one_plan_at_a_time_which_a_stop_and_closing_end(serve, generator_for, plan, end, why):
    def script(conversation: Conversation) -> None:
        here.set()
        conversation.wait(30)

    here = threading.Event()
    generator = generator_for(serve(script))
    running, seen = in_thread(generator, plan(1))
    assert here.wait(10)
    with pytest.raises(GeneratorError, match="already running"):
        generator.run(plan(0))
    end(generator)
    running.join(10)
    assert [observation.interrupted for observation in seen] == [why]


def test_a_server_that_closes_as_soon_as_it_accepts(serve, generator_for, plan, loop_factory):
    """Whichever comes first, our request or its FIN: no request is left waiting for its deadline."""
    server = serve(reply(REPLY), greet=lambda conversation: conversation.close())
    generator = generator_for(server, loop_factory=loop_factory)
    seen = generator.run(plan(50, load=ClosedLoop(5)))
    assert seen.records.counts()["disconnected"] == 50


class _Mistaken(OpenAIChat):
    def decode(self, event: SSEEvent) -> Chunk:
        raise ZeroDivisionError("a mistake of ours")


def test_a_mistake_in_a_dialect_is_ours_and_not_the_server_s(serve, plan, loop_factory):
    target = Target.parse(serve(reply(REPLY)).url)
    with (
        LoadGenerator(target, _Mistaken(), model="m", loop_factory=loop_factory) as generator,
        pytest.raises(GeneratorError, match="ZeroDivisionError: a mistake of ours"),
    ):
        generator.run(plan(20, load=ClosedLoop(2)))
