"""Prefix cache effectiveness: three states of one cache, compared request by request."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from replayed_sut import ReplayedSUT

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.sections.prefix_cache import STAND_IN, TEST, Parameters
from pytest_llmbench.model.estimate import Reason
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.workloads.adapted import SharedPrefix
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

EVERY_512 = SharedPrefix("every-512", SYNTHETIC_UNIFORM, Fixed(512), 1.0, 4)
BLOCK = 16


@pytest.fixture(scope="module")
def measured() -> tuple[ReplayedSUT, TestResult]:
    sut = ReplayedSUT()
    return sut, sut.measure(TEST, requests=200)


def _findings(result: TestResult) -> dict[str, bool]:
    return {each.check: each.ok for each in result.findings if each.check.startswith("cache_")}


def test_three_states_of_the_identical_sequence(measured: tuple[ReplayedSUT, TestResult]) -> None:
    sut, result = measured
    runs = [plan for plan in sut.plans if plan.phase is Phase.MEASURE]
    assert [(plan.label, plan.variant) for plan in runs] == [
        ("cache disabled", "cache_disabled"),
        ("cache cold", "cache_enabled"),
        ("cache warm", "cache_enabled"),
    ]
    assert len({run.sequence_sha256 for run in result.observations}) == 1
    assert [level.role for level in result.levels] == ["disabled", "cold", "warm"]


def test_hit_rate_is_the_share_of_whole_blocks(measured: tuple[ReplayedSUT, TestResult]) -> None:
    """Known beforehand: of a filled cache exactly the whole blocks of each shared prefix are hits."""
    _, result = measured
    warm = result.observations[-1].records
    shared = warm.shared_prefix_tokens[warm.shared_prefix_tokens > 0]
    expected = float((shared // BLOCK * BLOCK).sum() / shared.sum())
    assert result.metrics["cache_hit_rate"].point == pytest.approx(expected, abs=1e-9)
    cold = result.metrics["cache_hit_rate[cold]"].point
    assert cold is not None
    assert cold < expected


def test_reduction_is_that_of_the_spared_prefill() -> None:
    """Known beforehand: one at a time, all with a prefix of 512 tokens, prefill at 10 µs per token."""
    sut = ReplayedSUT(
        "fast?prefill_us_per_token=10&step_base_us=1000&kv_us_per_token=0&attention_ns_per_pair=0"
    )
    result = sut.measure(TEST, requests=120, concurrency=1, workload=EVERY_512)
    plain, warm = (result.metrics[f"ttft[{state}].p50"].point for state in ("disabled", "warm"))
    assert plain is not None
    assert warm is not None
    assert plain - warm == pytest.approx(5.12, abs=0.05)
    reduction = result.metrics["ttft_reduction.p50"]
    assert reduction.lower is not None
    assert reduction.upper is not None
    assert reduction.lower <= 5.12 / plain <= reduction.upper


def test_the_misses_that_begin_a_cold_run_count() -> None:
    """Known beforehand: an eighth of the requests come first with their prefix and have the TTFT without a
    cache, so P95 is that of a miss."""
    many = SharedPrefix("many", SYNTHETIC_UNIFORM, Fixed(2048), 1.0, 30)
    sut = ReplayedSUT("fast?prefill_us_per_token=10&step_base_us=1000&kv_us_per_token=0")
    result = sut.measure(TEST, requests=240, concurrency=1, workload=many)
    cold = result.observations[1].records
    missed = cold.cached_tokens < 1024
    assert missed[:24].mean() > 0.5
    assert missed.sum() == 30
    at_p95 = {
        state: result.metrics[f"ttft[{state}].p95"].point or 0.0 for state in ("disabled", "cold", "warm")
    }
    assert at_p95["cold"] > 3 * at_p95["warm"]
    assert at_p95["cold"] == pytest.approx(at_p95["disabled"], rel=0.2)
    assert result.metrics["ttft[cold].p50"].n == 240


def test_warm_up_leaves_the_measured_prefixes_alone(measured: tuple[ReplayedSUT, TestResult]) -> None:
    sut, result = measured
    warmups = [plan for plan in sut.plans if plan.phase is not Phase.MEASURE]
    before_cold = warmups[: next(i for i, plan in enumerate(warmups) if plan.label == "populate")]
    assert {plan.workload.name for plan in before_cold} <= {"synthetic-uniform", "probe"}
    assert _findings(result) == {"cache_disabled": True, "cache_cold": True, "cache_warm": True}


def test_the_warm_run_finds_prefixes_only_and_not_whole_prompts(
    measured: tuple[ReplayedSUT, TestResult],
) -> None:
    warm = measured[1].observations[-1].records
    assert bool(np.all(warm.cached_tokens <= warm.shared_prefix_tokens))


@pytest.mark.slow
@pytest.mark.parametrize("given", [{"concurrency": 1}, {"concurrency": 64}, {"rate": 100.0}], ids=str)
def test_the_halves_of_a_pair_are_one_system_at_every_load(given: dict[str, float]) -> None:
    result = ReplayedSUT().measure(TEST, requests=400, **given)
    (finding,) = [each for each in result.findings if each.check == "same_system"]
    assert finding.ok
    assert finding.value is not None
    assert finding.value < 0.05


@pytest.mark.parametrize(
    ("options", "told", "voids"),
    [
        pytest.param({"step_base_us": "1270"}, "a decoding step", False, id="steps by 5 %"),
        pytest.param({"step_base_us": "1450"}, "a decoding step", False, id="steps"),
        pytest.param({"step_base_us": "9000"}, "a decoding step", True, id="much slower steps"),
        pytest.param({"decode_us_per_sequence": "200"}, "a decoding step", True, id="steps by sequence"),
        pytest.param(
            {"prefill_us_per_token": "40"}, "prompts that the cold cache did not help", True, id="prefill"
        ),
    ],
)
@pytest.mark.parametrize("variant", ["cache_disabled", pytest.param("cache_enabled", marks=pytest.mark.slow)])
def test_the_other_half_on_another_machine_is_told(
    variant: str, options: dict[str, str], told: str, voids: bool
) -> None:
    result = ReplayedSUT(overrides={variant: options}).measure(TEST, requests=300)
    (finding,) = [each for each in result.findings if each.check == "same_system"]
    assert not finding.ok
    assert finding.voids is voids
    assert told in finding.message


def test_without_a_reset_there_is_no_cold_run_and_a_note() -> None:
    result = ReplayedSUT(can_be_fresh=False).measure(TEST, requests=60)
    assert [level.role for level in result.levels] == ["disabled", "warm"]
    assert any(note.startswith("no cold run") for note in map(str, result.notes))
    assert "ttft_reduction[cold].p50" not in result.metrics


def _cached(state: str, tokens: int) -> ReplayedSUT:
    """A server whose cache serves ``tokens`` of every prompt in the given state, whatever it should do."""

    def change(seen: Observation) -> Observation:
        if seen.plan.label != f"cache {state}":
            return seen
        cached = np.full(len(seen.records), tokens)
        # Nor do the engine's own counters tell.
        return replace(seen, records=replace(seen.records, cached_tokens=cached), engine=None)

    return ReplayedSUT(change=change)


@pytest.mark.parametrize(("state", "tokens"), [("disabled", 64), ("cold", 1024), ("warm", 0)])
def test_a_cache_in_another_state_than_declared_voids_the_run(state: str, tokens: int) -> None:
    result = _cached(state, tokens).measure(TEST, requests=60)
    assert _findings(result) == {
        "cache_disabled": state != "disabled",
        "cache_cold": state != "cold",
        "cache_warm": state != "warm",
    }
    assert all(finding.voids for finding in result.findings if finding.check.startswith("cache_"))


def test_a_server_that_tells_nothing_is_no_proof_either_way() -> None:
    result = _cached("disabled", MISSING).measure(TEST, requests=60)
    finding = result.findings[0]
    assert (finding.ok, finding.voids) == (True, False)
    assert "does not report" in finding.message


def test_a_server_that_tells_only_hits_means_zero_elsewhere() -> None:
    """vLLM leaves the field out where it would be 0."""

    def hide_zeros(seen: Observation) -> Observation:
        cached = seen.records.cached_tokens
        return replace(
            seen, records=replace(seen.records, cached_tokens=np.where(cached > 0, cached, MISSING))
        )

    told = ReplayedSUT().measure(TEST, requests=60).metrics["cache_hit_rate"].point
    assert ReplayedSUT(change=hide_zeros).measure(TEST, requests=60).metrics["cache_hit_rate"].point == told


def test_an_open_loop_shows_no_throughput_gain() -> None:
    result = ReplayedSUT().measure(TEST, requests=60, rate=20.0)
    gain = result.metrics["throughput_improvement"]
    assert gain.point is None
    assert gain.reason is Reason.NOT_MEASURABLE


def test_missing_variants_and_workloads_without_prefixes_are_said_before_anything_is_sent() -> None:
    sut = ReplayedSUT()
    parameters = build(Parameters, {"enabled": "cache_on", "workload": "synthetic-uniform"})
    missing = TEST.needs(parameters, sut.setting("synthetic-uniform"))
    assert len(missing) == 2
    assert "cache_on" in missing[0]
    assert "--llm-sut" in missing[0]
    assert "shares no prefixes" in missing[1]
    assert not TEST.needs(build(Parameters, {}), sut.setting(STAND_IN))


def test_limits_become_objectives() -> None:
    parameters = build(Parameters, {"min_ttft_reduction": 0.3, "min_hit_rate": 0.9})
    assert [str(objective) for objective in parameters.objectives] == [
        "ttft_reduction.p50 >= 0.3",
        "cache_hit_rate >= 0.9",
    ]
    with pytest.raises(SuiteError, match="same variant"):
        build(Parameters, {"enabled": "x", "disabled": "x"})


def test_result_is_valid_and_complete(measured: tuple[ReplayedSUT, TestResult]) -> None:
    _, result = measured
    judged = validity(result.observations, Budget(), result.budgeted)
    assert judged.reasons == ()
    assert [table.id for table in result.tables] == ["prefix_cache", "prefix_cache_effect"]
    assert [row[0] for row in result.tables[0].rows] == ["Cache Disabled", "Cache (Cold)", "Cache (Warm)"]
    assert result.facts.value("sut.prefix_caching") == "enabled"
    assert result.facts.value("warmup.prefixes_populated") is True
