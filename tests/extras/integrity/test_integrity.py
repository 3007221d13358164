"""The audit against gaming: planted cheats are found, honest engines are not accused."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from plugin_suite import Suite
from replayed_sut import ReplayedSUT

from pytest_llmbench.__main__ import main
from pytest_llmbench.compare.gate import gate
from pytest_llmbench.errors import SuiteError
from pytest_llmbench.extras.integrity import procedure
from pytest_llmbench.extras.integrity.checks import (
    CHECKS,
    LOADED,
    NEW,
    PUBLISHED,
    REPEATED,
    AuditPrompts,
    replies_of,
)
from pytest_llmbench.methodology.advice import advised
from pytest_llmbench.methodology.error_budget import Budget
from pytest_llmbench.methodology.measuring.validity import validity_of
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.model.judgement import GateVerdict
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.record import Phase
from pytest_llmbench.model.result import TestResult
from pytest_llmbench.workloads.catalogue import workload
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM


def measured(scenario: str = "fast", change: Any = lambda seen: seen, **given: Any) -> TestResult:
    return ReplayedSUT(scenario, change=change).measure(procedure.TEST, "quick", **given)


def found(result: TestResult) -> set[str]:
    """The checks that accuse."""
    return {finding.check for finding in result.findings if not finding.ok}


def verdict(result: TestResult) -> GateVerdict:
    return gate(result.objectives, result.metrics).verdict


@pytest.mark.parametrize(
    ("cheat", "finding"),
    [
        ("response_cache=on", {"repeated_tpot", "repeated_ttft"}),
        ("response_cache=on&prefix_caching=on", {"repeated_tpot"}),
        ("known_prompts=1000", {"published_tpot", "published_ttft"}),
        ("canned_first_token=on", {"canned_first_token"}),
        ("short_replies_above=4", {"length_under_load"}),
        ("smaller_model_above=4", {"text_under_load"}),
    ],
)
def test_each_cheat_is_found_and_nothing_else(cheat: str, finding: set[str]) -> None:
    result = measured(f"fast?{cheat}")
    assert found(result) == finding
    assert verdict(result) is GateVerdict.FAIL
    assert all("the margin is" in each.message for each in result.findings if not each.ok)


@pytest.mark.parametrize(
    "scenario",
    ["fast", "h100-8b", "fast?prefix_caching=on", "fast?tokens_per_chunk=4", "cpu-laptop"],
)
def test_an_honest_engine_passes(scenario: str) -> None:
    result = measured(scenario)
    assert found(result) == set()
    assert verdict(result) is GateVerdict.PASS
    cached = "prefix_caching" in scenario
    assert [note.id for note in result.notes].count("ttft_not_judged") == cached
    assert {finding.check for finding in result.findings} == {
        check.name for check in CHECKS if not (cached and check.cache_helps)
    }


@pytest.mark.parametrize(
    "scenario", ["fast?think_mean_tokens=20", "fast?speculative_tokens=3", "fast?max_num_seqs=2"]
)
def test_an_odd_engine_is_not_accused(scenario: str) -> None:
    assert found(measured(scenario)) == set()


def test_an_engine_whose_replies_differ_by_chance_is_undecided_and_told_what_it_may_take() -> None:
    # Its lengths are drawn anew for each reply, so half of them say something else the second time.
    result = measured("fast?eos_mean_tokens=60")
    assert found(result) == set()
    asked = procedure.Parameters()
    judged = advised(gate(result.objectives, result.metrics), result, asked, "standard")
    assert judged.verdict is GateVerdict.INCONCLUSIVE
    advice = next(each.advice for each in judged.objectives if each.advice is not None)
    assert advice.unit == "prompts"
    assert advice.now == 44
    # Half of a standard error from the limit: beyond 64 times the prompts no number is known to decide.
    assert (advice.total, advice.more_than) == (64 * 44, True)


def test_a_swap_to_another_model_is_told_from_replies_that_differ_by_chance() -> None:
    def changed(share: float, label: str) -> Any:
        """Other first words for a share of the replies of one label."""

        def change(seen: Observation) -> Observation:
            if seen.plan.phase is not Phase.MEASURE:
                return seen
            mine = [each == label for each in seen.records.class_label]
            draw = np.random.default_rng(1).random(len(mine))
            told = [
                f"{check[:-18]} {'0' * 8} {check[-8:]}" if own and luck < share and check else check
                for check, own, luck in zip(seen.records.answer_check, mine, draw, strict=True)
            ]
            columns = {name: getattr(seen.records, name) for name in seen.records.__dataclass_fields__}
            return replace(seen, records=type(seen.records)(**{**columns, "answer_check": told}))

        return change

    assert found(measured(change=changed(0.5, LOADED))) == {"text_under_load"}
    # As many differ alone: not the load changes them.
    alone = changed(0.5, REPEATED)
    assert found(measured(change=lambda seen: alone(changed(0.5, LOADED)(seen)))) == set()
    # Batching changes a few.
    assert found(measured(change=changed(0.05, LOADED))) == set()


def test_prompts_are_new_then_repeated_and_published_ones_have_their_lengths() -> None:
    prompts = AuditPrompts(SYNTHETIC_UNIFORM, 42, 7, 30, "alone")
    places = prompts.places(1)
    asked = dict(zip(places, prompts.requests(90, 1), strict=True))
    published = SYNTHETIC_UNIFORM.requests(30, 42)
    for number in range(30):
        new, again, known = (asked[label, number] for label in (NEW, REPEATED, PUBLISHED))
        assert places.index((NEW, number)) < places.index((REPEATED, number))
        assert new.token_ids == again.token_ids != known.token_ids
        assert known.token_ids == published[number].token_ids
        assert new.input_tokens == known.input_tokens
    assert places != sorted(places)
    loaded = AuditPrompts(SYNTHETIC_UNIFORM, 42, 7, 30, "loaded")
    under_load = dict(zip(loaded.places(1), loaded.requests(30, 1), strict=True))
    assert all(under_load[LOADED, n].token_ids == asked[NEW, n].token_ids for n in range(30))


def test_prompts_that_have_no_other_words_get_a_mark_ahead() -> None:
    prompts = AuditPrompts(workload("arithmetic"), 42, 7, 5, "alone")
    asked = dict(zip(prompts.places(1), prompts.requests(15, 1), strict=True))
    for number in range(5):
        new, known = asked[NEW, number].text, asked[PUBLISHED, number].text
        assert new is not None
        assert known is not None
        assert new != known
        assert new.endswith(known)


def test_a_load_that_is_cut_short_gives_no_figure_of_it() -> None:
    def change(seen: Observation) -> Observation:
        return replace(seen, interrupted="Ctrl-C") if seen.plan.label == "alone" else seen

    result = measured(change=change)
    assert len(result.observations) == 1
    assert result.metrics["changed_under_load"].point is None
    assert verdict(result) is GateVerdict.INCONCLUSIVE
    assert validity_of(result, Budget(0.01)).reasons


def test_replies_that_failed_are_in_no_comparison() -> None:
    result = measured("fast?fault=http_error&fault_rate=0.3&fault_from=60")
    replies = replies_of(result.observations)
    assert 0 < len(replies[NEW]) < 44
    assert result.metrics["repeated_tpot_ratio"].n < 44
    assert found(result) == set()


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"compliance": "conditional"}, "not part of the draft"),
        ({"margin": 1.0}, "margin is 1: give a share above 0 and below 1"),
        ({"concurrency": 1}, "two requests in flight or more"),
        ({"prompts": 19}, "text_margin 0.2 needs at least 20 prompts to be decided, there are 19"),
        ({"text_margin": 0.02}, "needs at least 217 prompts"),
    ],
)
def test_mistakes_are_told_before_anything_is_asked(given: dict[str, Any], complaint: str) -> None:
    with pytest.raises(SuiteError) as refused:
        build(procedure.Parameters, given, test="integrity", counted=True)
    assert complaint in str(refused.value)


def test_a_load_that_is_measured_again_has_new_prompts() -> None:
    asked = procedure.Parameters()
    setting = ReplayedSUT().setting(asked.workload, "quick")
    first, second = (procedure._words(asked, setting, attempt) for attempt in (1, 2))
    assert first != second


def test_through_pytest_and_computed_again(suite: Suite) -> None:
    suite.write(
        """

        @llmbench.integrity()
        def test_integrity(llm_result):
            assert llm_result.metrics["repeated_tpot_ratio"].n == 44

        @llmbench.job(prompts=20)
        def test_job(llm_result): ...
        """
    )
    result = suite.measure("replay:fast?known_prompts=100")
    result.assert_outcomes(passed=1, failed=1)
    result.stdout.fnmatch_lines(["*FAIL published_tpot_ratio >= 80 %*", "*the system knows the*"])
    assert main(["recompute", str(suite.path / "out")]) == 0
