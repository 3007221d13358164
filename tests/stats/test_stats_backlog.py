from __future__ import annotations

import math

import numpy as np
import pytest
from queue_models import stamps_of_slots, stamps_of_users
from scipy import stats

from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.stats.backlog import (
    NO_RISE,
    Backlog,
    Drains,
    Occupancy,
    SlotQueue,
    Work,
    backlog,
    slots_at_work,
)
from pytest_llmbench.stats.runs import IntArray
from pytest_llmbench.stats.spectral import mean_interval

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


def hidden(latencies: np.ndarray, waits: np.ndarray) -> tuple[float, float, float]:
    """The shares of rises that the latencies do not show themselves, of the mean, the median and beyond."""
    explained = float(np.corrcoef(waits, latencies)[0, 1] ** 2)
    return 1 - explained**2, 1 - 2 * explained, (1 - explained) * (1 + 2 * explained)


def test_a_rise_is_the_stretch_of_the_waits_seen() -> None:
    latencies, waits = noisy(0.1)
    many = Backlog((waits,), 100.0)
    mean, median, beyond = hidden(latencies, waits)
    longer = many.stretch(0.95) * 0.01
    assert many.rise(latencies) == pytest.approx(
        (mean * longer, median * longer, beyond * longer, median * longer, 0.0, 1.0)
    )
    halves = Backlog(tuple(np.split(waits, 2)), 100.0)
    assert halves.rise(np.split(latencies, 2)) == pytest.approx(many.rise(latencies))


def test_a_rise_is_hidden_by_noise() -> None:
    latencies, waits = noisy(0.5)
    noise = stats.norm.ppf(0.975) * latencies.std() / math.sqrt(2000)
    mean, median, beyond = hidden(latencies, waits)
    longer = 6 * (0.05**2 * noise) ** (1 / 3)
    assert Backlog((waits,), 0.0).rise(latencies) == pytest.approx(
        (mean * longer, median * longer, beyond * longer, median * longer, 0.0, 1.0)
    )


def test_waits_that_show_or_say_nothing_raise_nothing() -> None:
    latencies, waits = noisy(10.0)
    assert Backlog((waits,), 0.0).rise(latencies).median == 0.0
    assert Backlog((waits,), 0.0, Occupancy(1.0, 0.1, 1, 1.0, 0.0)).rise(latencies).median == 0.0
    assert Backlog((waits,), 0.0).rise(waits) == NO_RISE
    latencies, waits = noisy(0.5)
    assert Backlog((np.ones(2000),), 0.0).rise(latencies) == NO_RISE
    assert Backlog((waits,), 0.0).rise(np.ones(2000)) == NO_RISE
    assert Backlog((waits,), 0.0).rise(-latencies) == NO_RISE
    assert Backlog((waits[:9],), 0.0).rise(latencies[:9]) == NO_RISE
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
    assert of.rise(tokens).median == pytest.approx(shown * of.stretch(0.95) * waits.mean() * believed)


def test_a_slope_below_zero_by_chance_hides_as_much() -> None:
    latencies, waits = noisy(0.01)
    slope = np.cov(waits, latencies, bias=True)[0, 1] / waits.var()
    error = 1 / waits.std() / math.sqrt(2000)
    assert -error < slope < 0
    assert Backlog((waits,), 100.0).rise(latencies).mean > 0


def test_work_is_the_slot_time_of_all() -> None:
    # In turns of 1 and 3 ms, one of 4 ms and one of 2, which waits for none.
    starts = np.cumsum(np.tile([3, 1], 50)) * MS
    ends = starts + np.tile([4, 2], 50) * MS
    found = queue(starts, ends)
    assert found.slots == 2
    of_gaps = np.tile([1, 3], 50)[:99].var() / (197 / 99) ** 2
    assert found.work == Work(
        requests=100,
        done_ns=pytest.approx(300 * MS),
        offered_ns=pytest.approx(2 * 100 * (197 / 99) * MS),
        waited_ns=0.0,
        variation=pytest.approx(of_gaps + 1 / 9),
        slots=2,
        of_gaps=pytest.approx(of_gaps),
    )
    # What has not ended is under way until the last end.
    ends[0] = -1
    open_end = queue(starts, ends).work
    assert open_end is not None
    assert open_end.requests == 100
    assert queue(starts[:9], ends[:9]).work is None
    assert queue(starts * 0, starts + MS).work is None


