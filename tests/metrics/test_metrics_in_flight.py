"""Tokens in flight: the time-weighted sum over concurrent requests, by hand (section 5.5.4)."""

from __future__ import annotations

import pytest
from metric_rows import EPOCH_NS, row

from pytest_llmbench.metrics.balance import tokens_in_flight
from pytest_llmbench.metrics.throughput import Window
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import Records


def window(*rows: object, end_ms: float = 1000.0) -> Window:
    records = Records.from_rows(rows)  # type: ignore[arg-type]
    return Window(records, EPOCH_NS, EPOCH_NS + round(end_ms * 1e6))


def test_input_from_submission_and_each_output_token_from_its_arrival() -> None:
    # 100 input for 800 ms, one token from 400 ms and one from 600 ms on, all until 800 ms
    one = row(submitted=0.0, chunks=(400.0, 600.0), finished=800.0)
    found = tokens_in_flight(window(one))
    assert found.point == pytest.approx((100 * 800 + 400 + 200) / 1000)
    assert found.unit == "tokens"


def test_concurrent_requests_add_up() -> None:
    rows = [row(i, submitted=0.0, chunks=(1000.0,), finished=1000.0, input_tokens=50) for i in range(3)]
    assert tokens_in_flight(window(*rows)).point == pytest.approx(150.0)


def test_only_what_lies_in_the_window_counts() -> None:
    # submitted before the window and ended after it: in flight all along, with one token more from half of it
    one = row(submitted=-500.0, chunks=(500.0,), finished=2000.0)
    assert tokens_in_flight(window(one)).point == pytest.approx(100.5)


def test_chunks_without_an_attribution_share_the_total() -> None:
    one = row(submitted=0.0, chunks=(0.0, 500.0), chunk_tokens=(), tokens=20, finished=1000.0)
    assert tokens_in_flight(window(one)).point == pytest.approx(100 + 10 + 5)


def test_a_failed_request_counts_while_it_lasts() -> None:
    failed = row(submitted=0.0, chunks=(), finished=250.0, outcome=Outcome.HTTP_ERROR, tokens=None)
    assert tokens_in_flight(window(failed)).point == pytest.approx(25.0)


def test_one_that_never_ended_stays_in_flight() -> None:
    open_end = row(submitted=500.0, chunks=(), finished=None, outcome=Outcome.CANCELLED, tokens=None)
    assert tokens_in_flight(window(open_end)).point == pytest.approx(50.0)


def test_undefined_without_a_length_or_a_request() -> None:
    assert tokens_in_flight(window()).point is None
    unknown = row(input_tokens=None)
    assert tokens_in_flight(window(unknown)).point is None
    planned = row(submitted=0.0, chunks=(1000.0,), input_tokens=None, requested_input_tokens=7)
    assert tokens_in_flight(window(planned)).point == pytest.approx(7.0)
