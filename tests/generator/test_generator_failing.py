"""A load that ends by itself when the SUT has stopped answering, and does not while it answers."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from scripted_server import HEAD, REPLY, Conversation, ScriptedServer, chunk, plain, reply, text_event

from pytest_llmbench.generator.dispatcher import last_moved_ns
from pytest_llmbench.generator.http.transport import Exchange
from pytest_llmbench.generator.limits import LoadLimits
from pytest_llmbench.generator.prepared import PreparedRequest
from pytest_llmbench.model.observation import TIME_IS_UP
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, OpenLoop
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.stats import failing
from pytest_llmbench.stats.failing import LONG_NS, PATIENT_NS, QUIET_NS, STREAK, FailureWatch
from pytest_llmbench.workloads.sequence import sequence_sha256

Serve = Callable[..., ScriptedServer]
S = 1_000_000_000


def record(outcome: Outcome, status: int | None = None, at_ns: int = 0) -> RequestRecord:
    return RequestRecord(
        0, "r", Phase.MEASURE, outcome=outcome, http_status=status, finished_ns=at_ns, error="why"
    )


def exchange(*stamps_ns: int, status: int | None = None) -> Exchange:
    request = PreparedRequest("r", b"", 0, max_tokens=1, input_tokens=1)
    return Exchange(request, 0, 0, lambda _: None, stamps=list(stamps_ns), status=status)


def watch_after(*ends: tuple[Outcome, int | None]) -> FailureWatch:
    watch = FailureWatch(eager=True)
    watch.begin(0)
    for outcome, status in ends:
        watch.note(record(outcome, status))
    return watch


def verdict(watch: FailureWatch, in_flight: list[Exchange], now_ns: int) -> str | None:
    cut = watch.judge(len(in_flight), last_moved_ns(in_flight), now_ns)
    return None if cut is None else cut.reason


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
def test_so_many_in_a_row_are_enough(outcome, status):
    ends = [(outcome, status)] * STREAK
    assert "stopped answering: the last 20" in (verdict(watch_after(*ends), [], S) or "")
    assert verdict(watch_after(*ends[1:]), [], S) is None


@pytest.mark.parametrize(("outcome", "status"), ALIVE)
def test_any_answer_among_them_begins_the_count_anew(outcome, status):
    dead = [(Outcome.DISCONNECTED, None)] * (STREAK - 1)
    watch = watch_after(*dead, (outcome, status), *dead)
    assert verdict(watch, [], S) is None
    watch.note(record(Outcome.CANCELLED))
    assert verdict(watch, [], S) is None
    watch.note(record(Outcome.DISCONNECTED))
    assert verdict(watch, [], S) is not None


def test_a_stream_that_flows_is_an_answer():
    watch = watch_after(*[(Outcome.HTTP_ERROR, 500)] * (2 * STREAK))
    now = 100 * S
    assert verdict(watch, [exchange(), exchange(now - S // 10, status=200)], now) is None
    assert verdict(watch, [exchange(now - 2 * QUIET_NS, now - QUIET_NS, status=200)], now) is not None
    assert verdict(watch, [exchange(now, status=500)], now) is not None  # the head of the next error page


def test_fewer_are_enough_when_nothing_was_answered_for_long():
    watch = watch_after()
    watch.note(record(Outcome.OK, at_ns=5 * S))
    for _ in range(3):
        watch.note(record(Outcome.TIMEOUT))
    hanging = [exchange(), exchange(), exchange()]
    assert verdict(watch, hanging, 5 * S + LONG_NS - 1) is None
    assert verdict(watch, [*hanging, exchange()], 5 * S + LONG_NS) is None
    assert "nothing was answered for 10 s" in (verdict(watch, hanging, 5 * S + LONG_NS) or "")
    assert verdict(watch, [], 5 * S + LONG_NS) is not None


def test_silence_alone_is_no_failure():
    """Long replies are answered late; only deadlines can tell them from none."""
    assert verdict(watch_after(), [exchange()], 1000 * S) is None


# --- loads that do not ask for it


def patient_after(*ends: tuple[Outcome, int | None], **options: Any) -> FailureWatch:
    watch = FailureWatch(**options)
    watch.begin(0)
    for outcome, status in ends:
        watch.note(record(outcome, status))
    return watch


LOST, FINE = (Outcome.DISCONNECTED, None), (Outcome.OK, 200)


def test_a_restart_of_half_a_minute_is_waited_for():
    watch = patient_after(FINE, *[LOST] * 500)
    assert verdict(watch, [], PATIENT_NS - 1) is None
    assert "the last 500 requests that ended failed" in (verdict(watch, [], PATIENT_NS) or "")


def test_as_many_as_are_in_flight_have_to_fail():
    """A queue that is too long makes every request late; that nobody answers takes all of them."""
    watch = patient_after(FINE, *[LOST] * 5)
    assert verdict(watch, [exchange()] * 6, 100 * S) is None
    assert verdict(watch, [exchange()] * 5, 100 * S) is not None
    assert verdict(patient_after(FINE, LOST, LOST), [], 100 * S) is None  # two may be chance


def test_more_have_to_fail_in_a_row_where_many_failed_before():
    """Half of 100 before: 100 x 0.5^16 is 0.0015, and 0.5^17 half of it."""
    before = [FINE, LOST] * 50
    assert verdict(patient_after(*before, FINE, *[LOST] * 16), [], 100 * S) is None
    assert verdict(patient_after(*before, FINE, *[LOST] * 17), [], 100 * S) is not None


@pytest.mark.parametrize(("outcome", "status"), ALIVE)
def test_any_answer_shows_that_it_lives(outcome, status):
    watch = patient_after(*[LOST] * 50)
    watch.note(record(outcome, status, at_ns=80 * S))
    for _ in range(50):
        watch.note(record(*LOST))
    assert watch.judge(0, None, 80 * S + PATIENT_NS - 1) is None


@pytest.mark.parametrize(
    ("may_break", "answered", "is_result"),
    [(True, True, True), (True, False, False), (False, True, False)],
)
def test_what_breaks_a_server_is_a_result_where_it_was_looked_for(may_break, answered, is_result):
    watch = patient_after(*[FINE] * answered, *[LOST] * 50, may_break=may_break)
    cut = watch.judge(0, None, 100 * S)
    assert cut is not None
    assert (cut.is_result, cut.drains) == (is_result, False)


def test_an_error_budget_counts_every_failure():
    kinds = [LOST, (Outcome.RATE_LIMITED, 429), (Outcome.EMPTY, 200), (Outcome.HTTP_ERROR, 400)]
    watch = patient_after(*kinds, FINE, FINE, (Outcome.CANCELLED, None), most_failures=4)
    assert watch.judge(3, S, S) is None
    watch.note(record(*LOST))
    cut = watch.judge(3, S, S)
    assert cut is not None
    assert "5 of the first 7 requests failed" in cut.reason
    assert (cut.is_result, cut.drains) == (False, True)


def test_who_is_not_asked_to_watch_does_not(plan):
    assert FailureWatch.of(plan(10, watched=False)) is None
    assert FailureWatch.of(plan(10)) is not None


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


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    """A closed loop sends nine thousand requests a second to whoever refuses them at once."""
    monkeypatch.setattr(failing, "QUIET_NS", QUIET_NS // 4)


@pytest.mark.usefixtures("soon")
@pytest.mark.parametrize("load", [OpenLoop(rate=200), ClosedLoop(4)], ids=["open", "closed"])
def test_a_dead_server_ends_the_load(serve, generator_for, plan, load):
    duration_s = None if isinstance(load, OpenLoop) else 60.0
    count = 2000 if duration_s is None else 100
    wanted = plan(count, load=load, duration_s=duration_s, max_requests=30_000, stop_when_failing=True)
    seen = generator_for(dying_server(serve, 60)).run(wanted)
    counts = seen.records.counts()
    assert seen.interrupted is None
    assert "stopped answering" in (seen.stopped or "")
    assert counts["ok"] >= 30
    assert counts["disconnected"] >= STREAK
    assert counts["submitted"] < wanted.ceiling
    assert (seen.load_ended_ns is None) == (duration_s is None)
    sent = wanted.workload.requests(len(seen.records), wanted.seed)
    assert seen.sequence_sha256 == sequence_sha256(sent)


def test_failures_do_not_end_a_load_without_an_error_budget(serve, generator_for, plan):
    server = serve(reply(plain("500 Internal Server Error")))
    seen = generator_for(server).run(plan(100, load=ClosedLoop(4)))
    assert (len(seen.records), seen.stopped, seen.interrupted) == (100, None, None)


@pytest.mark.parametrize("load", [OpenLoop(rate=200), ClosedLoop(4)], ids=["open", "closed"])
def test_a_spent_error_budget_ends_the_load_and_what_is_in_flight_ends_by_itself(
    serve, generator_for, plan, load
):
    def script(conversation: Conversation) -> None:
        if len(server.served) % 2:
            conversation.send(plain("500 Internal Server Error"))
            return
        conversation.send(HEAD + chunk(text_event("one")))
        conversation.wait(0.01)
        conversation.send(REPLY[len(HEAD) :])

    server = serve(script)
    seen = generator_for(server).run(plan(3000, load=load, most_failures=20))
    counts = seen.records.counts()
    assert "the error budget cannot be kept any more: 21 of the first" in (seen.interrupted or "")
    assert "HTTP 500" in (seen.interrupted or "")
    assert (seen.stopped, counts["cancelled"], seen.in_flight_at_end) == (None, 0, 0)
    assert 21 <= counts["http_error"] <= 40
    assert counts["submitted"] == sum(counts.values()) - counts["submitted"] == len(server.served)


@pytest.mark.parametrize("may_break", [False, True])
def test_a_server_that_is_gone_for_long_ends_any_load(serve, generator_for, plan, may_break):
    limits = LoadLimits(patient_ns=S // 2)
    wanted = plan(5000, load=OpenLoop(rate=200), may_break=may_break)
    seen = generator_for(dying_server(serve, 60), limits=limits).run(wanted)
    told, other = (seen.stopped, seen.interrupted) if may_break else (seen.interrupted, seen.stopped)
    assert "the SUT has stopped answering" in (told or "")
    assert other is None
    assert len(seen.records) < 5000


@pytest.mark.parametrize("load", [OpenLoop(rate=100), ClosedLoop(2)], ids=["open", "closed"])
def test_a_load_that_has_a_time_to_keep_gives_up_what_is_in_flight_then(serve, generator_for, plan, load):
    def script(conversation: Conversation) -> None:
        conversation.send(HEAD + chunk(text_event("one")))
        conversation.wait(0.05 if len(server.served) < 20 else 30)
        conversation.send(REPLY[len(HEAD) :])

    server = serve(script)
    seen = generator_for(server).run(plan(3000, load=load, most_s=1.5))
    assert seen.interrupted == TIME_IS_UP
    assert seen.records.counts()["cancelled"] >= 1


def test_a_server_that_never_answered_is_no_result_of_a_load(generator_for, plan, serve):
    server = serve(reply(plain("500 Internal Server Error")))
    seen = generator_for(server, limits=LoadLimits(patient_ns=S // 4)).run(
        plan(5000, load=OpenLoop(rate=200), may_break=True)
    )
    assert "the SUT has stopped answering" in (seen.interrupted or "")
    assert seen.stopped is None


@pytest.mark.usefixtures("soon")
def test_what_is_in_flight_is_given_up(serve, generator_for, plan):
    """Some of the slots hang without a byte, the others are refused: nothing is waited for."""

    def script(conversation: Conversation) -> None:
        if conversation.number % 2:
            conversation.wait(30)
        conversation.send(plain("500 Internal Server Error"))

    wanted = plan(1, load=ClosedLoop(4), duration_s=60.0, max_requests=30_000, stop_when_failing=True)
    seen = generator_for(serve(script)).run(wanted)
    counts = seen.records.counts()
    assert (counts["cancelled"] >= 2, counts["http_error"] >= STREAK) == (True, True)
    assert "HTTP 500" in (seen.stopped or "")
    assert seen.in_flight_at_end == 0


def test_a_server_that_sheds_load_goes_on_being_measured(serve, generator_for, plan):
    """Two streams flow while everything else gets a 500 at once: the SUT answers."""

    def script(conversation: Conversation) -> None:
        if len(server.served) > 2 and not flowing.acquire(blocking=False):
            conversation.wait(0.005)
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


def test_hanging_requests_end_it_when_their_deadline_has_passed(serve, generator_for, plan):
    deadlines = Deadlines(first_byte_s=0.3)
    server = serve(lambda conversation: conversation.wait(30))
    wanted = plan(
        1, load=ClosedLoop(25), duration_s=60.0, max_requests=500, deadlines=deadlines, stop_when_failing=True
    )
    seen = generator_for(server).run(wanted)
    assert "first-byte deadline" in (seen.stopped or "")
    assert seen.records.counts()["timeout"] >= STREAK
    assert len(seen.records) <= 150


def test_a_load_that_was_over_anyway_was_not_stopped(serve, generator_for, plan):
    server = serve(reply(plain("500 Internal Server Error")))
    seen = generator_for(server).run(plan(STREAK, load=ClosedLoop(STREAK), stop_when_failing=True))
    assert (len(seen.records), seen.stopped) == (STREAK, None)