@pytest.mark.parametrize(("slots", "load"), [(32, 0.8), (32, 0.9), (64, 0.9)])
def test_utilisation_is_known_to_its_error(slots: int, load: float) -> None:
    loads = [
        backlog([each], [each.starts_ns]).load
        for each in (queue(*of_slots(slots, load, 1000, seed)) for seed in range(8))
    ]
    off = [math.log(one.utilisation / load) / one.error for one in loads if one is not None]
    assert len(off) == 8
    assert abs(np.mean(off)) < 3 / math.sqrt(8)
    assert max(map(abs, off)) < 3
    assert all(one is not None and 0.03 < one.error < 0.06 for one in loads)


def test_a_closed_loop_and_few_requests_have_no_load() -> None:
    sent, ended = stamps_of_users(24, 8, 1000, 1, np.random.default_rng(3))
    starts = (ended[0] * 1e9).astype(np.int64)
    assert queue(starts, starts + (sent[0] * 1e9).astype(np.int64)).work is None
    short = queue(*of_slots(8, 0.8, 499))
    assert short.work is not None
    assert backlog([short], [short.starts_ns]).load is None


def test_runs_tell_one_load() -> None:
    one, other = Work(600, 3e8, 4e8, 1e8, 2.0, 8, 1.0), Work(200, 1e8, 1e8, 6e8, 1.0, 4, 1.0)
    both = Occupancy.of([one, other])
    assert both.utilisation == pytest.approx(0.8)
    assert both.slots == pytest.approx(7)
    assert both.error == pytest.approx(math.sqrt(1.75 / 800))
    assert both.scale == pytest.approx(0.5 * 1.75 / 2)
    assert both.waited == pytest.approx(0.875)


@pytest.mark.parametrize(
    ("of_gaps", "requests", "expected"),
    [
        (0.2, 1000, 1.0),
        (1.2, 1000, 1.0),
        (1.5, 200, 1.0),
        (1.44, 1000, 1.2),
        (1.44, 2000, 1.2),
        (7.0, 200, 1.5),
    ],
)
def test_bursts_are_gaps_certainly_more_varied_than_exponential_ones(
    of_gaps: float, requests: int, expected: float
) -> None:
    work = Work(requests, 1e9, 2e9, 0.0, 1 + of_gaps, 4, of_gaps)
    assert work.burstiness == pytest.approx(expected)


def test_requests_in_bursts_draw_out_crude_ends() -> None:
    """Batches of four to a server of one slot at half load. ``calm``: the same without their bursts."""
    random = np.random.default_rng(2)
    gaps = np.where(random.random(600) < 0.25, 8 * random.exponential(size=600), 0.0)
    sent, free = np.cumsum(gaps), 0.0
    ended = np.empty(600)
    for place, service in enumerate(random.exponential(size=600)):
        free = ended[place] = max(sent[place], free) + service
    bursts = queue(*((at * 1e9).astype(np.int64) + MS for at in (sent, ended)))
    waits = backlog([bursts], [bursts.starts_ns])
    assert waits.burstiness == 1.5
    latencies = (bursts.ends_ns - bursts.starts_ns) / 1e6
    assert waits.rise(latencies).burstiness == 1.5
    far, near = (
        distribution("x", latencies, backlog=each)["x.p99"].upper
        for each in (waits, waits._replace(burstiness=1.0))
    )
    assert far is not None
    assert near is not None
    assert 1.1 * near < far < 3 * near


