"""A replay's records show the closed forms that follow from the engine's figures, to the nanosecond."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from known_truth import (
    cached_tokens,
    lockstep_rate,
    output_filter_ns,
    prefill_ns,
    service_ns,
)
from replayed import fixed

from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan, OpenLoop
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.tokens import reference_tokenizer

ROUND_TRIP_NS = 50_000


@dataclass(frozen=True)
class Listed:
    """Requests of the lengths given, again and again; the first ``shared`` tokens are those of the prefix."""

    lengths: tuple[tuple[int, int], ...]
    shared: int = 0
    prefixes: int = 1
    name: str = "listed"
    standard: bool = False

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        return [self._request(i, *self.lengths[i % len(self.lengths)]) for i in range(count)]

    def _request(self, index: int, prompt: int, output: int) -> PlannedRequest:
        prefix = index % self.prefixes
        own = range(1000 * (index + 1), 1000 * (index + 1) + prompt - self.shared)
        ids = [prefix] * self.shared + list(own)
        return PlannedRequest(
            index,
            output,
            prompt,
            ids,
            prefix_id=prefix,
            shared_prefix_tokens=self.shared,
            class_label=str(prompt),
        )

    def specification(self) -> Mapping[str, Any]:
        return {}


def replayed(scenario: str, workload: Any, load: ClosedLoop | OpenLoop, requests: int) -> Observation:
    return ReplayEngine(parse_scenario(scenario)).run(LoadPlan("truth", workload, load, requests, seed=5))


def ttft_ns(seen: Observation) -> np.ndarray:
    return seen.records.first_content_ns - seen.records.submitted_ns


STEP_ONLY = "fast?prefill_us_per_token=0&kv_us_per_token=0&max_num_seqs=16"


@pytest.mark.parametrize("scenario", [STEP_ONLY, "fast", "h100-8b"])
def test_the_output_rate_of_a_full_batch(scenario: str) -> None:
    config = parse_scenario(scenario).engine
    seen = replayed(scenario, fixed(100, 200), ClosedLoop(16), 160)
    rate = int(seen.records.output_tokens.sum()) / ((seen.ended_ns - seen.started_ns) / 1e9)
    assert rate == pytest.approx(lockstep_rate(config, 16, 100, 200, ROUND_TRIP_NS), rel=1e-9)
    if scenario == STEP_ONLY:  # by hand: 199 steps of 1200 + 16 · 6 µs, one of 1200 µs, and the round trip
        assert rate == pytest.approx(16 * 200 / (199 * 1296e-6 + 1200e-6 + 50e-6), rel=1e-9)


def test_capacity_is_the_size_of_the_batch() -> None:
    config = parse_scenario(STEP_ONLY).engine
    longest_step_ns = config.step_ns(0, 16, 0)
    within = replayed(STEP_ONLY, fixed(100, 50), ClosedLoop(16), 160).records.queue_wait_ns
    beyond = replayed(STEP_ONLY, fixed(100, 50), ClosedLoop(17), 170).records.queue_wait_ns
    assert within.max() < longest_step_ns
    assert beyond.max() > 40 * longest_step_ns


@pytest.mark.parametrize(
    ("options", "exponent"),
    [
        ("kv_us_per_token=0", 1.0),
        ("prefill_us_per_token=0&attention_ns_per_pair=5&step_base_us=1&kv_us_per_token=0", 2.0),
    ],
)
def test_the_scaling_exponent_of_prefill(options: str, exponent: float) -> None:
    scenario, lengths = f"fast?{options}", [2**power for power in range(10, 18)]
    config = parse_scenario(scenario).engine
    means = []
    for length in lengths:
        seen = replayed(scenario, fixed(length, 256), ClosedLoop(1), 2)
        assert ttft_ns(seen).tolist() == [prefill_ns(config, length) + ROUND_TRIP_NS] * 2
        means.append(ttft_ns(seen).mean())
    slope = np.polyfit(np.log(lengths), np.log(means), 1)[0]
    assert slope == pytest.approx(exponent, abs=0.02)


def test_the_hit_rate_of_shared_prefixes() -> None:
    workload = Listed(((600, 4),), shared=500, prefixes=5)
    scenario = "fast?prefix_caching=on"
    seen = replayed(scenario, workload, ClosedLoop(1), 50)
    found = cached_tokens(parse_scenario(scenario).engine, 600, 500)
    assert found == 496
    assert seen.records.cached_tokens.tolist() == [0] * 5 + [found] * 45
    assert seen.engine is not None
    assert seen.engine.grown("prefix_hits_tokens") == 45 * found
    assert seen.engine.grown("prefix_queries_tokens") == 50 * 600
    plain = replayed("fast", workload, ClosedLoop(1), 50)
    saved_ns = (ttft_ns(plain) - ttft_ns(seen))[5:]
    # 10 µs per token that need not be computed, less 10 ns for reading it
    assert set(saved_ns.tolist()) == {found * 10_000 - found * 10}


def test_the_overhead_of_the_filters() -> None:
    base = ReplayEngine(parse_scenario("fast?input_filter_us=3000&input_filter_us_per_token=0"))
    plan = LoadPlan("truth", fixed(300, 100), ClosedLoop(1), 4, seed=5)
    names = ("guardrails_baseline", "guardrails_input", "guardrails_output", "guardrails_full")
    runs = {name: base.variant(name).run(plan) for name in names}
    e2e = {name: run.records.finished_ns - run.records.submitted_ns for name, run in runs.items()}
    input_ns = ttft_ns(runs["guardrails_input"]) - ttft_ns(runs["guardrails_baseline"])
    assert input_ns.tolist() == [3_000_000] * 4
    output_ns = output_filter_ns(base.config, 100)
    assert output_ns == 1_500_000 + 36 * 2000
    assert (e2e["guardrails_output"] - e2e["guardrails_baseline"]).tolist() == [output_ns] * 4
    assert (e2e["guardrails_full"] - e2e["guardrails_baseline"]).tolist() == [3_000_000 + output_ns] * 4


@pytest.mark.parametrize("scheduler", ["fcfs", "shortest"])
def test_whom_a_short_request_waits_for(scheduler: str) -> None:
    scenario = f"fast?max_num_seqs=1&scheduler={scheduler}"
    config = parse_scenario(scenario).engine
    long, short = (4000, 300), (64, 8)
    # All arrive while the first one is being served.
    seen = replayed(scenario, Listed((long, long, long, short)), OpenLoop(1e6, "uniform"), 4)
    wait_ns = int(seen.records.queue_wait_ns[3])
    before = 3 if scheduler == "fcfs" else 1
    assert wait_ns == before * service_ns(config, *long) - 3000  # it came 3 µs after the first


def test_whole_prompts_hold_up_the_tokens_of_others_and_chunks_do_less() -> None:
    figures = "context_limit_tokens=8192&max_num_batched_tokens=8192"
    workload = Listed(((64, 200), (8000, 2)))
    whole, chunked = (
        replayed(scenario, workload, OpenLoop(50, "uniform"), 2)
        for scenario in (f"fast?{figures}&chunked_prefill=off", "fast?max_num_batched_tokens=512")
    )
    pauses = [float(np.diff(seen.records.chunk_ns[:200]).max()) for seen in (whole, chunked)]
    assert pauses[0] == pytest.approx(80e6, rel=0.05)  # 8000 tokens of 10 µs in one step
    assert pauses[1] == pytest.approx(6.3e6, rel=0.05)  # 511 of them


def test_too_few_blocks_preempt_the_last_to_come() -> None:
    # 40 blocks of 16: two prompts of 320 tokens fill them, and the first token to be stored needs another.
    scenario = "fast?kv_blocks=40&context_limit_tokens=640"
    seen = replayed(scenario, fixed(320, 100), ClosedLoop(2), 2)
    records = seen.records
    assert records.preemptions.tolist() == [0, 1]
    assert records.preempted_tokens.tolist() == [0, 320]
    assert records.counts()["ok"] == 2
    assert seen.engine is not None
    assert seen.engine.grown("preemptions") == 1
    # Its prompt and its first token are computed again.
    assert seen.engine.grown("prompt_tokens") == 320 + 320 + 321


def test_without_preemption_the_one_that_finds_no_block_fails() -> None:
    scenario = "fast?kv_blocks=40&context_limit_tokens=640&preemption=off"
    seen = replayed(scenario, fixed(320, 100), ClosedLoop(2), 2)
    assert seen.records.counts()["in_band_error"] == 1
    assert seen.records.counts()["ok"] == 1


class _AsText(Listed):
    """The same prompts as text, as data sets have them."""

    def requests(self, count: int, seed: int) -> Sequence[PlannedRequest]:
        decode = reference_tokenizer().decode
        return [
            replace(request, token_ids=None, text=decode(list(request.token_ids or ())))
            for request in super().requests(count, seed)
        ]


def test_prompts_of_text_find_their_prefixes_too() -> None:
    """Known beforehand: identical texts, so all whole blocks but the last are hits from the second on."""
    workload = _AsText(((600, 4),), shared=600, prefixes=1)
    seen = replayed("fast?prefix_caching=on", workload, ClosedLoop(1), 4)
    first, *later = seen.records.cached_tokens.tolist()
    assert first == 0
    assert min(later) > 0
    assert len(set(later)) == 1
