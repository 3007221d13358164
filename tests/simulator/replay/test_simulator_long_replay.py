"""A long replay: the same records however it is cut, and memory that does not follow its length."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from replayed import columns as columns_of

from pytest_llmbench import arrivals, columns
from pytest_llmbench.columns import StoredRecords
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan, OpenLoop
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.simulator.replay import run as replay_run
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.workloads import sequence
from pytest_llmbench.workloads.lengths import Fixed, Uniform
from pytest_llmbench.workloads.sequence import drawn
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

SHORT = SyntheticWorkload("short", Uniform(4, 30), Uniform(1, 40))
HASTY = Deadlines(total_s=0.4, between_chunks_s=0.2)
BENCH = Path(__file__).parents[3] / "benchmarks" / "bench_long_runs.py"


def _replayed(scenario: str, plan: LoadPlan) -> tuple[Observation, list[int]]:
    told: list[int] = []
    engine = ReplayEngine(parse_scenario(scenario))
    return engine.run(plan, lambda row: told.append(row.index)), told


@pytest.mark.parametrize(
    ("scenario", "load", "more"),
    [
        ("fast", OpenLoop(400.0), {}),
        ("fast", ClosedLoop(16), {"duration_s": 2.0, "max_requests": 5000}),
        ("fast?max_num_seqs=4", OpenLoop(300.0), {"deadlines": HASTY}),
        (
            "fast?fault=reset,stall,http_error&fault_rate=0.2&stall_ms=300",
            OpenLoop(200.0),
            {"deadlines": HASTY},
        ),
        ("fast?context_limit_tokens=128&kv_blocks=40&preemption=recompute", ClosedLoop(24), {}),
        ("fast?output_filter=enabled&tokens_per_chunk=3&server_timestamps=true", OpenLoop(200.0), {}),
    ],
)
def test_handing_over_in_batches_changes_nothing(
    scenario: str, load: Any, more: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = LoadPlan("long", SHORT, load, 600, seed=5, **more)
    whole, in_order = _replayed(scenario, plan)
    # Sizes of buffers in four layers of the replay, which nobody else has a reason to choose.
    monkeypatch.setattr(replay_run, "BATCH", 13)
    monkeypatch.setattr(sequence, "AT_ONCE", 50)
    monkeypatch.setattr(arrivals, "_NUMBERS_AT_ONCE", 17)
    monkeypatch.setattr(columns, "MEMORY_BYTES", 5000)
    cut, told = _replayed(scenario, plan)
    assert isinstance(cut.records, StoredRecords)
    assert columns_of(cut.records) == columns_of(whole.records)
    assert sorted(told) == sorted(in_order)
    assert cut.sequence_sha256 == whole.sequence_sha256
    assert cut.engine is not None
    assert whole.engine is not None
    assert cut.engine.totals_after == pytest.approx(whole.engine.totals_after, rel=1e-9)
    assert (cut.ended_ns, cut.selfcheck, cut.in_flight_at_end) == (
        whole.ended_ns,
        whole.selfcheck,
        whole.in_flight_at_end,
    )


def test_long_prompts_are_drawn_a_few_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = LoadPlan("long", SyntheticWorkload("long", Fixed(100), Fixed(2)), OpenLoop(400.0), 300, seed=5)
    whole, _ = _replayed("fast", plan)
    counts: list[int] = []

    def noting(workload: Any, first: int, count: int, seed: int) -> Sequence[PlannedRequest]:
        counts.append(count)
        return drawn(workload, first, count, seed)

    monkeypatch.setattr(sequence, "drawn", noting)
    few, _ = _replayed("fast", plan)
    assert counts == [64, 64, 64, 64, 44]
    assert few.sequence_sha256 == whole.sequence_sha256
    assert columns_of(few.records) == columns_of(whole.records)


def _measured(requests: int) -> dict[str, Any]:
    command = [sys.executable, str(BENCH), "--here", str(requests)]
    run = subprocess.run(command, check=True, stdout=subprocess.PIPE, timeout=1500)
    found: dict[str, Any] = json.loads(run.stdout)
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs /proc")
def test_memory_does_not_follow_the_length_of_a_replay() -> None:
    """One million requests through the TTFT procedure. All rows as objects would be more than 1 GiB."""
    found = _measured(1_000_000)
    assert found["samples"] == 1_000_000
    assert found["measuring_anonymous"] < 130, found
    assert found["anonymous"] < 300, found
    assert found["max_rss"] < 500, found