def test_the_share_that_waits_is_that_of_sakasegawa() -> None:
    one, eight = (Occupancy(0.8, 0.0, slots, 1.0, 0.0) for slots in (1, 8))
    assert one.share_waiting(0.8) == pytest.approx(0.8)
    # Erlang's C of eight slots at 90 %: 0.70.
    assert eight.share_waiting(0.9) == pytest.approx(0.70, abs=0.02)
    assert eight.share_waiting(1.2) == 1.0
    assert one.busiest(0.95) == pytest.approx(0.8)
    assert Occupancy(0.8, 0.1, 1, 1.0, 0.0).busiest(0.95) == pytest.approx(0.8 * math.exp(0.196), rel=1e-3)


def test_where_hardly_any_waited_all_would_wait() -> None:
    """Of samples at 0.9 and 1.1 a limit at 1 keeps half; one in a hundred waited, and was late anyway."""
    waits = np.tile([0.0] * 99 + [0.1], 10)
    samples = np.where(waits > 0, 1.2, np.tile([0.9, 1.1], 500))
    load = Occupancy(0.5, 0.0, 1, 1.0, 0.0)
    seen = float(waits.mean())
    kept = float(np.mean(samples <= 1))
    assert Backlog((waits,), 9.0).share_within(samples, 1.0, 0.05, 0.95) == kept
    late = 0.5 * math.exp(-0.1 * 0.5 / (seen + 0.05))
    found = Backlog((waits,), 9.0, load).share_within(samples, 1.0, 0.05, 0.95)
    assert found == pytest.approx(kept * (1 - late))
    assert Backlog((waits,), 9.0, load).share_within(samples, 1.0, 0.0, 0.95) == kept


def test_what_is_left_of_a_backlog_is_of_the_same_samples() -> None:
    starts, ends = of_slots(8, 0.8, 1000)
    whole, there = backlog([queue(starts, ends)], [starts]), np.arange(1000) % 3 > 0
    left = whole.only(there)
    np.testing.assert_array_equal(left.waits[0], whole.waits[0][there])
    np.testing.assert_array_equal(left.in_flight[0], whole.in_flight[0][there])
    np.testing.assert_array_equal(left.sent_ns[0], starts[there])
    several = backlog([queue(starts, ends)] * 2, [starts] * 2).only(np.tile(there, 2))
    assert (len(several.waits), several.queues, several.sent_ns) == (1, (), ())
    assert len(several.waits[0]) == 2 * np.count_nonzero(there)


def test_the_longest_wait_is_that_of_a_busier_system() -> None:
    # Of one slot it is exactly that of M/M/1: ρ / (1 - ρ) services.
    assert Occupancy(0.8, 0.0, 1, 3.0, 0.0).longest_wait(0.95) == pytest.approx(12.0)
    error = math.log(0.8 / 0.5) / stats.norm.ppf(0.975)
    assert Occupancy(0.5, error, 1, 3.0, 0.0).longest_wait(0.95) == pytest.approx(12.0)
    assert Occupancy(0.5, error, 1, 3.0, 0.0).longest_wait(0.9999) == pytest.approx(12.0)
    # M/M/8: Erlang's formula says 0.2865 of a service at 80 %, 0.7026 at 90 %.
    assert Occupancy(0.8, 0.0, 8, 1.0, 0.0).longest_wait(0.95) == pytest.approx(0.2865, rel=0.15)
    assert Occupancy(0.9, 0.0, 8, 1.0, 0.0).longest_wait(0.95) == pytest.approx(0.8773, rel=0.05)
    assert Occupancy(0.9, 0.1, 8, 1.0, 0.0).longest_wait(0.95) == math.inf


def test_so_many_more_requests_tell_it_from_an_overloaded_one() -> None:
    short = Occupancy(0.9, 0.2, 8, 1.0, 0.0)
    longer = short.longer(0.95)
    assert longer > 1
    assert short._replace(error=0.2 / math.sqrt(longer * 0.99)).longest_wait(0.95) == math.inf
    assert short._replace(error=0.2 / math.sqrt(longer * 1.01)).longest_wait(0.95) < math.inf
    assert Occupancy(1.0, 0.2, 8, 1.0, 0.0).longer(0.95) == math.inf


