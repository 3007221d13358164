"""What complies and looks odd keeps its class: slow engines, noise, a short answer, even arrivals."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from complete_run import complete as complete_ttft
from complete_run import some
from level_mutations import columns_of
from mutations import Mutation, is_met, stating, together, with_columns
from replayed_runs import complete

from pytest_llmbench.compliance.audit import audit, load_catalogue, status_of
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.methodology.measuring.offered import growing_lag
from pytest_llmbench.metrics.balance import steadiness
from pytest_llmbench.metrics.latency import growth_limit_ns, lag_limit_ns
from pytest_llmbench.metrics.throughput import Window
from pytest_llmbench.model.judgement import ComplianceVerdict
from pytest_llmbench.model.observation import SelfCheck
from pytest_llmbench.model.plan import OpenLoop
from pytest_llmbench.model.record import TokenSource
from pytest_llmbench.model.records import TOKEN_SOURCES
from pytest_llmbench.workloads.dataset import DatasetIdentity, DatasetWorkload, Prompt

SLOW = "h100-8b?max_num_seqs=24&input_filter=enabled&output_filter=disabled&step_base_us="
SEARCHED: dict[str, Any] = {"min_rate": None, "max_rate": None, "rate_step": None, "arrival": "poisson"}


def keeps_from_unconditional(evidence: Evidence) -> list[str]:
    found = audit(evidence)
    return [entry.reason for entry in found.keeping_from(ComplianceVerdict.UNCONDITIONAL)]


@pytest.mark.parametrize(("step_us", "reply_s"), [(90_000, 12), (150_000, 20)])
@pytest.mark.parametrize(("test", "keywords"), [("throughput", SEARCHED), ("tradeoff", {})])
def test_an_engine_with_long_replies_can_comply(
    test: str, keywords: dict[str, Any], step_us: int, reply_s: int
) -> None:
    evidence = complete(test, engine=f"{SLOW}{step_us}", **keywords)
    records = evidence.runs[0].records
    assert np.mean((records.finished_ns - records.submitted_ns)[records.ok]) / 1e9 > 0.9 * reply_s
    assert keeps_from_unconditional(evidence) == []


def window(tokens_per_slice: np.ndarray) -> Window:
    """Ten requests of one chunk in each of the slices of 10 s; the chunk has the tokens."""
    slices, each = len(tokens_per_slice), 10
    at = np.arange(slices * each) * 1_000_000_000 + 500_000_000
    records = complete_ttft(requests=slices * each).records.select(np.arange(slices * each) >= 0)
    tokens = np.repeat(tokens_per_slice, each).astype(np.int64)
    columns = {
        "outcome": np.zeros_like(records.outcome),
        "submitted_ns": at - 1,
        "first_content_ns": at,
        "last_content_ns": at,
        "finished_ns": at,
        "output_tokens": tokens,
        "chunk_ns": at,
        "chunk_offsets": np.arange(len(at) + 1),
        "chunk_tokens": tokens,
    }
    return Window(dataclasses.replace(records, **columns), 0, slices * each * 1_000_000_000)


def test_noise_is_no_trend_and_a_trend_is_no_noise() -> None:
    noise = np.random.default_rng(5).lognormal(np.log(100), 0.6, 30)
    noisy, rising = steadiness(window(noise)), steadiness(window(np.linspace(60, 140, 30)))
    assert noisy is not None
    assert rising is not None
    assert abs(noisy.change) > 0.1
    assert noisy.level
    assert not rising.level


@pytest.mark.parametrize("rate", [1.0, 20.0, 500.0])
@pytest.mark.parametrize("first_ms", [0.02, 0.4, 3.0])
@pytest.mark.parametrize("last_ms", [0.1, 1.5, 2.4, 4.0, 9.0, 30.0])
def test_validity_and_audit_have_one_rule_for_a_growing_lag(
    rate: float, first_ms: float, last_ms: float
) -> None:
    """Validity's is held against the definition that the audit uses."""
    run = complete_ttft().runs[0]
    check = SelfCheck(
        send_lag_first_tenth_p50_ns=round(first_ms * 1e6), send_lag_last_tenth_p50_ns=round(last_ms * 1e6)
    )
    seen = dataclasses.replace(run, plan=run.plan.with_(load=OpenLoop(rate)), selfcheck=check)
    finding = growing_lag(seen)
    assert finding is not None
    assert finding.limit == pytest.approx(growth_limit_ns(first_ms * 1e6, rate) / 1e6)
    assert finding.ok is (last_ms * 1e6 <= growth_limit_ns(first_ms * 1e6, rate))
    assert lag_limit_ns(rate) == max(10e6, 1e8 / rate)


def lag_growing_by(lag_ns: int) -> Mutation:
    """Sends that are later and later, by so much in all."""
    requests = len(complete_ttft().records)
    grown = np.linspace(0, lag_ns, requests).astype(np.int64)
    return with_columns(scheduled_ns=lambda column: column - grown)


def test_a_lag_that_validity_lets_pass_does_not_cost_the_class() -> None:
    evidence = lag_growing_by(2_000_000)(complete_ttft())
    assert is_met("M-4.2.5-request-isolation", evidence)
    assert not is_met("M-4.2.5-request-isolation", lag_growing_by(8_000_000)(evidence))


