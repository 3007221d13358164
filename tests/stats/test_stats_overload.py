"""What leaves a queue, and how fast a batching server is with all slots at work."""

from __future__ import annotations

import math

import numpy as np
import pytest
from queue_models import stamps_of_slots

from pytest_llmbench.metrics.overload import Passage, backing
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.stats.backlog import SlotQueue
from pytest_llmbench.stats.batching import FullLoad, SlotWait, full_load, load_at_full_slots
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

S = 1_000_000_000


def passage(waits_s: np.ndarray, sent_s: np.ndarray, failed: np.ndarray | None = None) -> Passage:
    sent = np.round(sent_s * S).astype(np.int64)
    bad = np.zeros(len(sent), dtype=np.bool_) if failed is None else failed
    return Passage(sent, sent + np.round(waits_s * S).astype(np.int64), ~bad, bad)


def single(offered: float, served: float, n: int, stands: tuple[float, float] = (0.0, 0.0)) -> Passage:
    """A server of constant services that stands still for a while."""
    sent, ends, end = np.arange(n) / offered, np.empty(n), 0.0
    for place, at in enumerate(sent):
        begun = max(end, at)
        begun = stands[1] if stands[0] <= begun < stands[1] else begun
        end = ends[place] = begun + 1 / served
    return passage(ends - sent, sent)


def test_more_than_is_served_backs_up() -> None:
    found = backing([single(60, 48, 1000)], 60)
    assert found is not None
    assert found.served_rps == pytest.approx(48, rel=0.01)
    # Who is sent a second later waits for 60/48 - 1 seconds more.
    assert found.slope == pytest.approx(0.25, rel=0.01)
    assert backing([single(47, 48, 1000)], 47) is None
    assert backing([], 47) is None


def test_a_system_that_takes_all_at_once_is_only_slow() -> None:
    """A thousand within ten seconds, each in a minute: as many are under way as of an overloaded one."""
    sent = np.arange(1000) / 100
    assert backing([passage(np.full(1000, 60.0), sent)], 100) is None
    assert backing([passage(np.random.default_rng(1).exponential(60, 1000), sent)], 100) is None


def test_a_pause_is_no_overload() -> None:
    assert backing([single(30, 48, 1000, stands=(15.0, 25.0))], 30) is None


def test_failures_by_themselves_are_no_queue() -> None:
    """Nearly a third hang until the deadline, anywhere in the run; all others take a tenth of a second."""
    sent = np.arange(1000) / 20
    hang = np.random.default_rng(3).random(1000) < 0.3
    assert backing([passage(np.where(hang, 60.0, 0.1), sent, hang)], 20) is None
    dead = sent > 25  # nobody is served from here on
    assert backing([passage(np.where(dead, 60.0, 0.1), sent, dead)], 20) is None


def test_runs_are_taken_together() -> None:
    found = backing([single(60, 48, 300), single(60, 50, 300)], 60)
    assert found is not None
    assert 48 < found.served_rps < 50


def test_the_load_with_all_slots_at_work_tells_what_slices_do_not() -> None:
    """200 exponential services of a slot that carries 9 in 10 requests: that many slices differ by chance."""
    random = np.random.default_rng(5)
    sent, end, ends = np.arange(200) / 1.1, 0.0, np.empty(200)
    for place, service in enumerate(random.exponential(size=200)):
        end = ends[place] = max(end, sent[place]) + service
    run = passage(ends - sent, sent)
    known = FullLoad(load=1.1, slots=1, requests=200, relaxation_times=0.0, error=0.02)
    assert known.least == pytest.approx(1.1 * math.exp(-2.3263 * 0.02), rel=1e-4)
    assert backing([run], 1.1) is None
    found = backing([run], 1.1, [known])
    assert found is not None
    assert found.served_rps <= 1.0
    assert backing([run], 1.1, [known._replace(error=0.1)]) is None  # it may be 1
    assert backing([run], 1.1, [known._replace(load=0.95)]) is None
    still = passage(np.full(200, 60.0), sent)
    assert backing([still], 1.1, [known]) is None


def share_called(slots: int, load: float, replications: int) -> float:
    """Of runs of 7,000 requests from an empty system on, told by their ends."""
    called = 0
    for seed in range(replications):
        sent, ended = stamps_of_slots(slots, load, 1000, 1, np.random.default_rng([seed, slots]))
        sent_ns, ended_ns = (np.round(each[0] * S).astype(np.int64) for each in (sent, ended))
        well = np.ones(len(sent_ns), dtype=np.bool_)
        at_work = SlotQueue.of(sent_ns, ended_ns, well).slots
        called += backing([Passage(sent_ns, ended_ns, well, ~well, at_work)], load * slots) is not None
    return called / replications


@pytest.mark.slow
@pytest.mark.parametrize("slots", [1, 8])
def test_a_busy_queue_is_not_called_overloaded(slots: int) -> None:
    assert share_called(slots, 0.9, 60) == 0.0
    assert share_called(slots, 1.1, 20) == 1.0


