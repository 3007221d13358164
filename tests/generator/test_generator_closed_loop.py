"""Closed loop: a fixed number in flight, each end replaced at once (section 4.2, requirement M-4.2.4)."""

from __future__ import annotations

import threading

import numpy as np
from scripted_server import REPLY, Conversation, plain, reply

from pytest_llmbench.model.plan import ClosedLoop


def in_flight_over_time(seen_dispatched: np.ndarray, seen_finished: np.ndarray) -> np.ndarray:
    """In flight after each change, in order of time; at equal instants an end comes before a start."""
    instants = np.concatenate([seen_dispatched, seen_finished])
    changes = np.concatenate([np.ones(len(seen_dispatched)), -np.ones(len(seen_finished))])
    return np.cumsum(changes[np.lexsort((changes, instants))]).astype(int)


def test_closed_loop_keeps_concurrency(serve, generator_for, plan, loop_factory):
    """Failures are replaced like successes; the number in flight is C from the start to the drain."""
    concurrency, count = 5, 60

    def script(conversation: Conversation) -> None:
        conversation.wait(0.002 * (1 + conversation.turn % 4))
        failed = len(server.served) % 3 == 0
        conversation.send(plain("500 Internal Server Error") if failed else REPLY)

    server = serve(script)
    # Stamped in user space: the kernel may know of two ends before we have heard of the first.
    generator = generator_for(server, loop_factory=loop_factory, kernel_stamps=False)
    seen = generator.run(plan(count, load=ClosedLoop(concurrency)))
    records = seen.records
    counts = records.counts()
    assert counts["http_error"] > 0
    assert counts["ok"] + counts["http_error"] == counts["submitted"] == count
    assert server.peak_in_service == seen.selfcheck.peak_in_flight == concurrency
    levels = in_flight_over_time(records.dispatched_ns, records.finished_ns)
    assert levels.max() == concurrency
    drain_from = 2 * count - concurrency  # the last C changes are ends without a replacement
    assert levels[concurrency - 1 : drain_from].min() == concurrency - 1  # the instant between end and start
    assert seen.in_flight_at_end == 0


def test_a_replacement_is_due_when_the_slot_becomes_free(serve, generator_for, plan):
    seen = generator_for(serve(reply(REPLY))).run(plan(30, load=ClosedLoop(3)))
    records = seen.records
    assert records.scheduled_ns[:3].tolist() == [seen.started_ns] * 3
    ends = set(records.finished_ns.tolist())
    assert all(int(due) in ends for due in records.scheduled_ns[3:])
    assert (records.dispatched_ns >= records.scheduled_ns).all()
    # A closed loop has no schedule to be late against.
    assert seen.selfcheck.send_lag_p99_ns is None


def test_slots_are_fired_together(serve, generator_for, plan):
    """Nobody is answered before all C requests are there: with fewer at a time this would never end."""

    def script(conversation: Conversation) -> None:
        barrier.wait(10)
        conversation.send(REPLY)

    barrier = threading.Barrier(40)
    seen = generator_for(serve(script)).run(plan(80, load=ClosedLoop(40)))
    assert seen.records.counts()["ok"] == 80
    assert seen.selfcheck.connections_prewarmed == 40


def test_more_slots_than_requests(serve, generator_for, plan):
    server = serve(reply(REPLY))
    seen = generator_for(server).run(plan(3, load=ClosedLoop(50)))
    assert seen.records.counts()["ok"] == 3
    assert server.accepted == 3


def test_no_requests(serve, generator_for, plan):
    seen = generator_for(serve(reply(REPLY))).run(plan(0))
    assert seen.records.counts()["submitted"] == 0
    assert seen.selfcheck.cpu_share is not None
