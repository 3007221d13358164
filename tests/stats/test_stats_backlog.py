from __future__ import annotations

import math

import numpy as np
import pytest
from queue_models import stamps_of_slots
from scipy import stats

from pytest_llmbench.stats.backlog import Backlog, Drains, SlotQueue, backlog, slots_at_work
from pytest_llmbench.stats.growth import IntArray

MS = 1_000_000


def instants(*ms: float) -> IntArray:
    return np.array([round(each * MS) for each in ms], dtype=np.int64)


def queue(starts: IntArray, ends: IntArray) -> SlotQueue:
    return SlotQueue.of(starts, ends, np.ones(len(starts), dtype=bool))


def of_slots(slots: int, load: float, n: int, seed: int = 1) -> tuple[IntArray, IntArray]:
    """Sends and ends of one session of M/M/c, service 1 s."""
    sent, ended = stamps_of_slots(slots, load, n, 1, np.random.default_rng(seed))
    return (sent[0, -n:] * 1e9).astype(np.int64), (ended[0, -n:] * 1e9).astype(np.int64)


def test_whoever_was_sent_before_one_that_is_served_is_served_too() -> None:
    # The third passes the first two, so all three were at work; the shortest service is 1.
    assert slots_at_work(instants(0, 1, 2), instants(10, 10, 3)) == 3
    # One after the other: each begins when the one before ends.
    assert slots_at_work(instants(0, 0.5, 1), instants(1, 2, 3)) == 1
    assert slots_at_work(instants(), instants()) == 1


def test_equal_services_that_overlap_are_served_at_once() -> None:
    starts = instants(*range(10))
    assert slots_at_work(starts, starts + 5 * MS) == 5


@pytest.mark.parametrize("n", [1, 2, 63, 64, 65, 200, 1000])
def test_slots_are_those_of_counting_each_pair(n: int) -> None:
    random = np.random.default_rng(n)
    starts = np.cumsum(random.integers(0, 5, n))
    ends = starts + random.integers(1, 200, n)
    at = ends - int((ends - starts).min())
    assert slots_at_work(starts, ends) == 1 + max(int((ends[:j] > at[j]).sum()) for j in range(n))


@pytest.mark.parametrize("slots", [1, 8, 32])
def test_a_busy_system_shows_its_slots(slots: int) -> None:
    # Of a short service behind a wait it is not known how short it was: a few too many.
    assert slots <= queue(*of_slots(slots, 0.9, 1000)).slots <= 1.25 * slots + 1


def test_requests_that_did_not_end_well_tell_nothing_of_slots() -> None:
    """One that is turned away at once passes all that are waiting."""
    starts, ends = instants(0, 0.5, 1, 1.2), instants(1, 2, 3, 1.2)
    assert SlotQueue.of(starts, ends, np.array([True, True, True, False])).slots == 1
    assert queue(starts, ends).slots == 3


def test_a_wait_is_a_gap_between_sends_for_each_place() -> None:
    # One slot, services of 4 ms, sent every 2 ms on average: 0 to 2 requests are ahead.
    starts, ends = instants(0, 1, 2, 8), instants(4, 8, 12, 16)
    found = queue(starts, ends)
    assert found.slots == 1
    gap_ms = 8 / 3
    # Under way at each send: 0, 1, 2, 1; a quarter find none or, between, 0.75.
    np.testing.assert_allclose(found.waits_ms(starts), np.array([0, 0.25, 1.25, 0.25]) * gap_ms)
    np.testing.assert_allclose(found.waits_ms(starts[[2]]), [1.25 * gap_ms])
    assert queue(instants(5), instants(9)).waits_ms(instants(5)).tolist() == [0.0]


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_waits_are_those_of_the_queue(seed: int) -> None:
    starts, ends = of_slots(8, 0.8, 20_000, seed)
    waited_ms = (ends - starts).mean() / MS - 1000
    # A place is as long as a gap between sends, or between ends where all slots are busy: a fifth less.
    assert 0.95 * waited_ms < queue(starts, ends).waits_ms(starts).mean() < 1.25 * waited_ms


def test_a_queue_of_ever_the_same_length_is_no_hidden_one() -> None:
    """A closed loop: the next is sent when one ends, and always finds as many before it."""
    starts = np.concatenate((np.zeros(24, dtype=np.int64), instants(*range(10, 1010))))
    ends = instants(*range(10, 1034))
    found = queue(starts, ends)
    assert found.slots < 24
    assert found.waits_ms(starts).max() == 0.0


def test_visits_are_the_square_of_drift_over_noise() -> None:
    # Ten times 1, ten times -0.5: drift 0.25, variance 0.5625.
    assert Drains(20, 5.0, 12.5).visits == pytest.approx(20 * 0.0625 / 0.5625)
    assert Drains(4, 5.0, 12.5).visits == 0.0
    assert Drains(20, -5.0, 12.5).visits == 0.0
    assert Drains(20, 20.0, 20.0).visits == 0.0


def test_a_busy_queue_is_visited_less_often_than_a_calm_one() -> None:
    calm, busy = (queue(*of_slots(8, load, 5000)).drains.visits for load in (0.6, 0.95))
    assert busy < 20 < 60 < calm


