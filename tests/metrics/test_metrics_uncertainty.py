"""Brackets by the stamps of the records: known answers, and streams whose chunks were run together."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from metric_rows import EPOCH_NS, row

from pytest_llmbench.metrics.uncertainty import (
    Leeways,
    is_exact,
    leeways,
    rate_leeway,
)
from pytest_llmbench.model.observation import ClockAnchor, Observation, SelfCheck
from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan, OpenLoop
from pytest_llmbench.model.record import Outcome, RequestRecord
from pytest_llmbench.model.records import Records, empty_slot_share, replacement_lags_ns
from pytest_llmbench.workloads.catalogue import workload

MS = 1_000_000
KERNEL = SelfCheck(stamp_source="kernel (SO_TIMESTAMPNS)")


def seen(*rows: RequestRecord, load: Load | None = None, check: SelfCheck = KERNEL) -> Observation:
    plan = LoadPlan("measure", workload("synthetic-uniform"), load or OpenLoop(20.0), len(rows), seed=1)
    records = Records.from_rows(rows)
    anchor = ClockAnchor(EPOCH_NS, 0)
    return Observation(plan, records, EPOCH_NS, EPOCH_NS + 1000 * MS, anchor, selfcheck=check)


def together(index: int, early: float = 5.0, **more: object) -> RequestRecord:
    """Chunks at 100, 110 and 120 ms, the first of which came up to ``early`` ms before its stamp."""
    changes = {"unresolved_chunks": 1, "first_content_early_ns": round(early * MS), **more}
    return row(index, chunks=(110.0, 110.0, 120.0), coalesced_chunks=1, **changes)  # type: ignore[arg-type]


def of(family: str, runs: list[Observation]) -> Leeways:
    found = leeways(family, runs)
    assert found is not None
    return found


def test_records_that_were_read_in_time_are_exact() -> None:
    run = seen(row(0), row(1, chunks=(100.0, 100.0), coalesced_chunks=1))
    assert is_exact(run)
    assert [of("ttft", [run]), of("tpot", [run]), of("e2e", [run]), of("itl", [run])] == [{}] * 4


def test_a_first_token_read_late_may_have_come_earlier() -> None:
    run = seen(*(together(index) if index < 50 else row(index) for index in range(100)))
    assert not is_exact(run)
    found = of("ttft", [run])
    assert (found["p99"].seen, found["p99"].too_high_by) == (110.0, pytest.approx(5.0))
    assert found["p50"].seen == 105.0  # halfway between 100 and 110
    assert found["p50"].too_high_by == pytest.approx(2.5)
    assert found["mean"].too_high_by == pytest.approx(2.5)
    assert found["std"].too_low_by == found["std"].too_high_by == pytest.approx(np.sqrt(12.5))
    assert {each.too_low_by for name, each in found.items() if name != "std"} == {0.0}
    assert of("e2e", [run]) == {}


def test_few_late_reads_move_no_median() -> None:
    run = seen(*(together(index) if index < 3 else row(index) for index in range(1000)))
    found = of("ttft", [run])
    assert found["p50"].most == found["p95"].most == 0.0
    assert found["max"].too_high_by == pytest.approx(5.0)


def test_the_time_per_token_may_have_been_longer() -> None:
    found = of("tpot", [seen(together(0, early=6.0))])
    assert found["p50"].seen == 5.0
    assert (found["p50"].too_high_by, found["p50"].too_low_by) == (0.0, pytest.approx(3.0))


def test_requests_that_failed_are_in_no_bracket() -> None:
    run = seen(row(0), together(1, outcome=Outcome.TIMEOUT))
    assert of("ttft", [run]) == {}
    assert of("itl", [run]).get("p99", None) is None or of("itl", [run])["p99"].most == 0.0


def test_gaps_of_one_instant_share_the_time_since_the_chunk_before() -> None:
    """Gaps as seen: 20, 0, 10. The first two add up to 20: from 10 and 10 to 20 and 0."""
    late = row(0, chunks=(100.0, 120.0, 120.0, 130.0), unresolved_chunks=1)
    found = of("itl", [seen(late)])
    assert found["max"].seen == pytest.approx(20.0, rel=1e-3)
    assert found["max"].too_high_by == pytest.approx(10.0, rel=2e-3)
    assert found["max"].too_low_by == 0.0
    assert found["min"].too_low_by == pytest.approx(10.0, rel=2e-3)
    assert found["p50"].seen == pytest.approx(10.0, rel=1e-3)
    assert found["p50"].most == pytest.approx(0.0, abs=0.02)
    assert found["mean"].most == 0.0


def test_a_gap_at_the_beginning_is_as_long_as_the_first_chunk_may_be_early() -> None:
    found = of("itl", [seen(together(0, early=7.0))])
    assert found["min"].too_low_by == pytest.approx(7.0, rel=1e-3)
    assert found["mean"].too_low_by == pytest.approx(3.5)


def test_whatever_is_run_together_the_bracket_holds_what_was_true() -> None:
    """Streams of a known pace, of which every read takes all that came within a random time."""
    rng = np.random.default_rng(7)
    true_ttft, true_gaps, rows = [], [], []
    for index in range(300):
        came = np.cumsum(np.concatenate(([20.0 + rng.exponential(5.0)], rng.gamma(4.0, 1.5, 40))))
        reads = np.cumsum(rng.exponential(9.0, 60)) + 10.0
        reads = np.append(reads[reads < came[-1]], came[-1] + 1.0)
        read = np.searchsorted(reads, came)
        stamps = np.array([came[read == each].max() for each in read])
        before = reads[read[0] - 1] if read[0] else 0.0
        shared = int((stamps != came).sum())
        early = max(0.0, stamps[0] - before) if stamps[0] != came[0] else 0.0
        more = {"unresolved_chunks": shared, "first_content_early_ns": round(early * MS)}
        rows.append(row(index, chunks=stamps.tolist(), **more))  # type: ignore[arg-type]
        true_ttft.append(came[0])
        true_gaps.append(np.diff(came))
    run = seen(*rows)
    for truth, found in (
        (np.array(true_ttft), of("ttft", [run])),
        (np.concatenate(true_gaps), of("itl", [run])),
    ):
        for name, q in (("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99)):
            lower = found[name].seen - found[name].too_high_by
            upper = found[name].seen + found[name].too_low_by
            assert lower * 0.999 <= np.percentile(truth, q) <= upper * 1.001


def test_where_reads_are_the_stamps_the_lag_of_the_loop_is_in_every_instant() -> None:
    run = seen(row(0), row(1), check=SelfCheck(loop_lag_p99_ns=4 * MS))
    assert not is_exact(run)
    assert of("ttft", [run])["p99"].too_high_by == pytest.approx(3.0)  # a millisecond is the timer's
    assert of("e2e", [run])["p50"].too_high_by == pytest.approx(3.0)
    assert (of("itl", [run])["p50"].too_high_by, of("itl", [run])["p50"].too_low_by) == pytest.approx((3, 3))
    by_kernel = replace(run, selfcheck=replace(run.selfcheck, stamp_source="kernel (SO_TIMESTAMPNS)"))
    assert is_exact(by_kernel)
    assert is_exact(replace(run, selfcheck=SelfCheck(loop_lag_p99_ns=MS)))


def test_slots_that_are_filled_late_did_less() -> None:
    """Two requests of 120 ms, one of them 30 ms late: empty for 30 of 240 + 30."""
    rows = [row(0), row(1, scheduled=0.0, dispatched=30.0, submitted=30.0, finished=150.0)]
    load = ClosedLoop(2)
    run = seen(*rows, load=load)
    assert replacement_lags_ns(load, run.records).tolist() == [0, 30 * MS]
    assert empty_slot_share(load, run.records) == pytest.approx(30 / 270)
    found = rate_leeway([run], 100.0)
    assert (found.too_high_by, found.too_low_by) == (0.0, pytest.approx(100 * 30 / 240))
    assert not is_exact(run)
    assert empty_slot_share(OpenLoop(1.0), run.records) == 0.0
    assert rate_leeway([seen(*rows)], 100.0).most == 0.0
