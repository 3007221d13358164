from __future__ import annotations

import pytest
from metric_rows import row

from pytest_llmbench.metrics.kv_cache import preemption_loss, preemption_rate, preemption_recovery_rate
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import Records
from pytest_llmbench.stats.ratios import exact_share_interval


def request(index: int, preemptions: int | None, tokens: int | None = None, ok: bool = True):  # type: ignore[no-untyped-def]
    return row(
        index,
        submitted=float(index),
        preemptions=preemptions,
        preempted_tokens=tokens,
        outcome=Outcome.OK if ok else Outcome.TIMEOUT,
    )


SEEN = Records.from_rows(
    [request(0, 0, 0), request(1, 2, 300), request(2, 1, 60, ok=False), request(3, 1, 40), request(4, 0, 0)]
)


def test_known_rates() -> None:
    rate = preemption_rate([SEEN])
    assert (rate.point, rate.n) == (0.6, 5)
    assert (rate.lower, rate.upper) == pytest.approx(exact_share_interval(3, 5, tail=0.025))
    recovery = preemption_recovery_rate([SEEN])
    assert (recovery.point, recovery.n) == (pytest.approx(2 / 3), 3)
    loss = preemption_loss([SEEN], seed=1)
    assert (loss.point, loss.n, loss.unit) == (pytest.approx(400 / 4), 3, "tokens")


def test_runs_are_pooled() -> None:
    calm = Records.from_rows([request(index, 0, 0) for index in range(5)])
    assert preemption_rate([SEEN, calm]).point == pytest.approx(0.3)
    assert preemption_loss([SEEN, calm], seed=1).point == pytest.approx(100)


def test_a_silent_server() -> None:
    silent = Records.from_rows([request(0, None), request(1, None, ok=False)])
    for found in (
        preemption_rate([silent]),
        preemption_recovery_rate([silent]),
        preemption_loss([silent], seed=1),
    ):
        assert not found.defined
        assert found.method.startswith("the server ")
    assert not preemption_rate([]).defined


def test_failed_requests_without_a_count() -> None:
    part = Records.from_rows([request(0, 1, 9), request(1, 0, 0), request(2, None, ok=False)])
    rate = preemption_rate([part])
    assert (rate.point, rate.n) == (0.5, 2)
    assert rate.method.endswith(", over 2 of 3 requests with a count")
    recovery = preemption_recovery_rate([part])
    assert recovery.method == "1 unsuccessful requests have no preemption count"
    assert not recovery.defined


def test_no_preemption_is_a_rate_of_zero_and_no_loss() -> None:
    calm = Records.from_rows([request(index, 0, 0) for index in range(5)])
    assert preemption_rate([calm]).point == 0.0
    for found in (preemption_recovery_rate([calm]), preemption_loss([calm], seed=1)):
        assert (found.point, found.method) == (None, "no request was preempted")
    uncounted = Records.from_rows([request(0, 3)])
    assert preemption_loss([uncounted], seed=1).method.startswith("the server does not say")


def test_a_run_without_counts_beside_one_that_has_them() -> None:
    uncounted = Records.from_rows([request(0, None)])
    counted = Records.from_rows([request(0, 1, 9), request(1, 0, 0), request(2, 2, 8)])
    assert preemption_rate([uncounted, counted]).point == pytest.approx(2 / 3)
    calm = Records.from_rows([request(0, 0, 0)])
    assert preemption_recovery_rate([calm, counted]).point == 1.0