def test_the_stretch_follows_the_visits() -> None:
    quarter = Backlog((), 16 * stats.norm.ppf(0.975) ** 2)
    assert quarter.stretch(0.95) == pytest.approx(2 * 0.25 / 0.75)
    # At the levels of early looks too, or nothing would ever be bounded.
    assert quarter.stretch(0.999) == quarter.stretch(0.95)
    assert Backlog((), 3.0).stretch(0.95) == math.inf
    assert Backlog((), 0.0).stretch(0.95) == math.inf


def noisy(seconds: float) -> tuple[np.ndarray, np.ndarray]:
    """Waits of which one in ten is so long, under a noise of 1."""
    waits = np.tile([0.0] * 9 + [seconds], 200)
    return 1 + waits + np.random.default_rng(5).permutation(np.tile([-1.0, 1.0], 1000)), waits


def test_a_rise_is_the_stretch_of_the_waits_seen() -> None:
    latencies, waits = noisy(0.1)
    many = Backlog((waits,), 100.0)
    shown = 1 - 2 * np.corrcoef(waits, latencies)[0, 1] ** 2
    assert many.rise(latencies) == pytest.approx(shown * many.stretch(0.95) * 0.01)
    halves = Backlog(tuple(np.split(waits, 2)), 100.0)
    assert halves.rise(np.split(latencies, 2)) == pytest.approx(many.rise(latencies))


def test_a_rise_is_hidden_by_noise() -> None:
    latencies, waits = noisy(0.5)
    noise = stats.norm.ppf(0.975) * latencies.std() / math.sqrt(2000)
    shown = 1 - 2 * np.corrcoef(waits, latencies)[0, 1] ** 2
    assert Backlog((waits,), 0.0).rise(latencies) == pytest.approx(shown * 6 * (0.05**2 * noise) ** (1 / 3))


def test_waits_that_show_or_say_nothing_raise_nothing() -> None:
    latencies, waits = noisy(10.0)
    assert Backlog((waits,), 0.0).rise(latencies) == 0.0
    latencies, waits = noisy(0.5)
    assert Backlog((np.ones(2000),), 0.0).rise(latencies) == 0.0
    assert Backlog((waits,), 0.0).rise(np.ones(2000)) == 0.0
    assert Backlog((waits,), 0.0).rise(-latencies) == 0.0
    assert Backlog((waits[:9],), 0.0).rise(latencies[:9]) == 0.0
    with pytest.raises(ValueError, match="wait"):
        Backlog((waits[:-1],), 0.0).rise(latencies)


def test_samples_are_lengthened_by_their_own_waits() -> None:
    twice = Backlog((np.array([0.0, 3.0]), np.array([1.0])), 1e9)
    one, other = twice.lengthened([np.array([5.0, 5.0]), np.array([6.0])], 2 * 4 / 3)
    assert one.tolist() == [5.0, 11.0]
    assert other.tolist() == [8.0]
    # At most by 16 times what was waited.
    (drawn,) = Backlog((np.array([0.0, 1.0]),), 0.0).drawn_out(np.array([1.0, 2.0]))
    assert drawn.tolist() == [1.0, 18.0]
    assert Backlog((np.zeros(2),), 0.0).drawn_out(np.array([1.0, 2.0]))[0].tolist() == [1.0, 2.0]
    assert twice.scaled(0.5).waits[0].tolist() == [0.0, 1.5]


def test_runs_have_their_drains_in_common() -> None:
    runs = [of_slots(8, 0.8, 1000, seed) for seed in (1, 2)]
    queues = [queue(*run) for run in runs]
    both = backlog(queues, [starts for starts, _ in runs])
    assert [len(waits) for waits in both.waits] == [1000, 1000]
    one, other = (each.drains.visits for each in queues)
    assert max(one, other) < both.visits < 1.2 * (one + other)
    # A run without samples has no vector, as in the samples.
    assert len(backlog(queues, [runs[0][0], instants()]).waits) == 1


def test_what_was_not_begun_or_not_ended() -> None:
    starts, ends = instants(0, -1, 1, 2), instants(4, 9, -1, 3)
    starts[1] = ends[2] = -1
    found = queue(starts, ends)
    assert found.starts_ns.tolist() == [0, MS, 2 * MS]
    assert found.slots == 2  # the last one passes the first


def test_waits_that_latencies_do_not_have_in_them_count_for_less() -> None:
    """Of a time to first token that knows no wait for a slot: the noise of it is far less than the waits."""
    latencies, waits = noisy(10.0)
    of = Backlog((waits,), 100.0)
    tokens = latencies - 0.99 * waits
    slope = np.cov(waits, tokens, bias=True)[0, 1] / waits.var()
    error = math.sqrt((tokens.var() / waits.var() - slope**2) / 2000)
    believed = slope + stats.norm.ppf(0.975) * error
    assert 0 < believed < 0.05
    shown = 1 - 2 * np.corrcoef(waits, tokens)[0, 1] ** 2
    assert of.rise(tokens) == pytest.approx(shown * of.stretch(0.95) * waits.mean() * believed)
