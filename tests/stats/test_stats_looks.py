"""Looks: unbiased by requests in flight, the same again from records, never wrong more often than told."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from queue_models import stamps_of_slots

from pytest_llmbench.metrics.summary import distribution
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.plan import Looks, OpenLoop, Quantity, Watched, judged_name
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.stats.backlog import Backlog, SlotQueue, backlog
from pytest_llmbench.stats.batching import idle_share
from pytest_llmbench.stats.latencies import SPANS, Ends, latency_ms
from pytest_llmbench.stats.look_samples import values
from pytest_llmbench.stats.looks import LookTaker, Verdict, estimate, is_decided
from pytest_llmbench.stats.runs import FloatArray

MS = 1_000_000


def row(
    index: int, ttft_ms: float = 100.0, *, ok: bool = True, tokens: int = 11, **more: object
) -> RequestRecord:
    start = 1_000_000_000 + index * MS
    first = start + round(ttft_ms * MS)
    plain = RequestRecord(index, f"r{index}", Phase.MEASURE, scheduled_ns=start - MS, submitted_ns=start)
    if not ok:
        return dataclasses.replace(plain, outcome=Outcome.HTTP_ERROR, finished_ns=first)
    good = dataclasses.replace(
        plain,
        outcome=Outcome.OK,
        first_event_ns=first,
        first_nonempty_ns=first,
        first_content_ns=first,
        last_content_ns=first + 100 * MS,
        finished_ns=first + 100 * MS,
        input_tokens=200,
        output_tokens=tokens,
    )
    return dataclasses.replace(good, **more)  # type: ignore[arg-type]


def p95(limit: float, **more: object) -> Watched:
    return Watched(Objective("ttft.p95", "<=", limit, "ms"), "ttft", 95.0, **more)  # type: ignore[arg-type]


def taker(*watched: Watched, most: int = 2000, budget: float = 0.01, first: int = 0) -> LookTaker:
    return LookTaker(Looks(watched, budget), first=first, most=most)


def heard(looks: LookTaker, rows: list[RequestRecord]) -> Verdict | None:
    for each in rows:
        if (verdict := looks.add(each)) is not None:
            return verdict
    return None


def some(n: int, seed: int = 1) -> list[RequestRecord]:
    return [row(i, ms) for i, ms in enumerate(np.random.default_rng(seed).exponential(100.0, n))]


def test_a_clear_pass_and_a_clear_failure_end_the_load_early() -> None:
    rows = some(2000)
    for limit in (2_000.0, 20.0):
        verdict = heard(taker(p95(limit)), rows)
        assert verdict is not None
        assert verdict.decided
        assert verdict.n < 1500
        assert verdict.n % 100 == 0
        (found,) = verdict.estimates
        assert is_decided(p95(limit), found)
        assert found.level > 0.95


def test_a_limit_at_the_true_value_goes_on_to_the_end() -> None:
    looks = taker(p95(299.6))
    assert heard(looks, some(2000)) is None
    verdict = looks.close()
    assert verdict.n == 2000
    assert not verdict.decided


def test_all_objectives_have_to_be_decided() -> None:
    looks = taker(p95(2_000.0), p95(299.6))
    assert heard(looks, some(2000)) is None


def test_a_slow_request_still_under_way_holds_back_the_look() -> None:
    """What has ended by some instant leaves out the slow ones: such a sample is too fast."""
    rows = some(2000)
    straggler = rows[3]
    looks = taker(p95(2_000.0))
    assert heard(looks, [each for each in rows if each is not straggler]) is None
    verdict = looks.add(straggler)
    assert verdict is not None
    assert verdict == heard(taker(p95(2_000.0)), rows)


def test_the_order_of_ends_changes_nothing() -> None:
    rows = some(2000)
    shuffled = sorted(rows, key=lambda each: each.index // 80 * 80 + (each.index * 37) % 80)
    assert heard(taker(p95(2_000.0)), shuffled) == heard(taker(p95(2_000.0)), rows)


def test_the_records_give_the_same_verdict_again_and_later_requests_do_not_count() -> None:
    rows = some(2000)
    live = heard(taker(p95(2_000.0)), rows)
    assert live is not None
    again = taker(p95(2_000.0))
    slow = [row(live.n + i, 60_000.0) for i in range(50)]  # in flight when it was decided
    again.add_all(Records.from_rows([*rows[: live.n], *slow]))
    assert again.close() == live


def test_requests_are_numbered_from_the_first_of_the_plan() -> None:
    rows = [dataclasses.replace(each, index=each.index + 700) for each in some(2000)]
    assert heard(taker(p95(2_000.0), first=700), rows) == heard(taker(p95(2_000.0)), some(2000))


def test_beyond_the_error_budget_nothing_is_decided() -> None:
    rows = some(2000)
    for i in range(0, 600, 30):  # 3.3 % of the first 600, 1 % of all
        rows[i] = row(i, ok=False)
    verdict = heard(taker(p95(2_000.0)), rows)
    assert verdict is None or verdict.n >= 2000


def test_a_spent_error_budget_ends_the_load() -> None:
    rows = [row(i, ok=i % 10 != 0) for i in range(2000)]
    looks = taker(p95(2_000.0))
    verdict = heard(looks, rows)
    assert verdict is not None
    assert verdict.budget_spent
    assert not verdict.decided
    assert "error budget" in looks.reason(verdict)


def test_looks_allow_for_an_idle_beginning_as_reports_do() -> None:
    def p50(limit: float) -> Watched:
        return Watched(Objective("ttft.p50", "<=", limit, "ms"), "ttft", 50.0)

    rows = some(400)
    assert heard(taker(p50(115.0), most=400), rows) is not None
    lasting = LookTaker(Looks((p50(115.0),), 0.01), first=0, most=400, load=OpenLoop(1000.0))
    assert heard(lasting, rows) is None
    undecided = taker(p50(66.0), most=400)
    assert heard(undecided, rows) is None
    (before,), (after,) = undecided.close().estimates, lasting.close().estimates
    idle = idle_share(Records.from_rows(rows))
    assert idle > 0.4
    assert before.upper is not None
    assert after.upper == pytest.approx(before.upper * (1 + 1.25 * idle / 2))


def test_nothing_was_heard() -> None:
    verdict = taker(p95(100.0)).close()
    assert (verdict.n, verdict.decided) == (0, False)
    assert verdict.estimates[0].point is None


def judged(watched: Watched, sample: FloatArray, tail: float = 0.025) -> Estimate:
    return estimate(watched, sample, tail).estimate


def test_failures_over_the_limit_leave_the_percentile_open_or_beyond_it() -> None:
    sample = np.random.default_rng(2).uniform(0, 100, 2000)
    sample[::100] = np.inf  # 1 %
    p99 = Watched(Objective("ttft.p99", "<=", 500, "ms"), "ttft", 99.0, failures_over_limit=True)
    found = judged(p99, sample)
    assert found.upper is None
    assert not is_decided(p99, found)
    sample[::20] = np.inf  # 5 %: whatever they are, P99 is among them
    found = judged(p99, sample)
    assert found.point is None
    assert found.lower is not None
    assert found.lower > 500
    assert is_decided(p99, found)
    assert "100 failed requests over the limit" in found.method


def test_failures_few_enough_do_not_hinder_a_pass() -> None:
    sample = np.random.default_rng(2).uniform(0, 100, 2000)
    sample[::200] = np.inf
    found = judged(p95(500, failures_over_limit=True), sample)
    assert found.upper is not None
    assert found.upper <= 100


def test_a_mean_with_failures_over_the_limit_is_undefined() -> None:
    mean = Watched(Objective("ttft.mean", "<=", 500, "ms"), "ttft", failures_over_limit=True)
    assert judged(mean, np.array([1.0, np.inf, 2.0])).point is None


def test_a_mean_has_the_interval_of_its_values() -> None:
    mean = Watched(Objective("ttft.mean", "<=", 500, "ms"), "ttft")
    found = judged(mean, np.random.default_rng(4).normal(100, 10, 2000))
    assert found.lower is not None
    assert found.upper is not None
    assert found.lower < 100 < found.upper
    assert found.upper - found.lower == pytest.approx(2 * 1.96 * 10 / np.sqrt(2000), rel=0.6)


@pytest.mark.parametrize("quantity", [*SPANS, "tpot"])
def test_latencies_are_the_same_of_rows_and_of_columns(quantity: Quantity) -> None:
    rows = [
        row(0, 50),
        row(1, 70, tokens=1),
        row(2, ok=False),
        row(3, 90, first_reasoning_ns=1_000_000_000 + 5 * MS, reasoning_tokens=4),
        row(4, 90, reasoning_tokens=4),
        row(5, 20, output_tokens=None),
        row(6, 30, first_content_ns=None),
        row(7, 25, first_event_ns=1_000_000_000 + 8 * MS, first_nonempty_ns=1_000_000_000 + 9 * MS),
        row(8, 25, finished_ns=1_000_000_000 + 300 * MS),
    ]
    watched = Watched(Objective("x", "<=", 1, "ms"), quantity, 50.0)
    found = values(watched, Ends.of_rows(rows))
    assert not np.isnan(found).all()
    assert np.isnan(found[2])
    records = Records.from_rows(rows)
    for each in (found, values(watched, Ends.of_records(records))):
        np.testing.assert_array_equal(each, latency_ms(quantity, records))  # of Records, not through Ends


def test_a_bucket_holds_only_its_lengths() -> None:
    rows = [
        row(i, 10.0 * (i + 1), input_tokens=tokens) for i, tokens in enumerate((0, 255, 256, 511, 512, None))
    ]
    found = values(p95(1, least_tokens=256, below_tokens=512), Ends.of_rows(rows))
    np.testing.assert_array_equal(np.flatnonzero(~np.isnan(found)), [2, 3])


def test_what_makes_a_request_good() -> None:
    limits: tuple[tuple[Quantity, float], ...] = (("ttft", 100.0), ("tpot", 10.0))
    rows = [
        row(0, 100.0),  # 100 ms and 10 ms: just
        row(1, 100.1),
        row(2, 50.0, tokens=10),  # 11.1 ms a token
        row(3, 50.0, tokens=1),  # no TPOT to keep
        row(4, ok=False),
        row(5, 50.0, output_tokens=None),  # not known
        row(6, 50.0, first_content_ns=None),
    ]
    good = Watched(Objective("goodput_share", ">=", 0.9, "ratio"), "good", limits_ms=limits)
    score = values(good, Ends.of_rows(rows))
    np.testing.assert_array_equal(score <= 1, [True, False, False, True, False, False, False])
    found = judged(good, score)
    assert found.point == pytest.approx(2 / 7)


def test_completion_counts_every_request() -> None:
    done = Watched(Objective("completion_rate", ">=", 0.9, "ratio"), "ok")
    rows = [row(i, ok=i % 4 != 0) for i in range(400)]
    found = judged(done, values(done, Ends.of_rows(rows)))
    assert found.point == 0.75
    assert found.n == 400
    assert is_decided(done, found)


def test_a_look_knows_what_requests_waited() -> None:
    """Of two loads with the same latencies, the one whose slow requests waited for a slot may be a quiet
    stretch of a busy system."""
    slow = np.arange(2000) % 40 >= 36
    latencies = np.where(slow, 103.0, 100.0) + np.tile([-10.0, 10.0], 1000)
    mean = Watched(Objective("ttft.mean", "<=", 200.0, "ms"), "ttft")
    alone = estimate(mean, latencies, 0.025).estimate
    waits = Backlog((np.where(slow, 3.0, 0.0),), 10.0)
    together = estimate(mean, latencies, 0.025, backlog=waits).estimate
    assert alone.upper is not None
    assert together.upper is not None
    assert together.upper > alone.upper
    assert together.lower == alone.lower
    constant = estimate(mean, latencies, 0.025, backlog=Backlog((np.full(2000, 8.0),), 10.0)).estimate
    assert constant == alone
    # Output tokens come at their own pace, however long the first one was waited for.
    tpot = Watched(Objective("tpot.mean", "<=", 200.0, "ms"), "tpot")
    assert estimate(tpot, latencies, 0.025, backlog=waits).estimate.upper == alone.upper
    # Values that are not there have no wait either.
    holed = np.where(np.arange(2000) % 7 == 0, np.nan, latencies)
    found = estimate(mean, holed, 0.025, backlog=waits).estimate.upper
    there = ~np.isnan(holed)
    left = estimate(mean, holed[there], 0.025, backlog=Backlog((waits.waits[0][there],), 10.0)).estimate
    assert found == left.upper


def test_looks_work_out_the_waits_from_the_stamps() -> None:
    rows = []
    sent, ended = stamps_of_slots(32, 0.9, 2000, 1, np.random.default_rng(4))
    for index, (one, other) in enumerate(zip(sent[0, -2000:], ended[0, -2000:], strict=True)):
        at, done = round(one * 1000 * MS), round(other * 1000 * MS)
        stamps = {"submitted_ns": at, "first_content_ns": done, "finished_ns": done}
        rows.append(dataclasses.replace(row(index, 1.0), **stamps))  # type: ignore[arg-type]
    looks = taker(Watched(Objective("ttft.mean", "<=", 1100.0, "ms"), "ttft"), most=2000)
    heard(looks, rows)
    ends = Ends.of_rows(rows)
    verdict = looks.close()
    tail = (1 - verdict.estimates[0].level) / 2
    own = values(looks._looks.watched[0], ends)[: verdict.n]
    sent_ns, ended_ns = ends.submitted_ns[: verdict.n], ends.finished_ns[: verdict.n]
    waits = backlog([SlotQueue.of(sent_ns, ended_ns, ends.ok[: verdict.n])], [sent_ns])
    same = estimate(looks._looks.watched[0], own, tail, backlog=waits).estimate
    assert verdict.estimates[0].upper == pytest.approx(same.upper)
    assert verdict.estimates[0].upper > estimate(looks._looks.watched[0], own, tail).estimate.upper  # type: ignore[operator]


def test_a_look_leaves_out_what_has_no_value() -> None:
    """Of a queue whose load is known, too."""
    sent, ended = stamps_of_slots(8, 0.7, 1000, 1, np.random.default_rng(4))
    sent_ns, ended_ns = ((each[0, -1000:] * 1e9).astype(np.int64) for each in (sent, ended))
    waits = backlog([SlotQueue.of(sent_ns, ended_ns, np.ones(1000, dtype=bool))], [sent_ns])
    assert waits.load is not None
    latencies, there = (ended_ns - sent_ns) / MS, np.arange(1000) % 7 > 0
    p99 = Watched(Objective("ttft.p99", "<=", 9000.0, "ms"), "ttft", 99.0)
    found = estimate(p99, np.where(there, latencies, np.nan), 0.025, backlog=waits).estimate
    same = waits._replace(
        waits=(waits.waits[0][there],), in_flight=(waits.in_flight[0][there],), sent_ns=(sent_ns[there],)
    )
    assert found == estimate(p99, latencies[there], 0.025, backlog=same).estimate
    assert found.method.endswith("above by the load of its queue")
    assert found.upper == distribution("x", latencies[there], backlog=same)["x.p99"].upper


def test_names_of_what_is_judged() -> None:
    assert judged_name("ttft.p95") == "ttft[as judged].p95"
    assert judged_name("ttft[0-256].p95") == "ttft[0-256, as judged].p95"
    assert judged_name("e2e[full@50.5%].p99") == "e2e[full@50.5%, as judged].p99"
    assert judged_name("goodput_share") == "goodput_share[as judged]"
