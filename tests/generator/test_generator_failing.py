"""A load that ends by itself when the SUT has stopped answering, and does not while it answers."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest
from scripted_server import HEAD, REPLY, Conversation, ScriptedServer, chunk, plain, reply, text_event

from pytest_llmbench.generator.failing import LONG_NS, QUIET_NS, STREAK, FailureWatch
from pytest_llmbench.generator.prepared import PreparedRequest
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.generator.transport import Exchange
from pytest_llmbench.model.outcome import Outcome, Phase
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan, OpenLoop
from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.workloads.sequence import sequence_sha256

Serve = Callable[..., ScriptedServer]
GeneratorFor = Callable[..., LoadGenerator]
MakePlan = Callable[..., LoadPlan]
S = 1_000_000_000


def record(outcome: Outcome, status: int | None = None, at_ns: int = 0) -> RequestRecord:
    return RequestRecord(
        0, "r", Phase.MEASURE, outcome=outcome, http_status=status, finished_ns=at_ns, error="why"
    )


def exchange(*stamps_ns: int, status: int | None = None) -> Exchange:
    request = PreparedRequest("r", b"", 0, max_tokens=1, input_tokens=1)
    return Exchange(request, 0, 0, lambda _: None, stamps=list(stamps_ns), status=status)


def watch_after(*ends: tuple[Outcome, int | None]) -> FailureWatch:
    watch = FailureWatch()
    watch.begin(0)
    for outcome, status in ends:
        watch.note(record(outcome, status))
    return watch


DEAD: list[tuple[Outcome, int | None]] = [
    (Outcome.DISCONNECTED, None),
    (Outcome.TIMEOUT, None),
    (Outcome.HTTP_ERROR, 500),
    (Outcome.HTTP_ERROR, 503),
]
ALIVE: list[tuple[Outcome, int | None]] = [
    (Outcome.OK, 200),
    (Outcome.HTTP_ERROR, 400),
    (Outcome.RATE_LIMITED, 503),
    (Outcome.IN_BAND_ERROR, 200),
    (Outcome.REFUSED, 400),
    (Outcome.EMPTY, 200),
]


@pytest.mark.parametrize(("outcome", "status"), DEAD)
def test_so_many_in_a_row_are_enough(outcome: Outcome, status: int | None) -> None:
    ends = [(outcome, status)] * STREAK
    assert "stopped answering: the last 20" in (watch_after(*ends).verdict([], S) or "")
    assert watch_after(*ends[1:]).verdict([], S) is None


@pytest.mark.parametrize(("outcome", "status"), ALIVE)
def test_any_answer_among_them_begins_the_count_anew(outcome: Outcome, status: int | None) -> None:
    dead = [(Outcome.DISCONNECTED, None)] * (STREAK - 1)
    watch = watch_after(*dead, (outcome, status), *dead)
    assert watch.verdict([], S) is None
    watch.note(record(Outcome.CANCELLED))
    assert watch.verdict([], S) is None
    watch.note(record(Outcome.DISCONNECTED))
    assert watch.verdict([], S) is not None


def test_a_stream_that_flows_is_an_answer() -> None:
    watch = watch_after(*[(Outcome.HTTP_ERROR, 500)] * (2 * STREAK))
    now = 100 * S
    assert watch.verdict([exchange(), exchange(now - S // 10, status=200)], now) is None
    assert watch.verdict([exchange(now - 2 * QUIET_NS, now - QUIET_NS, status=200)], now) is not None
    assert watch.verdict([exchange(now, status=500)], now) is not None  # the head of the next error page


def test_fewer_are_enough_when_nothing_was_answered_for_long() -> None:
    watch = watch_after()
    watch.note(record(Outcome.OK, at_ns=5 * S))
    for _ in range(3):
        watch.note(record(Outcome.TIMEOUT))
    hanging = [exchange(), exchange(), exchange()]
    assert watch.verdict(hanging, 5 * S + LONG_NS - 1) is None
    assert watch.verdict([*hanging, exchange()], 5 * S + LONG_NS) is None
    assert "nothing was answered for 10.0 s" in (watch.verdict(hanging, 5 * S + LONG_NS) or "")
    assert watch.verdict([], 5 * S + LONG_NS) is not None


def test_silence_alone_is_no_failure() -> None:
    """Long replies are answered late; only deadlines can tell them from none."""
    assert watch_after().verdict([exchange()], 1000 * S) is None


# --- whole loads


def dying_server(serve: Serve, alive_for: int) -> ScriptedServer:
    """Answers so many requests, and then the port refuses and streams under way break."""

    def script(conversation: Conversation) -> None:
        if len(server.served) == alive_for:
            threading.Thread(target=server.stop).start()
        conversation.send(HEAD + chunk(text_event("one")))
        conversation.wait(0.01)
        conversation.send(REPLY[len(HEAD) :])

    server = serve(script)
    return server


@pytest.mark.parametrize("load", [OpenLoop(rate=200), ClosedLoop(4)], ids=["open", "closed"])
def test_a_dead_server_ends_the_load(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan, load: OpenLoop | ClosedLoop
) -> None:
    duration_s = None if isinstance(load, OpenLoop) else 60.0
    count = 5000 if duration_s is None else 100
    wanted = plan(count, load=load, duration_s=duration_s, max_requests=30_000, stop_when_failing=True)
    seen = generator_for(dying_server(serve, 60)).run(wanted)
    counts = seen.records.counts()
    assert seen.interrupted is None
    assert "stopped answering" in (seen.stopped or "")
    assert counts["ok"] >= 30
    assert counts["disconnected"] >= STREAK
    assert counts["submitted"] < wanted.ceiling
    assert seen.duration_s < 10
    assert (seen.load_ended_ns is None) == (duration_s is None)
    sent = wanted.workload.requests(len(seen.records), wanted.seed)
    assert seen.sequence_sha256 == sequence_sha256(sent)


def test_a_dead_server_does_not_end_a_load_that_did_not_ask_for_it(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan
) -> None:
    server = serve(reply(plain("500 Internal Server Error")))
    seen = generator_for(server).run(plan(100, load=ClosedLoop(4)))
    assert (len(seen.records), seen.stopped) == (100, None)


def test_what_is_in_flight_is_given_up(serve: Serve, generator_for: GeneratorFor, plan: MakePlan) -> None:
    """Some of the slots hang without a byte, the others are refused: nothing is waited for."""

    def script(conversation: Conversation) -> None:
        if conversation.number % 2:
            conversation.wait(30)
        conversation.send(plain("500 Internal Server Error"))

    wanted = plan(1, load=ClosedLoop(4), duration_s=60.0, max_requests=30_000, stop_when_failing=True)
    began = time.monotonic()
    seen = generator_for(serve(script)).run(wanted)
    counts = seen.records.counts()
    assert time.monotonic() - began < 5
    assert (counts["cancelled"] >= 2, counts["http_error"] >= STREAK) == (True, True)
    assert "HTTP 500" in (seen.stopped or "")
    assert seen.in_flight_at_end == 0


def test_a_server_that_sheds_load_goes_on_being_measured(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan
) -> None:
    """Two streams flow while everything else gets a 500 at once: the SUT answers."""

    def script(conversation: Conversation) -> None:
        if len(server.served) > 2 and not flowing.acquire(blocking=False):
            conversation.wait(0.002)
            conversation.send(plain("500 Internal Server Error"))
            return
        conversation.send(HEAD)
        for _ in range(28):
            conversation.send(chunk(text_event("x")))
            conversation.wait(0.05)
        conversation.send(REPLY[len(HEAD) :])
        flowing.release()

    flowing = threading.Semaphore(0)
    server = serve(script)
    wanted = plan(1, load=ClosedLoop(6), duration_s=1.3, max_requests=5000, stop_when_failing=True)
    seen = generator_for(server).run(wanted)
    counts = seen.records.counts()
    assert counts["http_error"] > 2 * STREAK
    assert counts["ok"] >= 2
    assert seen.stopped is None


def test_hanging_requests_end_it_when_their_deadline_has_passed(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan
) -> None:
    deadlines = Deadlines(first_byte_s=0.3)
    server = serve(lambda conversation: conversation.wait(30))
    wanted = plan(
        1, load=ClosedLoop(25), duration_s=60.0, max_requests=500, deadlines=deadlines, stop_when_failing=True
    )
    seen = generator_for(server).run(wanted)
    assert "first-byte deadline" in (seen.stopped or "")
    assert seen.records.counts()["timeout"] >= STREAK
    assert len(seen.records) <= 150


def test_a_load_that_was_over_anyway_was_not_stopped(
    serve: Serve, generator_for: GeneratorFor, plan: MakePlan
) -> None:
    server = serve(reply(plain("500 Internal Server Error")))
    seen = generator_for(server).run(plan(STREAK, load=ClosedLoop(STREAK), stop_when_failing=True))
    assert (len(seen.records), seen.stopped) == (STREAK, None)
