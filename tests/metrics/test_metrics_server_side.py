"""Figures that only the engine can state: components of TTFT, batch utilisation (5.1.4.2, 5.2.4.2)."""

from __future__ import annotations

import numpy as np
import pytest
from metric_rows import EPOCH_NS, row

from pytest_llmbench.metrics.server_side import (
    batch_utilisation,
    cold_starts,
    contradicted_by_ns,
    outside_ms,
    prefill_ms,
    queue_wait_ms,
    read_share,
    unshown_share,
)
from pytest_llmbench.metrics.throughput import Window
from pytest_llmbench.model.estimate import Reason
from pytest_llmbench.model.observation import EngineReadings
from pytest_llmbench.model.record import Outcome, TokenSource
from pytest_llmbench.model.records import Records


def readings(values: list[float], most: int | None = 8) -> EngineReadings:
    at_ns = EPOCH_NS + np.arange(len(values)) * 1_000_000_000
    return EngineReadings(at_ns, {"running": np.array(values)}, max_num_seqs=most)


def window(end_s: float) -> Window:
    return Window(Records.from_rows([row()]), EPOCH_NS, EPOCH_NS + round(end_s * 1e9))


def test_components_in_milliseconds_of_the_requests_that_have_them() -> None:
    rows = [
        row(0, queue_wait_ns=5_000_000, prefill_ns=40_000_000),
        row(1, queue_wait_ns=None, prefill_ns=41_000_000),
        row(2, queue_wait_ns=9_000_000, prefill_ns=1, outcome=Outcome.TIMEOUT),
    ]
    records = Records.from_rows(rows)
    assert queue_wait_ms(records).tolist() == [5.0]
    assert prefill_ms(records).tolist() == [40.0, 41.0]


def test_what_is_left_of_the_first_output_beside_queue_and_prefill() -> None:
    """Known: 70 ms to the first output, 5 of them in the queue and 40 for prefill; the request before that
    has only one of both, and that of the third cannot be."""
    first = {"submitted_ns": EPOCH_NS, "first_nonempty_ns": EPOCH_NS + 70_000_000}
    rows = [
        row(0, queue_wait_ns=None, prefill_ns=40_000_000, **first),
        row(1, queue_wait_ns=5_000_000, prefill_ns=40_000_000, **first),
        row(2, queue_wait_ns=5_000_000, prefill_ns=90_000_000, **first),
        row(3, queue_wait_ns=9_000_000, prefill_ns=1, outcome=Outcome.TIMEOUT, **first),
    ]
    records = Records.from_rows(rows)
    assert outside_ms(records).tolist() == [25.0, 0.0]
    assert contradicted_by_ns(records).tolist() == [-30_000_000, -25_000_000, 25_000_000]
    loading = Records.from_rows([row(0, model_load_ns=80_000_000, **first), row(1, **first)])
    assert contradicted_by_ns(loading).tolist() == [10_000_000]


def test_a_cold_start_waited_longer_than_servers_take_to_find_a_model() -> None:
    waits = [None, 0, 250_000_000, 250_000_001]
    rows = [row(at, model_load_ns=wait) for at, wait in enumerate(waits)]
    assert cold_starts(Records.from_rows(rows)).tolist() == [False, False, False, True]


def test_batch_utilisation_is_the_mean_inside_the_window_over_the_largest_batch() -> None:
    found = batch_utilisation([(readings([2, 4, 6, 8, 100]), window(3.0))])
    assert found.point == pytest.approx(5 / 8)
    assert found.unit == "ratio"


def test_batch_utilisation_pools_runs() -> None:
    pairs = [(readings([2, 2]), window(3.0)), (readings([4, 4]), window(3.0))]
    assert batch_utilisation(pairs).point == pytest.approx(3 / 8)


@pytest.mark.parametrize(
    "reading",
    [
        None,
        readings([2, 4], most=None),
        readings([]),
        EngineReadings(np.array([EPOCH_NS + 1]), {}, max_num_seqs=8),
        readings([float("nan")]),
    ],
)
def test_not_measurable(reading: EngineReadings | None) -> None:
    found = batch_utilisation([(reading, window(3.0))])
    assert found.point is None
    assert found.reason is Reason.NOT_MEASURABLE


def test_tokens_that_nobody_received_are_a_share_of_those_that_the_server_counts() -> None:
    """Known: 30 + 10 of 50 + 50; the others failed, or were counted here."""
    rows = [
        row(0, tokens=50, unshown_tokens=30),
        row(1, tokens=50, unshown_tokens=10),
        row(2, tokens=50, unshown_tokens=50, outcome=Outcome.TIMEOUT),
        row(3, tokens=50, token_source=TokenSource.REFERENCE_TOKENIZER),
    ]
    assert unshown_share(Records.from_rows(rows)) == 0.4
    assert unshown_share(Records.from_rows(rows[2:])) == 0.0


def test_how_much_of_the_prompts_the_server_reads() -> None:
    """Known: 90 + 30 of 100 + 200. Of sessions and of shared prefixes a part may be in a cache."""
    rows = [
        row(0, input_tokens=90, requested_input_tokens=100),
        row(1, input_tokens=30, requested_input_tokens=200),
        row(2, input_tokens=1, requested_input_tokens=200, session=0, turn=1, session_turns=2),
        row(3, input_tokens=1, requested_input_tokens=200, shared_prefix_tokens=100, prefix_id=0),
        row(4, input_tokens=None, requested_input_tokens=200),
    ]
    assert read_share(Records.from_rows(rows)) == 0.4
    assert read_share(Records.from_rows(rows[2:])) is None
