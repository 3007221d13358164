"""The upper end of P99 by the load of its queue: replayed exactly, and open wherever an assumption breaks."""

from __future__ import annotations

import math

import numpy as np
import pytest
from coverage_table import hyperexponential
from queue_models import Services, stamps_of_bursts, stamps_of_slots, stamps_of_users, standard_exponential
from scipy import stats

from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.stats.backlog import Backlog, Occupancy, SlotQueue, backlog, fewest_slots
from pytest_llmbench.stats.first_come import LOWEST, KnownQueue, known_queue, replayed
from pytest_llmbench.stats.runs import FloatArray, IntArray

MS = 1_000_000
Stamps = tuple[IntArray, IntArray]


def of(sent_ns: IntArray, ended_ns: IntArray, *, ok: bool = True) -> tuple[FloatArray, Backlog]:
    """Latencies of requests, and what they waited."""
    well = np.full(len(sent_ns), True)
    well[len(sent_ns) // 2] = ok
    return (ended_ns - sent_ns) / MS, backlog([SlotQueue.of(sent_ns, ended_ns, well)], [sent_ns])


def session(
    slots: int, load: float, n: int = 1000, seed: int = 1, services: Services = standard_exponential
) -> Stamps:
    """Stamps of M/G/c, services of 1 s on average."""
    sent, ended = stamps_of_slots(slots, load, n, 1, np.random.default_rng(seed), services)
    return (sent[0, -n:] * 1e9).astype(np.int64), (ended[0, -n:] * 1e9).astype(np.int64)


def instants(*ms: float) -> IntArray:
    return np.array([round(each * MS) for each in ms], dtype=np.int64)


def test_the_fewest_slots_are_one_more_than_a_request_passes() -> None:
    assert fewest_slots(instants(1, 2, 3)) == 1
    assert fewest_slots(instants(3, 4, 2)) == 3
    assert fewest_slots(instants()) == 1


@pytest.mark.parametrize("slots", [1, 3])
def test_a_replay_knows_waits_and_services(slots: int) -> None:
    random = np.random.default_rng(slots)
    sent = np.cumsum(random.integers(1, 4 * MS, 300))
    services, free = random.integers(MS, slots * 3 * MS, 300), np.zeros(slots, dtype=np.int64)
    begun = np.empty(300, dtype=np.int64)
    for place in range(300):
        first = int(free.argmin())
        begun[place] = max(sent[place], free[first])
        free[first] = begun[place] + services[place]
    latencies, waits = of(sent, begun + services)
    (queue,) = waits.queues
    found = replayed(latencies, queue, sent, slots)
    np.testing.assert_allclose(found.waits, (begun - sent)[slots:] / MS)
    np.testing.assert_allclose(found.services, services[slots:] / MS)
    np.testing.assert_allclose(found.own, services[slots:] / MS)
    np.testing.assert_allclose(found.gaps, np.diff(sent[slots:]) / MS)
    # Of a part of the requests: what those waited.
    some = replayed(latencies[100:200:2] / 2, queue, sent[100:200:2], slots)
    np.testing.assert_allclose(some.own, (latencies / 2 - (begun - sent) / MS)[100:200:2])
    assert len(some.services) == 300 - slots


def test_the_bound_is_where_all_that_is_not_known_leaves_one_in_a_hundred() -> None:
    """One slot, constant services of 1: P(u) = p e^(-(u - 1)/τ)."""
    n, level = 1000, 0.95
    around = np.tile([-1.5, -0.5, 0.5, 1.5], n // 4)
    variation = float(around.var())
    load = Occupancy(0.6, math.sqrt(variation / n), 1.0, variation / 2, 0.5)
    queue = KnownQueue(np.linspace(1, 2, n), np.ones(n), load, around)
    z = stats.norm.ppf(0.975)

    def reached(busy: float, varied: float, share: float) -> float:
        tau = variation * varied / 2 / (1 - busy)
        return 1 + tau * math.log(busy / share)

    squares = around**2
    varied = math.exp(z * squares.std() / math.sqrt(n) / variation)
    # The share of n whose upper limit, Clopper and Pearson's, is 1 %.
    counts = np.linspace(10, 0, 20001)
    least = counts[stats.beta.ppf(0.975, counts + 1, n - counts) <= 0.01][0] / n
    usual = reached(0.6, 1, 0.01)
    away = [
        reached(0.6 * math.exp(z * load.error), 1, 0.01) - usual,
        reached(0.6, varied, 0.01) - usual,
        reached(0.6, 1, least) - usual,
    ]
    assert queue.upper(99.0, level) == pytest.approx(usual + math.hypot(*away), rel=1e-4)
    assert queue.upper(LOWEST - 1, level) is None
    # A thousand say nothing of P99.9, and no more at the levels of early looks than at those of reports.
    assert queue.upper(99.9, level) is None
    assert queue.upper(99.0, 0.99) > queue.upper(99.0, level)  # type: ignore[operator]


def test_it_is_open_where_the_slots_may_all_be_at_work_or_waits_are_longer_than_they_may() -> None:
    around = np.tile([-1.0, 1.0], 500)

    def upper(load: Occupancy) -> float | None:
        return KnownQueue(np.linspace(1, 2, 1000), np.ones(1000), load, around).upper(99.0, 0.95)

    plain = Occupancy(0.9, 0.03, 1.0, 0.5, 4.0)
    assert upper(plain) is not None
    assert upper(plain._replace(error=0.06)) is None
    assert upper(plain._replace(waited=1.01 * plain.mean_wait(0.9 * math.exp(1.96 * 0.03)))) is None


def test_it_is_not_below_the_end_of_independent_requests() -> None:
    around = np.tile([-1.0, 1.0], 500)
    far = np.concatenate([np.ones(900), np.full(100, 50.0)])
    assert (
        KnownQueue(far, np.ones(1000), Occupancy(0.5, 0.03, 1.0, 0.5, 0.1), around).upper(99.0, 0.95) == 50.0
    )


def test_a_queue_in_the_order_sent_is_known() -> None:
    for slots, load in ((1, 0.5), (1, 0.7), (8, 0.7), (32, 0.8)):
        found = [known_queue(*of(*session(slots, load, seed=seed))) for seed in range(20)]
        queues = [queue for queue in found if queue is not None]
        assert len(queues) >= 13, (slots, load)
        assert np.mean([queue.load.utilisation for queue in queues]) == pytest.approx(load, rel=0.05)
        assert {round(queue.load.slots) for queue in queues} <= {slots, slots - 1}


def test_equal_services_of_several_slots_show_no_passing_and_are_still_known() -> None:
    def constant(random: np.random.Generator, rows: int) -> FloatArray:
        return np.ones(rows)

    found = known_queue(*of(*session(8, 0.8, services=constant)))
    assert found is None or found.load.slots == 8


def two_queues(seed: int) -> Stamps:
    """Behind a router."""
    first, second = (session(1, 0.7, 500, seed=seed + part) for part in (100, 200))
    sent, ended = (np.concatenate(both) for both in zip(first, second, strict=True))
    sent = sent - np.repeat([first[0][0], second[0][0]], 500)
    ended = ended - np.repeat([first[0][0], second[0][0]], 500)
    order = np.argsort(sent)
    return sent[order], ended[order]


def last_come_first_served(seed: int) -> Stamps:
    random = np.random.default_rng(seed)
    sent, services = np.cumsum(random.exponential(1 / 0.6, 1000)), random.exponential(size=1000)
    ended, waiting, free, place = np.empty(1000), list[int](), 0.0, 0
    while place < 1000 or waiting:
        if place < 1000 and (not waiting or sent[place] <= free):
            waiting.append(place)
            free, place = max(free, sent[place]) if len(waiting) == 1 else free, place + 1
            continue
        own = waiting.pop()
        ended[own] = free = max(free, sent[own]) + services[own]
    return (sent * 1e9).astype(np.int64), (ended * 1e9).astype(np.int64)


def in_bursts(seed: int) -> Stamps:
    times, sent = stamps_of_bursts(0.6, 1000, 1, np.random.default_rng(seed))
    return (sent[0] * 1e9).astype(np.int64), ((sent + times)[0] * 1e9).astype(np.int64)


def of_users(seed: int) -> Stamps:
    times, sent = stamps_of_users(24, 8, 1000, 1, np.random.default_rng(seed))
    return (sent[0] * 1e9).astype(np.int64), ((sent + times)[0] * 1e9).astype(np.int64)


def heavy(seed: int) -> Stamps:
    return session(4, 0.6, seed=seed, services=hyperexponential)


def slowing_down(seed: int) -> Stamps:
    """One server that is half as fast in every other stretch of 300 requests."""
    random, sent, ended = np.random.default_rng(seed), np.empty(1000), np.empty(1000)
    at = free = 0.0
    for place in range(1000):
        at += random.exponential(1 / 0.5)
        free = max(at, free) + random.exponential(1 + place // 300 % 2)
        sent[place], ended[place] = at, free
    return (sent * 1e9).astype(np.int64), (ended * 1e9).astype(np.int64)


@pytest.mark.slow
@pytest.mark.parametrize(
    "broken", [two_queues, last_come_first_served, in_bursts, of_users, heavy, slowing_down]
)
def test_what_is_no_plain_queue_is_not_taken_for_one(broken: object) -> None:
    found = [known_queue(*of(*broken(seed))) for seed in range(20)]  # type: ignore[operator]
    assert sum(queue is not None for queue in found) <= 2


def test_nothing_is_known_of_requests_that_failed_or_without_stamps() -> None:
    sent, ended = session(8, 0.7)
    latencies, waits = of(sent, ended)
    assert known_queue(latencies, waits) is not None
    assert known_queue(*of(sent, ended, ok=False)) is None
    assert known_queue(latencies, None) is None
    assert known_queue(latencies, waits.scaled(2.0)) is None
    assert known_queue(*of(sent[:400], ended[:400])) is None
    # Runs may differ by more than their requests tell.
    several = backlog(list(waits.queues) * 2, list(waits.sent_ns) * 2)
    assert known_queue([latencies, latencies], several) is None
    with pytest.raises(ValueError, match="each sample"):
        known_queue(latencies[:-1], waits)


def test_a_session_reports_the_bound_where_it_is_nearer() -> None:
    latencies, waits = of(*session(1, 0.7))
    queue, alone = known_queue(latencies, waits), distribution("e2e", latencies)
    found = distribution("e2e", latencies, backlog=waits)
    assert queue is not None
    assert found["e2e.p99"].upper == queue.upper(99.0, 0.95)
    assert found["e2e.p99"].method.endswith("above by the load of its queue")
    assert found["e2e.p99"].lower == alone["e2e.p99"].lower
    # What bounds P99 bounds P95 and P90.
    assert all(found[f"e2e.{name}"].upper <= found["e2e.p99"].upper for name in ("p50", "p90", "p95"))  # type: ignore[operator]


def test_replies_that_take_as_long_as_the_run_are_no_queue() -> None:
    """Nearly as many slots as requests: none is left to be replayed."""
    random = np.random.default_rng(2)
    sent = np.cumsum(random.integers(1, 20 * MS, 600))
    for last_passes_all in (False, True):
        ended = sent[-1] + random.integers(MS, 10_000 * MS, 600)
        if last_passes_all:
            ended[-1] = sent[-1] + 1
        found = known_queue(*of(sent, ended))
        assert found is None or found.upper(99.0, 0.95) is None


@pytest.mark.slow
@pytest.mark.parametrize(("slots", "load"), [(1, 0.5), (1, 0.7), (8, 0.7), (8, 0.8), (32, 0.8)])
def test_the_bound_holds_and_decides(slots: int, load: float) -> None:
    sent, ended = stamps_of_slots(slots, load, 1000, 200, np.random.default_rng(11))
    times, sent = (ended - sent)[:, -1000:], sent[:, -1000:]
    truth = float(np.percentile(times, 99))
    ends = []
    for own, at in zip(times, sent, strict=True):
        sent_ns = (at * 1e9).astype(np.int64)
        latencies, waits = of(sent_ns, sent_ns + (own * 1e9).astype(np.int64))
        found = distribution("x", latencies, backlog=waits)
        ends.append(math.inf if found["x.p99"].upper is None else found["x.p99"].upper / 1000)
    assert np.mean(np.array(ends) >= truth) >= 0.975 - 2 * math.sqrt(0.975 * 0.025 / 200)
    assert np.mean(np.array(ends) <= 2 * truth) >= 0.85 - 2 * math.sqrt(0.85 * 0.15 / 200)
