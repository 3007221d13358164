"""What a prefix cache is worth to sessions, by turn: by an engine whose prefill has a known price, and by
servers that say something else."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from canned_levels import are_in_the_catalogue
from replayed_sut import ReplayedSUT

from pytest_llmbench.compliance.audit import audit
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.sections.prefix_cache import TEST, Parameters
from pytest_llmbench.model.estimate import Reason
from pytest_llmbench.model.judgement import ValidityVerdict
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import SessionSlots, SessionStarts
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.records import MISSING
from pytest_llmbench.model.result import TestResult

OF_BLOCKS: Any = {"turns": 4, "input_tokens": 160, "output_tokens": 32}
"""All prompts end with a block of the cache: turn n has 160 n + 32 (n - 1) tokens."""
TALK: Any = {"sessions": OF_BLOCKS}
HEADED: Any = {"sessions": {**OF_BLOCKS, "system_tokens": 512}}
VARIED: Any = {
    "sessions": {
        "turns": (2, 5),
        "input_tokens": (50, 400),
        "output_tokens": (20, 60),
        "pause_s": (0.1, 0.5),
        "system_tokens": 512,
    }
}
# Prefill costs 10 µs per token and nothing else: the TTFT of one at a time is known.
KNOWN = "fast?prefill_us_per_token=10&step_base_us=1000&kv_us_per_token=0&attention_ns_per_pair=0"


@pytest.fixture(scope="module")
def varied() -> tuple[ReplayedSUT, TestResult]:
    sut = ReplayedSUT()
    return sut, sut.measure(TEST, workload=VARIED, total_sessions=100)


def point(result: TestResult, name: str) -> float:
    found = result.metrics[name].point
    assert found is not None, name
    return found


def test_each_turn_is_spared_the_prefill_of_its_history() -> None:
    result = ReplayedSUT(KNOWN).measure(TEST, workload=TALK, sessions=1, total_sessions=40)
    ms_without = {n: 160 * n + 32 * (n - 1) for n in range(1, 5)}
    kept = {1: 0, **{n: ms_without[n - 1] for n in range(2, 5)}}
    for n in range(2, 5):
        row = next(row for row in result.tables[2].rows if row[0] == str(n))
        off, on = (float(cell.removesuffix(" ms")) for cell in row[6:8])
        assert off - on == pytest.approx(kept[n] / 100, abs=0.06), n
    tokens, cacheable = sum(ms_without.values()), sum(kept.values())
    later = tokens - ms_without[1]
    assert point(result, "turn_cached_share[1]") == 0.0
    assert result.metrics["turn_cache_hit_rate[1]"].point is None
    assert point(result, "turn_cached_share[2+]") == pytest.approx(cacheable / later)
    assert point(result, "turn_cacheable_share[2+]") == pytest.approx(cacheable / later)
    assert point(result, "turn_cache_hit_rate[2+]") == 1.0
    assert point(result, "cached_input_share") == pytest.approx(cacheable / tokens)
    assert point(result, "turn_ttft_reduction[1].p50") == pytest.approx(0.0, abs=1e-3)
    assert point(result, "turn_ttft_reduction[2+].p50") > 0.5


def test_the_same_sessions_off_empty_and_filled(varied: tuple[ReplayedSUT, TestResult]) -> None:
    sut, result = varied
    measured = [plan for plan in sut.plans if plan.phase is Phase.MEASURE]
    assert [(plan.label, plan.variant, plan.load) for plan in measured] == [
        ("cache disabled", "cache_disabled", SessionSlots(8)),
        ("cache cold", "cache_enabled", SessionSlots(8)),
        ("cache warm", "cache_enabled", SessionSlots(8)),
    ]
    assert len({run.sequence_sha256 for run in result.observations}) == 1
    (filled,) = (plan for plan in sut.plans if plan.label == "populate")
    (head,) = filled.workload.requests(filled.requests, filled.seed)
    # The beginning that all sessions share, and nothing of what one of them said.
    assert (head.input_tokens, head.turn) == (512, None)
    assert validity(result.observations, Budget()).verdict is ValidityVerdict.VALID
    assert all(finding.ok for finding in result.findings)


def test_first_turns_find_the_shared_beginning_and_later_ones_their_history(
    varied: tuple[ReplayedSUT, TestResult],
) -> None:
    _, result = varied
    warm = result.observations[-1].records
    first = warm.select(warm.turn == 1)
    assert set(first.cached_tokens.tolist()) == {512}
    for turns in ("1", "2+"):
        most = point(result, f"turn_cacheable_share[{turns}]")
        had = point(result, f"turn_cached_share[{turns}]")
        # A block is cached as a whole, so less than one of 16 tokens per prompt is missing.
        assert most - 16 / 500 < had <= most
    rate = result.metrics["turn_cache_hit_rate[2+]"]
    assert rate.lower is not None
    assert rate.lower > 0.98
    later = result.metrics["turn_ttft_reduction[2+].p50"]
    assert later.lower is not None
    assert later.lower > 0.5
    assert "whole sessions" in later.method
    assert rate.n == 100
    assert are_in_the_catalogue(result.metrics)


def test_table_and_plots_by_turn(varied: tuple[ReplayedSUT, TestResult]) -> None:
    _, result = varied
    assert [table.id for table in result.tables] == [
        "prefix_cache", "prefix_cache_effect", "prefix_cache_by_turn",
    ]  # fmt: skip
    by_turn = result.tables[2]
    assert [row[0] for row in by_turn.rows] == ["1", "2+", "2", "3", "4", "5"]
    assert by_turn.rows[0][1] == "100"
    assert "[" in by_turn.rows[1][4]
    times, shares = result.plots[:2]
    assert set(times.series) == {"cache off", "cache on"}
    assert set(shares.series) == {"could be cached", "cached"}
    assert shares.series["cached"][0] == (1.0, 2.0, 3.0, 4.0, 5.0)
    assert any("the workload has sessions" in note for note in map(str, result.notes))


def served_otherwise(cached: Any) -> ReplayedSUT:
    """A server that says of the run with a filled cache what ``cached`` makes of its records."""

    def change(seen: Observation) -> Observation:
        if seen.plan.label != "cache warm":
            return seen
        said = np.asarray(cached(seen.records))
        return replace(seen, records=replace(seen.records, cached_tokens=said), engine=None)

    return ReplayedSUT(change=change)


def test_a_cache_that_kept_half_of_what_it_could() -> None:
    sut = served_otherwise(lambda records: records.shared_prefix_tokens // 2)
    result = sut.measure(TEST, workload=HEADED, min_turn_hit_rate={"1": 0.4, "2+": 0.6})
    assert point(result, "turn_cache_hit_rate[1]") == 0.5
    assert point(result, "turn_cache_hit_rate[2+]") == 0.5
    assert point(result, "cache_hit_rate") == 0.5


def test_a_server_that_tells_no_cached_tokens_is_not_measurable() -> None:
    result = served_otherwise(lambda records: np.full(len(records), MISSING)).measure(TEST, workload=HEADED)
    for name in ("turn_cached_share[2+]", "turn_cache_hit_rate[2+]", "cache_hit_rate", "cached_input_share"):
        assert result.metrics[name].point is None
        assert result.metrics[name].reason is Reason.NOT_MEASURABLE
    # What could be cached is known, and so is what the cache saved.
    assert point(result, "turn_cacheable_share[2+]") > 0.8
    assert point(result, "turn_ttft_reduction[2+].p50") > 0.2
    assert {row[4].partition(":")[0] for row in result.tables[2].rows} == {"not measurable"}
    assert set(result.plots[1].series) == {"could be cached"}
    states = [each for each in result.findings if each.check.startswith("cache_")]
    assert [finding.voids for finding in states] == [True, True, False]


def test_sessions_without_a_common_beginning_have_no_cold_run() -> None:
    sut = ReplayedSUT()
    result = sut.measure(TEST, workload=TALK, total_sessions=30)
    assert [level.role for level in result.levels] == ["disabled", "warm"]
    assert any("the sessions share no prefix" in note for note in map(str, result.notes))
    assert not any(plan.label == "populate" for plan in sut.plans)
    assert "ttft_reduction[cold].p50" not in result.metrics


def test_in_an_open_loop_sessions_start_by_a_rate() -> None:
    result = ReplayedSUT().measure(TEST, workload=HEADED, rate=5.0, total_sessions=40)
    assert {run.plan.load for run in result.observations} == {SessionStarts(5.0)}
    assert result.metrics["throughput_improvement"].reason is Reason.NOT_MEASURABLE


@pytest.mark.slow
def test_clauses_about_requests_are_not_met() -> None:
    found = audit(Evidence("prefix_cache", ReplayedSUT().measure(TEST, "full", workload=HEADED)))
    told = {each.id: each for each in found.requirements}
    for clause in (
        "P-5.7.2-prefix-parameters",
        "P-5.7.3-identical-workload",
        "P-5.7.4-throughput-gain",
    ):
        assert str(told[clause].status) == "unmet"
        assert "turns of sessions" in told[clause].reason
    # The arithmetic is the draft's.
    for clause in ("P-5.7.4-ttft-both", "P-5.7.4-reduction", "P-5.7.4-hit-rate"):
        assert str(told[clause].status) == "met", told[clause].reason
    assert str(found.verdict) == "not_compliant"


def test_limits_become_objectives() -> None:
    keywords = {"min_turn_hit_rate": {"2+": 0.9}, "min_turn_ttft_reduction": {3: 0.2}}
    parameters = build(Parameters, {"workload": TALK, **keywords})
    assert [str(objective) for objective in parameters.objectives] == [
        "turn_cache_hit_rate[2+] >= 0.9",
        "turn_ttft_reduction[3].p50 >= 0.2",
    ]
    assert [str(each) for each in parameters.classes] == ["1", "2+", "3"]


@pytest.mark.parametrize(
    ("keywords", "told"),
    [
        ({"concurrency": 4}, "concurrency applies to requests: give sessions"),
        ({"requests": 40}, "requests applies to requests: give total_sessions"),
        ({"rate": 2.0, "sessions": 4}, r"rate \(open loop\) and sessions \(closed loop\) exclude"),
        ({"arrival": "trace"}, "arrival='trace' does not apply to sessions here"),
        ({"burstiness": 2.0}, "burstiness needs rate"),
        ({"min_turn_hit_rate": {"2-": 0.5}}, "must be given as"),
        ({"min_turn_hit_rate": {2: 1.5}}, "must lie between 0 and 1"),
        ({"workload": "synthetic-uniform", "sessions": 4}, "sessions applies to sessions"),
        (
            {"workload": "synthetic-uniform", "min_turn_hit_rate": {2: 0.5}},
            "min_turn_hit_rate applies to sessions",
        ),
    ],
)
def test_mistakes(keywords: dict[str, Any], told: str) -> None:
    with pytest.raises(SuiteError, match=told):
        build(Parameters, {"workload": TALK} | keywords)


def test_sessions_of_one_turn_and_sessions_that_are_too_long_are_refused_before_anything_is_sent() -> None:
    sut = ReplayedSUT()
    parameters = build(Parameters, {"workload": {"sessions": {**OF_BLOCKS, "turns": 1}}})
    (missing,) = TEST.needs(parameters, sut.setting(parameters.workload))
    assert "has a second turn, so there is no history to cache" in missing
    parameters = build(Parameters, {"workload": {"sessions": {**OF_BLOCKS, "own_tokens": 400_000}}})
    (missing,) = TEST.needs(parameters, sut.setting(parameters.workload))
    assert "a model with a longer context" in missing
    assert not TEST.needs(build(Parameters, {"workload": TALK}), sut.setting(TALK))
