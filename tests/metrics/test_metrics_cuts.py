"""Requests that their users were to cut are in no figure but their own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from metric_rows import EPOCH_NS, row

from pytest_llmbench.metrics.balance import completion_balance
from pytest_llmbench.metrics.kv_cache import out_of_memory_errors, preemption_recovery_rate
from pytest_llmbench.metrics.latency import FAMILIES
from pytest_llmbench.metrics.session_figures import job_metrics, jobs_of, session_goodput
from pytest_llmbench.metrics.throughput import (
    Window,
    completion_rate,
    goodput_share,
    input_token_throughput,
    planned_cuts,
    request_throughput,
)
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.plan import Looks, Watched
from pytest_llmbench.model.record import Outcome, RequestRecord
from pytest_llmbench.model.records import Records
from pytest_llmbench.stats.failing import FailureWatch
from pytest_llmbench.stats.looks import LookTaker

MS = 1_000_000


def cut(index: int, end: str | None = None, **changes: Any) -> RequestRecord:
    """To be cut after 50 ms; ``end``: how its reply ended before that."""
    usual: dict[str, Any] = {"submitted": 10.0 * index, "chunks": (10.0 * index + 40.0,)}
    of_cut = {"outcome": Outcome.CUT_BY_USER, "cut_after_ns": 50 * MS, "end_before_cut": end}
    return row(index, **usual | of_cut | changes)


def of_a_run(*, failed: int = 0) -> list[RequestRecord]:
    """40 requests whose users wait, of which ``failed`` fail, and 20 that are cut: 3 of these complete, 2
    failed, 5 before their first token."""
    rows = [row(i, submitted=10.0 * i, chunks=(10.0 * i + 100, 10.0 * i + 200)) for i in range(40 - failed)]
    rows += [
        row(40 - failed + i, submitted=10.0 * i, outcome=Outcome.TIMEOUT, chunks=()) for i in range(failed)
    ]
    ends: list[str | None] = ["ok"] * 3 + ["http_error"] * 2 + [None] * 15
    return rows + [
        cut(40 + i, end, **({"first_content": None, "chunks": ()} if i >= 15 else {}))
        for i, end in enumerate(ends)
    ]


def test_masks() -> None:
    records = Records.from_rows(of_a_run(failed=4))
    assert (records.judged.sum(), records.ok.sum(), records.failed.sum()) == (40, 36, 4)
    assert records.ok_share == 0.9
    assert Records.from_rows([cut(0)]).ok_share is None
    assert records.counts()["cut_by_user"] == 20


def test_no_latency_has_them() -> None:
    records, without = Records.from_rows(of_a_run()), Records.from_rows(of_a_run()[:40])
    for measure in FAMILIES.values():
        assert measure(records).tolist() == measure(without).tolist()


def test_completion_and_goodput_are_of_those_who_wait() -> None:
    records = Records.from_rows(of_a_run(failed=4))
    found = completion_rate([records])
    assert (found.point, found.n) == (0.9, 40)
    good = goodput_share([records], [("ttft", 150.0)])
    assert (good.point, good.n) == (0.9, 40)
    assert completion_rate([Records.from_rows([cut(0)])]).point is None
    assert goodput_share([Records.from_rows([cut(0)])], [("ttft", 150.0)]).point is None


def test_input_is_that_of_those_who_wait() -> None:
    """A cut reply has no count of the server, so with it there would be no figure at all."""
    uncounted = cut(40, input_tokens=None)
    run = Records.from_rows([*of_a_run()[:40], uncounted, *of_a_run()[41:]])
    alone = Records.from_rows(of_a_run()[:40])
    windows = [[Window(records, EPOCH_NS, EPOCH_NS + 2_000 * MS)] for records in (run, alone)]
    found, expected = (input_token_throughput(each, seed=1) for each in windows)
    assert found == expected
    assert found.point == pytest.approx(40 * 100 / 2.0)


def test_their_own_figures() -> None:
    found = planned_cuts([Records.from_rows(of_a_run())])
    assert found["cut_share"].point == found["cut_share"].lower == found["cut_share"].upper == 20 / 60
    assert (found["cut_begun_share"].point, found["cut_begun_share"].n) == (0.75, 20)
    assert planned_cuts([Records.from_rows(of_a_run()[:40])]) == {}


def test_they_are_no_missing_completions() -> None:
    """Of 20 requests a second all are completed that anybody waits for: no overload."""
    rows = [row(i, submitted=50.0 * i, chunks=(50.0 * i + 20, 50.0 * i + 30)) for i in range(200)]
    half = [
        cut(i, submitted=50.0 * i, chunks=(), first_content=None) if i % 2 else each
        for i, each in enumerate(rows)
    ]
    window = [
        Window(Records.from_rows(each), EPOCH_NS + 1000 * MS, EPOCH_NS + 9000 * MS) for each in (rows, half)
    ]
    balances = [completion_balance(each.records, each) for each in window]
    assert all(balance is not None and not balance.short for balance in balances)
    rates = [request_throughput([each], seed=1).point or 0.0 for each in window]
    assert rates[1] == pytest.approx(rates[0] / 2, rel=0.02)


def test_recovery_from_preemption_is_of_those_who_wait() -> None:
    rows = [row(0, preemptions=1), row(1, submitted=1.0, preemptions=0), cut(2, preemptions=2), cut(3)]
    found = preemption_recovery_rate([Records.from_rows(rows)])
    assert (found.point, found.n) == (1.0, 1)


def test_memory_that_ran_out_before_a_cut_is_no_failed_request() -> None:
    records = Records.from_rows([cut(0, "in_band_error", error="out of memory"), row(1, submitted=1.0)])
    assert out_of_memory_errors(records) == 0


def test_the_watch_over_failures_does_not_hear_of_them() -> None:
    watch = FailureWatch(most_failures=2)
    watch.begin(0)
    for index in range(40):
        watch.note(cut(index, "disconnected", finished=10.0 * index))
    assert watch.is_calm
    assert watch.judge(0, None, EPOCH_NS + 10**12) is None


@pytest.mark.parametrize("by", ["rows", "columns"])
def test_looks_are_at_those_who_wait(by: str) -> None:
    """9 of 10 are cut and end late: by them a limit of 150 ms would be broken, by the others it is kept."""
    rows = [
        row(i, submitted=10.0 * i, chunks=(10.0 * i + 100 + i % 7,))
        if i % 10 == 0
        else cut(i, submitted=10.0 * i, chunks=(10.0 * i + 900,), finished=10.0 * i + 900)
        for i in range(4000)
    ]
    watched = Watched(Objective("ttft.p50", "<=", 150.0, "ms"), "ttft", 50.0)
    taker = LookTaker(Looks((watched,), max_error_share=0.01), first=0, most=4000)
    if by == "rows":
        for each in rows:
            taker.add(each)
    else:
        taker.add_all(Records.from_rows(rows))
    verdict = taker.close()
    assert verdict.decided
    assert not verdict.budget_spent
    assert verdict.n < 4000
    assert verdict.estimates[0].n == verdict.n / 10
    assert 100 <= (verdict.estimates[0].point or 0.0) <= 107


def test_failures_of_those_who_wait_spend_the_budget_all_the_same() -> None:
    rows = [
        cut(i) if i % 2 else row(i, submitted=10.0 * i, outcome=Outcome.OK if i % 40 else Outcome.TIMEOUT)
        for i in range(1000)
    ]
    watched = Watched(Objective("completion_rate", ">=", 0.5, "ratio"), "ok")
    kept, broken = (
        LookTaker(Looks((watched,), max_error_share=share), first=0, most=1000) for share in (0.06, 0.04)
    )
    for each in rows:
        kept.add(each)
        broken.add(each)
    # 25 of the 500 who wait: more than 4 % of them, which are not 4 % of all.
    assert kept.verdict is not None
    assert broken.verdict is None
    assert broken.close().estimates[0].point == pytest.approx(0.95)


def turns(*outcomes: Outcome) -> list[RequestRecord]:
    found = []
    for number, outcome in enumerate(outcomes, start=1):
        was_cut = {"cut_after_ns": 50 * MS} if outcome is Outcome.CUT_BY_USER else {}
        at = 1000.0 * number
        found.append(
            row(number, submitted=at, chunks=(at + 100,), finished=at + 300, outcome=outcome, session=0,
                turn=number, session_turns=len(outcomes), **was_cut)
        )  # fmt: skip
    return found


def test_a_session_with_a_cut_turn_is_complete_and_its_limits_are_those_of_the_others() -> None:
    records = Records.from_rows(turns(Outcome.OK, Outcome.CUT_BY_USER, Outcome.OK))
    jobs = jobs_of(records, [("ttft", 200.0)])
    assert jobs.complete.tolist() == [True]
    assert jobs.worst.tolist() == [0.5]
    assert jobs.time_s == pytest.approx([2.3])
    assert session_goodput([jobs], 5.0).point == 1.0
    assert job_metrics([jobs])["session_completion_rate"].point == 1.0
    assert jobs_of(records, [("ttft", 50.0)]).worst.tolist() == [2.0]
    failed = jobs_of(Records.from_rows(turns(Outcome.OK, Outcome.TIMEOUT, Outcome.CUT_BY_USER)))
    assert np.isinf(failed.worst).all()
    assert failed.complete.tolist() == [False]