def test_a_rise_is_as_high_as_the_longest_wait() -> None:
    latencies, waits = noisy(0.1)
    mean, median, beyond = hidden(latencies, waits)
    of = Backlog((waits,), 1e30, Occupancy(0.5, 0.0, 1, 0.1, 0.0))
    assert of.rise(latencies) == pytest.approx((mean * 0.09, median * 0.09, beyond * 0.09, 0.0, 0.0, 1.0))
    # Of the mean as far as it goes, of others to 16 times what was waited.
    far = Backlog((waits,), 1e30, Occupancy(0.5, 0.0, 1, 1.0, 0.0))
    assert far.rise(latencies) == pytest.approx((mean * 0.99, median * 0.99, beyond * 0.16, 0.0, 0.0, 1.0))
    overloaded = Backlog((waits,), 1e30, Occupancy(1.0, 0.1, 1, 1.0, 0.0))
    assert overloaded.rise(latencies) == pytest.approx((math.inf, math.inf, beyond * 0.16, 0.0, 0.0, 1.0))
    assert far.scaled(10).rise(10 * latencies) == pytest.approx(
        (mean * 9.9, median * 9.9, beyond * 1.6, 0.0, 0.0, 1.0)
    )
    # Shorter than what was seen raises nothing.
    calm = Backlog((waits,), 1e30, Occupancy(0.5, 0.0, 1, 0.001, 0.0))
    assert calm.rise(latencies) == Backlog((waits,), 1e30).rise(latencies)


def test_a_busy_system_that_may_be_overloaded_has_an_open_mean() -> None:
    latencies, waits = noisy(0.1)
    busy = Occupancy(0.9, 0.2, 4, 1.0, 0.0)
    found = distribution("x", latencies, backlog=Backlog((waits,), 1e30, busy))
    plain = distribution("x", latencies, backlog=Backlog((waits,), 1e30))
    assert plain["x.mean"].upper is not None
    assert found["x.mean"].upper is None
    assert found["x.mean"].n_required == math.ceil(2000 * busy.longer(0.95))
    hopeless = distribution("x", latencies, backlog=Backlog((waits,), 1e30, busy._replace(utilisation=1.0)))
    assert hopeless["x.mean"].n_required == 16 * 2000
    # What bounds a moment or a higher percentile bounds the median.
    assert plain["x.p50"].upper < found["x.p50"].upper <= found["x.p90"].upper  # type: ignore[operator]
    assert found["x.p95"].lower == plain["x.p95"].lower


def test_waits_of_a_queue_that_never_empties_may_be_of_chance() -> None:
    latencies, waits = noisy(0.1)
    _, fallen, _ = hidden(latencies, waits)
    full = Occupancy(0.5, 0.0, 1, 0.0, 0.3)
    assert Backlog((waits,), 0.0, full).rise(latencies).fall == pytest.approx(fallen * 0.3)
    # One visit in four standard errors of the drift: a = 1/4, and the waits are 1/(1 + a)² of it.
    some = Backlog((waits,), 16 * stats.norm.ppf(0.975) ** 2, full)
    assert some.rise(latencies).fall == pytest.approx(fallen * 0.3 * (1 - 0.64))
    assert some.scaled(10).rise(10 * latencies).fall == pytest.approx(fallen * 3 * (1 - 0.64))
    assert Backlog((waits,), 0.0).rise(latencies).fall == 0.0
    independent = stats.norm.ppf(0.975) * latencies.std() / math.sqrt(2000)
    lower = mean_interval(latencies, fall=0.3).lower
    assert lower == pytest.approx(latencies.mean() - math.hypot(independent, 0.3))
    assert mean_interval(latencies, fall=9.0).lower == latencies.min()


def test_what_waited_is_slot_time_beyond_the_slots() -> None:
    # One slot: ten of 2 ms, sent at once every 30 ms, wait 0, 2 … 18 ms.
    starts = np.repeat(np.arange(0, 300, 30), 10) * MS
    ends = starts + np.tile(np.arange(2, 22, 2), 10) * MS
    found = SlotQueue(starts, ends, 1).work
    assert found is not None
    assert found.done_ns == pytest.approx(100 * 2 * MS)
    assert found.waited_ns == pytest.approx(100 * 9 * MS)