def test_one_request_for_few_tokens_does_not_block_itl() -> None:
    entry = "M-5.4.2-min-50-output-tokens"

    def few(rows: int) -> Mutation:
        return columns_of("level", 2, requested_max_tokens=some(12, slice(0, rows)))

    assert is_met(entry, few(1)(complete("itl")))
    assert not is_met(entry, few(40)(complete("itl")))


def test_evenly_spaced_arrivals_are_no_coarse_clock() -> None:
    """In virtual time every request is sent 25 ms after the one before, to the nanosecond."""
    run = complete_ttft().runs[0]
    even = run.started_ns + np.arange(len(run.records)) * 25_000_000
    kept = with_columns(scheduled_ns=lambda _: even, submitted_ns=lambda _: even + 80_000)
    evidence = kept(complete_ttft())
    assert is_met("M-4.7.4-timestamp-precision", evidence)
    late = np.random.default_rng(1).integers(0, 20_000_000, len(even))
    coarse = with_columns(submitted_ns=lambda column: (column + late) // 5_000_000 * 5_000_000)(evidence)
    assert not is_met("M-4.7.4-timestamp-precision", coarse)
    stopped = with_columns(first_content_ns=lambda column: column // 25_000_000 * 25_000_000)(evidence)
    assert not is_met("M-4.7.4-timestamp-precision", stopped)


@pytest.mark.parametrize("ignore_eos", [True, False])
def test_tokens_behind_an_ignored_end_have_no_text_and_count(ignore_eos: bool) -> None:
    """Who asks for replies of full length gets what a model says behind its end, often nothing to read."""
    evidence = with_columns(unshown_tokens=lambda column: column * 0 + 10)(complete_ttft())
    (run,) = evidence.result.observations
    changed = dataclasses.replace(run, plan=dataclasses.replace(run.plan, ignore_eos=ignore_eos))
    result = dataclasses.replace(evidence.result, observations=(changed,))
    told = Evidence(result.test, result)
    assert is_met("M-4.4.2-counting-option", told) is ignore_eos


def from_cache(tokens: int) -> Mutation:
    return with_columns(cached_tokens=lambda column: column * 0 + tokens)


def test_a_chat_template_in_the_cache_is_no_prompt_of_the_workload() -> None:
    """A template of 200 tokens before prompts of 320 on average, always found in the cache."""
    entry = "M-4.3.1-prefix-sharing-spec"
    templated = with_columns(input_tokens=lambda column: column + 200)(complete_ttft())
    assert is_met(entry, from_cache(200)(templated))
    assert not is_met(entry, from_cache(310)(templated))


def test_a_data_set_says_how_often_its_prompts_are_sent() -> None:
    """Three prompts for ten thousand requests are stated as that; a cache that has them is no surprise."""
    prompts = tuple(Prompt(f"{'You answer in one word. ' * 4}Question {n}", 16) for n in (1, 2, 3))
    identity = DatasetIdentity("three", "1", "all")
    stated = DatasetWorkload("three", prompts, identity).specification()["prefix_sharing"]
    assert (stated["distinct_prompts"], stated["alike_fraction"]) == (3, 1.0)
    different = tuple(Prompt(f"{n}", 16) for n in (1, 2, 2))
    stated = DatasetWorkload("two", different, identity).specification()["prefix_sharing"]
    assert (stated["distinct_prompts"], stated["alike_fraction"]) == (2, 2 / 3)

    def of(slices: list[list[int]], distinct: int) -> str:
        facts = {
            "workload.prefix_sharing": {
                "fraction": 0,
                "length": {"type": "fixed"},
                "distinct_prompts": distinct,
            },
            "workload.slices": slices,
            "workload.n_requests": sum(count for _, count in slices),
            "warmup.requests_ok": 0,
        }
        evidence = together(stating(facts), from_cache(300))(complete_ttft())
        found = status_of(load_catalogue()["M-4.3.1-prefix-sharing-spec"], evidence)
        return f"{found.status}: {found.reason}"

    assert of([[0, 10_000]], 3) == (
        "met: 0 % of the requests share a prefix, 99.97 % of the requests send an entry of it again"
    )
    # Two parts draw half of the entries each, by themselves: a quarter of them is in both.
    assert "25 % of the requests send" in of([[0, 500], [0, 500]], 1_000)
    assert of([[0, 500]], 1_000).startswith("unmet: 0 % of the requests share a prefix, and ")


@pytest.mark.parametrize(("per_reference", "source", "met"), [
    (1.7, TokenSource.TOKENIZER_FILE, True),
    (2.1, TokenSource.TOKENIZER_FILE, False),
    (5.0, TokenSource.SERVER_USAGE, True),
])  # fmt: skip
def test_counts_by_a_file_are_evidence_as_far_as_a_vocabulary_can_be(
    per_reference: float, source: TokenSource, met: bool
) -> None:
    """A file that did not count is no reason against a server's counts."""
    stated = {"tokenizer.counting_option": "A", "tokenizer.tokens_per_reference": per_reference}
    sources = with_columns(token_source=lambda column: column * 0 + TOKEN_SOURCES.index(source))
    evidence = together(stating(stated), sources)(complete_ttft())
    assert is_met("M-4.4.2-counting-option", evidence) is met