def slowing(n: int, rate: float, slots: int) -> tuple[np.ndarray, ...]:
    """Requests of 50 tokens, of which each takes 2 ms and 0.1 ms for each of those under way, in rounds."""
    sent = np.cumsum(np.random.default_rng(1).exponential(1 / rate, n))
    first, ended, left = np.empty(n), np.empty(n), np.full(n, 50)
    now, coming, at_work = 0.0, 0, list[int]()
    while coming < n or at_work:
        while coming < n and sent[coming] <= now and len(at_work) < slots:
            at_work.append(coming)
            coming += 1
        if not at_work:
            now = sent[coming]
            continue
        now += 0.002 + 0.0001 * len(at_work)
        for place in at_work:
            first[place] = now if left[place] == 50 else first[place]
            left[place] -= 1
            ended[place] = now
        at_work = [place for place in at_work if left[place]]
    stamps = (np.round(each * S).astype(np.int64) for each in (sent, first, ended))
    return (*stamps, np.full(n, 50))


@pytest.mark.parametrize("load", [0.5, 0.7, 0.9, 1.3])
def test_the_load_is_that_with_all_slots_at_work(load: float) -> None:
    slots = 16
    rate = load * slots / (50 * (0.002 + 0.0001 * slots))
    sent, first, ended, tokens = slowing(1000, rate, slots)
    found = full_load(sent, first, ended, tokens, rate, slots)
    assert found is not None
    assert found.load == pytest.approx(load, rel=0.05)
    assert (found.relaxation_times >= 10) == (load < 0.85)
    seen = full_load(sent, first, ended, tokens, rate, None)
    assert seen is not None
    assert seen.slots <= slots


@pytest.mark.parametrize(("carried", "slots"), [(0.5, 256), (0.95, 256), (1.2, 256), (1.5, 64)])
def test_prompts_that_take_from_replies_do_not_hide_the_load_of_a_short_run(
    carried: float, slots: int
) -> None:
    """While a load begins many prompts take from few replies, at its end none from many: the time per token
    alone seems not to rise with the number under way."""
    capacity = {256: 45.1, 64: 29.0}[slots]
    rate = carried * capacity
    plan = LoadPlan("load", SYNTHETIC_UNIFORM, OpenLoop(rate), 300, seed=3)
    records = ReplayEngine(parse_scenario(f"h100-8b?max_num_seqs={slots}")).run(plan).records
    found = load_at_full_slots(records, slots, rate)
    assert found is not None
    assert found.load == pytest.approx(carried, rel=0.07)
    assert (found.least > 1) == (carried > 1)


def test_requests_that_take_long_for_other_reasons_are_not_slowed_by_prompts() -> None:
    """They meet more first outputs per token, since they are there for longer."""
    random = np.random.default_rng(2)
    sent = np.cumsum(random.exponential(1 / 40, 1000))
    tokens = random.integers(20, 180, 1000)
    first = sent + 0.05
    ended = first + (tokens - 1) * 0.02 * np.exp(0.5 * random.normal(size=1000))
    stamps = (np.round(each * S).astype(np.int64) for each in (sent, first, ended))
    assert full_load(*stamps, tokens, 40.0, 256) is None


def test_requests_that_do_not_slow_each_other_down_tell_nothing() -> None:
    sent, ended = stamps_of_slots(8, 0.9, 1000, 1, np.random.default_rng(1))
    sent_ns, ended_ns = (np.round(each[0, -1000:] * S).astype(np.int64) for each in (sent, ended))
    tokens = np.full(1000, 41)
    for first_ns in (ended_ns - 40_000_000, ended_ns - np.arange(40_000_000, 40_001_000)):
        assert full_load(sent_ns, first_ns, ended_ns, tokens, 7.2, 8) is None


def test_the_wait_for_a_slot_is_erlangs_where_requests_do_not_slow_each_other_down() -> None:
    """M/M/8 at 80 %, a service of one second: C(8, 6.4), and waits with mean 1 / 8 (1 - 0.8)."""
    offered, slots = 6.4, 8
    states = [offered**k / math.factorial(k) for k in range(slots)]
    beyond = offered**slots / math.factorial(slots) / 0.2
    found = SlotWait.of(np.full(slots, offered), offered, seen=0.1)
    assert found.share == pytest.approx(beyond / (sum(states) + beyond))
    assert found.mean_ms == pytest.approx(1000 / 1.6)
    assert found.unseen == pytest.approx(found.share - 0.1)
    assert found.percentile_ms(95.0) == pytest.approx(625 * math.log(found.share / 0.05))
    assert found.percentile_ms(50.0) == 0.0
    assert found.longer_than(found.percentile_ms(95.0)) * found.share == pytest.approx(0.05)


def test_nothing_bounds_the_wait_of_a_queue_that_grows() -> None:
    found = SlotWait.of(np.full(4, 4.1), 4.0, seen=0.25)
    assert found == (1.0, math.inf, 0.75)
    assert found.percentile_ms(50.0) == math.inf
    assert found.longer_than(1e9) == 1.0


def test_the_number_under_way_follows_from_the_speed_at_each_number() -> None:
    """A server of six slots that all share, S(k) = 0.6 + 0.1 k: how often a request finds all taken."""
    random, slots, rate, under_way, found_all, n = np.random.default_rng(11), 6, 3.5, 0, 0, 200_000
    times_s = 0.6 + 0.1 * np.arange(1, slots + 1)
    arrivals = 0
    for draw in random.random(n):
        at_work = min(under_way, slots)
        ending = at_work / times_s[at_work - 1] if at_work else 0.0
        if draw < rate / (rate + ending):
            arrivals += 1
            found_all += under_way >= slots
            under_way += 1
        else:
            under_way -= 1
    assert SlotWait.of(rate * times_s, rate, 0.0).share == pytest.approx(found_all / arrivals, rel=0.05)
