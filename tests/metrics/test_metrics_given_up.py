"""Latencies of runs in which the load generator gave requests up: bounded below, open above."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from pytest_llmbench.compare.gate import gate
from pytest_llmbench.metrics.input_lengths import by_input_length, given_up_by_length
from pytest_llmbench.metrics.itl import itl_distribution, itl_samples
from pytest_llmbench.metrics.jobs import job_metrics
from pytest_llmbench.metrics.latency import distribution_of, distributions, ttft_input_tokens, ttft_ms
from pytest_llmbench.metrics.session_figures import latencies
from pytest_llmbench.model.estimate import Estimate, by_run
from pytest_llmbench.model.judgement import GateVerdict
from pytest_llmbench.model.objective import ms, ttft
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord, TokenSource
from pytest_llmbench.model.records import Records

NS = 1_000_000


def requests(n: int, deadline_ms: float = np.inf, outcome: Outcome = Outcome.TIMEOUT) -> list[RequestRecord]:
    """Independent requests with exponential TTFT of 10 ms in the mean, given up on at a deadline."""
    waits = np.random.default_rng(5).exponential(10.0, n)
    return [one(index, wait, deadline_ms, outcome) for index, wait in enumerate(waits)]


def one(index: int, wait_ms: float, deadline_ms: float, outcome: Outcome) -> RequestRecord:
    sent = 1_000_000_000 + index * 50 * NS
    row = RequestRecord(
        index, f"r{index}", Phase.MEASURE, scheduled_ns=sent, dispatched_ns=sent, submitted_ns=sent,
        requested_input_tokens=100,
    )  # fmt: skip
    if wait_ms > deadline_ms:
        return replace(row, outcome=outcome, finished_ns=sent + int(deadline_ms * NS))
    first = sent + int(wait_ms * NS)
    stamps = [first + i * 2 * NS for i in range(60)]
    return replace(
        row, outcome=Outcome.OK, first_event_ns=first, first_nonempty_ns=first, first_content_ns=first,
        chunk_ns=stamps, chunk_tokens=[1] * 60, last_content_ns=stamps[-1], finished_ns=stamps[-1],
        input_tokens=100, output_tokens=60, token_source=TokenSource.SERVER_USAGE,
    )  # fmt: skip


def found(rows: list[RequestRecord], family: str = "ttft") -> dict[str, Estimate]:
    return distribution_of(family, [Records.from_rows(rows)])


@pytest.mark.parametrize("outcome", [Outcome.TIMEOUT, Outcome.CANCELLED])
def test_a_percentile_among_them_is_at_least_the_deadline(outcome: Outcome) -> None:
    """A deadline of 40 ms takes away 1.8 % of exponential latencies with a mean of 10 ms: P99 is 46 ms."""
    whole, cut = found(requests(4_000)), found(requests(4_000, 40.0, outcome))
    assert cut["ttft.p99"].point == pytest.approx(40.0)
    assert cut["ttft.p99"].upper is None
    assert cut["ttft.p99"].among_given_up
    assert cut["ttft.mean"].upper is None
    for name in ("ttft.p50", "ttft.p95"):
        upper, true = cut[name].upper, whole[name].point
        assert upper is not None
        assert true is not None
        assert true <= upper
    assert cut["ttft.p95"].upper == pytest.approx(whole["ttft.p95"].upper, rel=0.05)


@pytest.mark.parametrize(("limit_ms", "verdict"), [(60, "inconclusive"), (45, "inconclusive"), (20, "fail")])
def test_it_keeps_no_limit_and_may_break_one(limit_ms: int, verdict: str) -> None:
    judged = gate([ttft.p99 <= limit_ms * ms], found(requests(4_000, 40.0)))
    assert judged.objectives[0].verdict is GateVerdict(verdict)
    if verdict == "inconclusive":
        assert "given up on" in judged.objectives[0].reason
        assert judged.objectives[0].growth is None


def test_one_of_many_leaves_the_percentiles_below_it_decided() -> None:
    """A single lost request in 10,000 costs P99 nothing, and P99.9 little."""
    rows = requests(10_000)
    slowest = max(range(len(rows)), key=lambda i: rows[i].first_content_ns - rows[i].submitted_ns)
    rows[slowest] = one(slowest, 1e9, 1_000.0, Outcome.TIMEOUT)
    whole, cut = found(requests(10_000)), found(rows)
    assert cut["ttft.p99"].upper == pytest.approx(whole["ttft.p99"].upper, rel=0.01)
    assert cut["ttft.p99_9"].upper == pytest.approx(whole["ttft.p99_9"].upper, rel=0.15)


@pytest.mark.parametrize("seed", range(5))
def test_upper_ends_hold_the_truth(seed: int) -> None:
    """P99 of an exponential law is 46.05 ms; 0.7 % lie beyond a deadline of 49.6 ms."""
    waits = np.random.default_rng(seed).exponential(10.0, 4_000)
    rows = [one(i, wait, 49.6, Outcome.TIMEOUT) for i, wait in enumerate(waits)]
    upper = found(rows)["ttft.p99"].upper
    assert upper is None or upper >= 46.05


def test_what_failed_otherwise_is_no_such_sample() -> None:
    rows = requests(2_000, 40.0, Outcome.DISCONNECTED)
    assert found(rows)["ttft.p99"].upper is not None


def test_a_ttft_that_was_seen_is_known() -> None:
    """Replies that hang behind their first token: TTFT is known, their end and time per token are not."""
    rows = requests(2_000)
    for index in range(0, 2_000, 25):
        whole = rows[index]
        rows[index] = replace(
            whole, outcome=Outcome.TIMEOUT, chunk_ns=[whole.first_content_ns], chunk_tokens=[1],
            last_content_ns=whole.first_content_ns, output_tokens=None,
        )  # fmt: skip
    every = distributions(("ttft", "tpot", "e2e"), [Records.from_rows(rows)])
    assert every["ttft.p95"].upper is not None
    assert every["ttft.mean"].upper is not None or every["ttft.mean"].among_given_up
    assert every["tpot.p99"].among_given_up
    assert every["e2e.p99"].among_given_up
    gaps = itl_distribution(itl_samples(Records.from_rows(rows), "direct"))
    assert gaps["itl.p99"].among_given_up
    assert gaps["itl.p50"].upper is not None


def test_buckets_and_sessions_know_of_them() -> None:
    rows = [replace(row, session=row.index, turn=1) for row in requests(4_000, 40.0)]
    records = Records.from_rows(rows)
    (bucket,) = by_input_length(
        [ttft_ms(records)], [ttft_input_tokens(records)], given_up=given_up_by_length([records])
    )
    assert bucket.metrics["ttft[0-256].p99"].among_given_up
    assert latencies([records], "ttft", None)["ttft.p99"].among_given_up


def test_a_run_of_a_job_tells_the_least_that_it_is() -> None:
    cut = found(requests(4_000, 40.0))
    told = job_metrics(cut, {}, {})
    assert told["ttft.p99"].upper is None
    assert told["ttft.p50"].upper is not None
    assert by_run([cut, cut])["ttft.p99"] == (None, None)
