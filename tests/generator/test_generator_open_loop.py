"""Open loop: the schedule is kept, whatever the server does (section 4.2; M-4.2.3, M-4.2.5)."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
from scripted_server import REPLY, Conversation, reply

from pytest_llmbench.arrivals import arrival_seed, schedule_ns
from pytest_llmbench.generator.limits import LoadLimits
from pytest_llmbench.model.plan import Deadlines, OpenLoop

POISSON = OpenLoop(rate=100.0)


def holding_up_once() -> Callable[[object], None]:
    """Of the records that it is given, the first holds the loop up for 0.3 s."""
    held = []

    def hold(_record: object) -> None:
        if not held:
            held.append(True)
            time.sleep(0.3)

    return hold


def test_open_loop_keeps_schedule_while_server_stalls(serve, generator_for, plan, loop_factory):
    """The server answers nobody until everybody has asked. Every request still leaves at its instant."""
    count = 60

    def script(conversation: Conversation) -> None:
        while len(server.served) < count and not server.stopping.wait(0.01):
            pass
        conversation.send(REPLY)

    server = serve(script)
    generator = generator_for(server, loop_factory=loop_factory)
    seen = generator.run(plan(count, load=POISSON, seed=3))
    records = seen.records
    assert records.counts()["ok"] == count
    assert seen.selfcheck.peak_in_flight == count
    # Not one answer came before the last request had left ...
    assert records.first_byte_ns.min() > records.dispatched_ns.max()
    # ... and the schedule was the one drawn beforehand, on an absolute clock.
    expected = schedule_ns(POISSON, count, arrival_seed(3)) + seen.started_ns
    assert records.scheduled_ns.tolist() == expected.tolist()
    lags = records.dispatched_ns - records.scheduled_ns
    assert lags.min() >= 0
    # Another process may take the core. A generator that waited would be late by the whole run.
    assert np.median(lags) < (expected[-1] - expected[0]) / 2
    assert seen.duration_s > (expected[-1] - seen.started_ns) / 1e9


def test_sends_that_are_late_are_made_up_for_and_kept_on_record(serve, generator_for, plan):
    """Something holds the loop up for 0.3 s: what was due meanwhile leaves at once, and the lag is told."""
    generator = generator_for(serve(reply(REPLY)))
    seen = generator.run(plan(60, load=OpenLoop(rate=100, arrival="uniform")), holding_up_once())
    lags = seen.records.dispatched_ns - seen.records.scheduled_ns
    assert seen.records.counts()["ok"] == 60
    assert lags.max() > 200_000_000
    assert seen.selfcheck.send_lag_max_ns == lags.max()
    assert seen.selfcheck.loop_lag_max_ns is not None
    assert seen.selfcheck.loop_lag_max_ns > 200_000_000
    # The schedule is absolute: the last requests are back on it.
    assert np.median(lags[-10:]) < lags.max() / 2


def test_a_schedule_that_is_out_of_reach_is_given_up_and_the_run_is_void(serve, generator_for, plan):
    """What was missed is sent without pause, so a server could get any number of requests at once."""
    generator = generator_for(serve(reply(REPLY)), limits=LoadLimits(most_behind_ns=100_000_000))
    seen = generator.run(plan(60, load=OpenLoop(rate=100, arrival="uniform")), holding_up_once())
    assert seen.interrupted is not None
    assert "behind its schedule, more than 0.1 s" in seen.interrupted
    assert "--llm-workers" in seen.interrupted
    assert 0 < len(seen.records) < 60
    assert seen.records.counts()["ok"] >= 1


def test_a_plan_that_begins_in_the_middle_takes_up_the_schedule_there(serve, generator_for, plan):
    seen = generator_for(serve(reply(REPLY))).run(plan(5, first=5, load=POISSON))
    whole = schedule_ns(POISSON, 10, arrival_seed(1))
    assert (seen.records.scheduled_ns - seen.started_ns).tolist() == (whole[5:] - whole[4]).tolist()
    assert seen.records.index.tolist() == [5, 6, 7, 8, 9]


def test_the_drain_is_bounded(serve, generator_for, plan):
    """Half of the requests are never answered: they are cancelled, and counted as left in flight."""

    def script(conversation: Conversation) -> None:
        if conversation.number % 2:
            conversation.wait(30)
        else:
            conversation.send(REPLY)

    deadlines = Deadlines(drain_s=0.3)
    load = OpenLoop(rate=200, arrival="uniform")
    seen = generator_for(serve(script)).run(plan(16, load=load, deadlines=deadlines))
    counts = seen.records.counts()
    assert counts["submitted"] == 16
    assert 0 < counts["cancelled"] == seen.in_flight_at_end
    assert counts["ok"] == 16 - counts["cancelled"]
    assert seen.interrupted is None
    cancelled = [error for error in seen.records.error if error]
    assert "drain deadline" in cancelled[0]


@pytest.mark.parametrize("requests", [0, 1])
def test_hardly_anything_to_send(serve, generator_for, plan, requests):
    seen = generator_for(serve(reply(REPLY))).run(plan(requests, load=POISSON))
    assert seen.records.counts()["submitted"] == requests


def test_a_cap_holds_requests_back_in_their_order(serve, generator_for, plan, loop_factory):
    """At 200 a second with 20 ms of service, two places serve 100: all but the first ones wait for an end."""

    def script(conversation: Conversation) -> None:
        conversation.wait(0.02)
        conversation.send(REPLY)

    server = serve(script)
    load = OpenLoop(rate=200.0, arrival="uniform", most_in_flight=2)
    seen = generator_for(server, loop_factory=loop_factory).run(plan(40, load=load))
    records = seen.records
    assert records.counts()["ok"] == 40
    assert server.peak_in_service == seen.selfcheck.peak_in_flight == 2
    arrivals_ns = schedule_ns(load, 40, arrival_seed(seen.plan.seed)) + seen.started_ns
    assert records.index.tolist() == list(range(40))
    assert records.scheduled_ns[:2].tolist() == arrivals_ns[:2].tolist()
    assert (records.scheduled_ns >= arrivals_ns).all()
    ends = set(records.finished_ns.tolist())
    held = records.scheduled_ns > arrivals_ns
    assert held.sum() > 20
    assert set(records.scheduled_ns[held].tolist()) <= ends
    assert (np.diff(records.dispatched_ns) >= 0).all()


def test_a_capped_load_that_is_stopped_ends(serve, generator_for, plan):
    """While everything in flight is silent and the next request waits for a place."""

    def silent(conversation: Conversation) -> None:
        conversation.wait(30)

    generator = generator_for(serve(silent))
    deadlines = Deadlines(total_s=0.3, between_chunks_s=0.3, drain_s=0.3)
    seen = generator.run(
        plan(6, load=OpenLoop(rate=100.0, most_in_flight=2), deadlines=deadlines, most_s=0.4)
    )
    assert 2 <= len(seen.records) < 6
