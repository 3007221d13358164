"""The engine's metrics page against what the engine really did, request by request."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import pytest

from pytest_llmbench.harness.session import BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.metrics.kv_cache import preemption_rate
from pytest_llmbench.metrics.server_side import batch_utilisation
from pytest_llmbench.metrics.throughput import window_of
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

BATCH = 8


@contextmanager
def measured(scenario: str, plan: LoadPlan) -> Iterator[tuple[Observation, list[GroundTruth]]]:
    """One plan, sent by hand, and the truth about its requests."""
    with EmbeddedEngine.start(scenario) as engine:
        session = BenchSession(Settings(endpoint=engine.url, scale="quick"))
        try:
            seen = session.execute(plan, engine.url)
        finally:
            session.close()
        sent = set(seen.records.request_id)
        yield seen, [one for one in engine.ground_truth() if one.request_id in sent]


def load(input_tokens: int, output_tokens: int, concurrency: int, duration_s: float) -> LoadPlan:
    workload = SyntheticWorkload("fixed", Fixed(input_tokens), Fixed(output_tokens))
    requests = concurrency * 2
    return LoadPlan(
        "level",
        workload,
        ClosedLoop(concurrency),
        requests,
        seed=42,
        duration_s=duration_s,
        max_requests=20_000,
    )


def in_batch(truth: list[GroundTruth], start_ns: int, end_ns: int) -> float:
    """Mean number of requests between admission and last token."""
    parts = [
        max(0, min(one.last_token_ns or 0, end_ns) - max(one.admitted_ns or 0, start_ns)) for one in truth
    ]
    return sum(parts) / (end_ns - start_ns)


def test_gauges_and_counters_are_what_the_engine_did():
    plan = load(64, 400, BATCH // 2, 5.0)
    with measured(f"fast?max_num_seqs={BATCH}", plan) as (seen, truth):
        assert len(truth) == len(seen.records)
        assert seen.records.ok.all()
        readings = seen.engine
        assert readings is not None
        assert readings.gap is None
        assert readings.max_num_seqs == BATCH
        assert readings.grown("requests_finished") == len(truth)
        assert readings.grown("generated_tokens") == sum(one.output_tokens for one in truth)
        assert readings.grown("prompt_tokens") == sum(one.prompt_tokens for one in truth)
        assert readings.grown("preemptions") == 0
        waited = sum((one.admitted_ns or 0) - (one.queued_ns or 0) for one in truth) / 1e9
        assert readings.grown("queue_wait_s") == pytest.approx(waited, abs=0.01)

        window = window_of(seen)
        share = batch_utilisation([(readings, window)])
        true = in_batch(truth, window.start_ns, window.end_ns) / BATCH
        assert share.point is not None
        # One sample a second of a number that is 4 nearly always: a request takes half a second.
        assert share.n >= 3
        assert share.point == pytest.approx(true, abs=0.15)
        assert 0.3 < true <= 0.5


@pytest.mark.slow
def test_preemptions_are_counted_alike_by_page_reply_and_engine():
    # 160 blocks of 16 tokens: five prompts of 320 fit with room for a few tokens, and then grow.
    scenario = f"fast?max_num_seqs={BATCH}&context_limit_tokens=2048&kv_blocks=160"
    with measured(scenario, load(320, 200, BATCH, 2.0)) as (seen, truth):
        assert seen.records.ok.all()
        events = sum(one.preemptions for one in truth)
        assert events > 0
        assert seen.engine is not None
        assert seen.engine.grown("preemptions") == events
        assert int(seen.records.preemptions.sum()) == events
        assert int(seen.records.preempted_tokens.sum()) == sum(one.lost_tokens for one in truth)
        rate = preemption_rate([seen.records])
        assert rate.point == pytest.approx(np.mean([one.preemptions > 0 for one in truth]))
