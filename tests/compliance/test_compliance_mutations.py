"""Every entry that counts can be broken alone: one mutation of a complete run for each.

A row names the situation it starts from, the entry it breaks, how, and which other entries rest on the same
evidence. Entries that sum up others (section 4.2, section 4.8) follow by rule.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field

import numpy as np
import pytest
from complete_run import CONCURRENCY, FAILED, REQUESTS, START_NS, complete, some
from mutations import (
    Mutation,
    able,
    alone,
    restated,
    stating,
    together,
    unable,
    unmet,
    with_columns,
    with_field,
    with_metric,
    with_plan,
    with_result,
    with_run,
    without,
    without_metrics,
    without_table,
)
from situations import SITUATIONS, TextWorkload, conversation_sibling

from pytest_llmbench.compliance.audit import DERIVED, applicable, audit, load_catalogue
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.model.judgement import ComplianceVerdict
from pytest_llmbench.model.plan import ClosedLoop, OpenLoop
from pytest_llmbench.model.record import Outcome, Phase, TokenSource
from pytest_llmbench.model.records import MISSING, OUTCOMES, PHASES, TOKEN_SOURCES, Records


@dataclass(frozen=True)
class Row:
    entry: str
    mutation: Mutation
    situation: str = "gateway"
    dependants: frozenset[str] = field(default_factory=frozenset)


def row(entry: str, mutation: Mutation, situation: str = "gateway", *dependants: str) -> Row:
    return Row(entry, mutation, situation, frozenset(dependants))


def one_request_too_many(evidence: Evidence) -> Evidence:
    failed = np.arange(REQUESTS) == FAILED.start
    records = Records.concatenate([evidence.records, evidence.records.select(failed)])
    return with_run(records=records)(evidence)


def warmed_up_all_the_same(evidence: Evidence) -> Evidence:
    (run,) = evidence.result.observations
    records = run.records.select(np.arange(REQUESTS) < 5)
    phase = np.full(5, PHASES.index(Phase.WARMUP), dtype=np.int8)
    warmup = dataclasses.replace(
        run, plan=run.plan.with_(phase=Phase.WARMUP), records=dataclasses.replace(records, phase=phase)
    )
    return with_result(observations=(warmup, run))(evidence)


def with_renamed_bucket(evidence: Evidence) -> Evidence:
    metrics = {name.replace("[256-512]", "[300-512]"): m for name, m in evidence.result.metrics.items()}
    return with_result(metrics=metrics)(evidence)


def only(requests: int) -> Mutation:
    return lambda _: complete(requests=requests, siblings=[conversation_sibling()])


def without_poisson_sibling(evidence: Evidence) -> Evidence:
    return dataclasses.replace(evidence, siblings=(conversation_sibling(),))


OTHER_TEXTS = TextWorkload("other", (130,), 100, dict)

GENERATOR = (
    row("M-4.2.1-timer-resolution-1ms", stating({"timing.clock_resolution_ns": 2_000_000})),
    row("M-4.2.2-streaming-support", unable("streaming", "replay.streaming")),
    row("M-4.2.2-per-chunk-arrival", with_columns(chunk_ns=some(1, slice(401, 402)))),
    row("M-4.2.3-open-loop", unable("open_loop"), "gateway", "M-4.2.5-request-isolation"),
    row("M-4.2.3-poisson", with_plan(load=OpenLoop(500.0))),
    row("S-4.2.3-uniform-bursty", unable("arrival.bursty")),
    row("M-4.2.4-closed-loop", with_plan(load=ClosedLoop(CONCURRENCY - 1)), "closed_loop"),
    row(
        "M-4.2.5-request-isolation",
        with_columns(scheduled_ns=lambda at: np.where(np.arange(REQUESTS) % 20 == 0, at - 20_000_000, at)),
    ),
    row("M-4.2.5-async-or-threads", unable("concurrency_model")),
)
RECORDS = (
    row("M-4.2.6-record-submit-time", with_columns(submitted_ns=some(MISSING, FAILED))),
    row(
        "M-4.2.6-record-first-token",
        together(
            with_columns(first_content_ns=some(MISSING), first_nonempty_ns=some(MISSING)),
            restated,
        ),
    ),
    row("M-4.2.6-record-subsequent-tokens", with_columns(output_tokens=some(7))),
    row("M-4.2.6-record-final-token", with_columns(last_content_ns=some(MISSING))),
    row(
        "M-4.2.6-record-input-count",
        with_columns(token_source=some(TOKEN_SOURCES.index(TokenSource.REFERENCE_TOKENIZER))),
    ),
    row("M-4.2.6-record-output-count", with_columns(output_tokens=some(MISSING))),
    row("M-4.2.6-record-status", with_columns(http_status=some(500))),
)
WORKLOAD = (
    row(
        "M-4.3-custom-fully-specified",
        without("workload.temperature"),
        "engine_custom_workload",
        "M-5.1.2.1-workload-defined",
    ),
    row("M-4.3.1-input-length-spec", with_field("workload.input_length", "tokenizer", None)),
    row("M-4.3.1-output-length-spec", with_field("workload.output_length", "control", "luck")),
    row("M-4.3.1-content-spec", with_field("workload.content", "domain", None)),
    row("M-4.3.1-prefix-sharing-spec", with_field("workload.prefix_sharing", "length", None)),
    row("M-4.3.2.1-synthetic-uniform-for-engine", alone, "engine_custom_workload", "S-7.2-vary-workloads"),
    row("S-4.3.2.3-conversation-for-gateway", alone, "gateway", "S-7.2-vary-workloads"),
    row(
        "M-4.3.3-deterministic-seed",
        with_plan(workload=OTHER_TEXTS),
        "gateway",
        "P-A.1-synthetic-uniform-params",
    ),
    row(
        "M-4.3.3-seed-reported",
        without("workload.seed"),
        "gateway",
        "M-4.3.3-deterministic-seed",
        "M-5.1.5.1-workload",
        "P-A.1-synthetic-uniform-params",
        "P-C.2-full-report",
        "S-4.3.3-publish-sequences",
        "S-7.2-vary-workloads",
    ),
    row("S-4.3.3-publish-sequences", without("workload.published")),
    row(
        "M-4.3.3-dataset-version",
        with_field("workload.dataset", "file_sha256", None),
        "conversation",
        "S-4.3.2.3-conversation-for-gateway",
        "S-4.3.3-publish-sequences",
    ),
    row("M-4.3.3-dataset-subset", with_field("workload.dataset", "subset_method", None), "conversation"),
    row(
        "M-4.3.3-dataset-preprocessing", with_field("workload.dataset", "preprocessing", None), "conversation"
    ),
    row("P-A.1-synthetic-uniform-params", stating({"workload.temperature": 0.7})),
    row("P-A.1.4-generation-order", unable("generation_order")),
    row(
        "P-A.3-conversation-params",
        with_field("workload.prefix_sharing", "realised_fraction", 0.6),
        "conversation",
    ),
    row(
        "P-A.4-code-completion-params",
        with_field("workload.prefix_sharing", "realised_by_rank", [800] * 10),
        "code_completion",
    ),
    row("P-A.5-long-context-params", with_columns(requested_max_tokens=some(128)), "long_context"),
)
TOKENIZER = (
    row("M-4.4.1-tokenizer-name-version", without("tokenizer.version")),
    row("M-4.4.1-vocab-size", stating({"tokenizer.vocab_size": 0})),
    row("M-4.4.1-tokenizer-source", without("tokenizer.source")),
    row("M-4.4.2-counting-option", without("tokenizer.reference")),
    row("M-4.4.3-bos-eos", stating({"tokenizer.special.bos_eos": "perhaps"})),
    row("M-4.4.3-system-prompt-tokens", without("tokenizer.special.system_prompt")),
    row("M-4.4.3-tool-format-tokens", without("tokenizer.special.tool_format")),
)
WARMUP = (
    row("M-4.5.1-model-loaded", stating({"warmup.model_loaded": False})),
    row(
        "M-4.5.1-warmup-volume",
        stating({"warmup.output_tokens": 9_999}),
    ),
    row("M-4.5.1-queue-drained", with_run(in_flight_at_start=1)),
    row("S-4.5.2-probe-before-after", without("warmup.probe_before_ms")),
    row("S-4.5.2-stabilised", stating({"warmup.probes_after_ms": [100.0, 100.0, 111.0]})),
    row("M-4.5.3-cold-start-no-warmup", warmed_up_all_the_same, "cold_start"),
    row(
        "M-4.5.3-cold-start-indicated",
        with_columns(model_load_ns=some(4_000_000_000)),
        "gateway",
        "M-4.5.1-model-loaded",
    ),
)
STREAMING = (
    row(
        "S-4.6.1-sse-for-gateway",
        together(able({"streaming": ("sse", "websocket")}), stating({"streaming.protocol": "websocket"})),
    ),
    row(
        "S-4.6.1-grpc-for-engine",
        stating(
            {
                "streaming.protocol": "sse",
                "timing.submit_point": "last_request_byte",
                "timing.first_point": "parsed_data_event",
            }
        ),
        "engine_over_grpc",
    ),
    row(
        "M-4.6.2-protocol-stated",
        without("streaming.protocol"),
        "gateway",
        "M-4.2.2-streaming-support",
        "S-4.6.1-sse-for-gateway",
    ),
    row("M-4.6.2-chunk-granularity", stating({"streaming.chunking": "varied"})),
    row("M-4.6.2-multi-token-handling", without("streaming.chunk_handling")),
)
CLOCK = (
    row("S-4.7.1-same-machine", stating({"clock.topology": "distributed"}), "engine_over_grpc"),
    row("M-4.7.2-sync-10ms", stating({"clock.accuracy_ms": 10.5})),
    row("S-4.7.2-ptp-sub-ms", stating({"clock.method": "other"}), "clocks_by_ptp"),
    row("M-4.7.2-sync-reported", without("clock.accuracy_ms"), "gateway", "M-4.7.2-sync-10ms"),
    row("S-4.7.3-rtt-reported", stating({"network.rtt_ms": {"p50": 2.0, "n": 3}})),
    row(
        "M-4.7.3-adjustment-documented",
        with_field("network.ttft_adjustment", "method", None),
        "network_time_subtracted",
    ),
    row("M-4.7.4-timestamp-precision", unable("timestamp_precision_ns")),
    row("S-4.7.4-timestamp-format", stating({"timing.timestamp_format": "rfc2822"})),
    row("P-B.1.1-submit-point", stating({"timing.submit_point": "first_request_byte"})),
    row("P-B.1.1-first-point", stating({"timing.first_point": "first_byte"})),
    row("P-B.1.2-grpc-points", stating({"timing.first_point": "first_byte"}), "engine_over_grpc"),
)
GUARDRAILS = (
    row(
        "M-4.8.1-input-filter",
        stating({"guardrails.input_filter": "unknown"}),
        "gateway",
        "M-5.1.5.1-guardrails",
    ),
    row("M-4.8.1-output-filter", without("guardrails.output_filter"), "gateway", "M-5.1.5.1-guardrails"),
    row("M-4.8.1-system-names", without("guardrails.systems")),
    row("M-4.8.1-refusals", stating({"guardrails.refusals": 3})),
    row("S-4.8.2-default-enabled", stating({"guardrails.default_config": False})),
    row("M-4.8.2-disabled-noted", without("guardrails.disabled_note"), "filter_disabled"),
    row("S-4.8.2-comparative-runs", without("guardrails.comparative_run")),
)
TTFT_SETUP = (
    row(
        "M-5.1.2.1-workload-defined",
        without("workload.standard"),
        "gateway",
        "O-4.3-custom-workload",
    ),
    row(
        "M-5.1.2.1-request-count-defined",
        one_request_too_many,
        "gateway",
        "M-4.3.3-deterministic-seed",
        "P-A.1-synthetic-uniform-params",
    ),
    row(
        "M-5.1.2.1-request-count-p99",
        only(900),
        "gateway",
        "P-5.1.4.3-sample-floor",
        "M-5.1.4.1-percentiles",  # of too few samples, and its ten failures are more than 1 %
    ),
    row(
        "M-5.1.2.1-request-count-p999",
        together(only(5_000), with_metric("ttft.p99_9", n=10_000)),
        "gateway",
        "P-5.1.4.3-sample-floor",
    ),
    row("M-5.1.2.2-load-model-defined", stating({"load.model": "ajar"}), "gateway", "M-5.1.5.1-load"),
    row("M-5.1.2.2-open-loop-params", without("load.burstiness"), "bursty"),
    row("M-5.1.2.2-closed-loop-params", stating({"load.concurrency": 0}), "closed_loop"),
    row("M-5.1.2.2-poisson-required", without_poisson_sibling, "bursty"),
    row("M-4.1-sut-boundary-declared", stating({"manifest.frozen_ns": 1 << 62})),
    row(
        "M-5.1.2.3-sut-configuration",
        without("sut.boundary"),
        "gateway",
        "M-4.1-sut-boundary-declared",
        "M-5.1.5.1-sut-boundary",
        "P-C.1-minimum-report",
    ),
    row("M-5.1.2.3-model-identifier", without("sut.model.version")),
    row("M-5.1.2.3-hardware", without("sut.hardware.accelerator_count")),
    row("M-5.1.2.3-prefix-caching", without("sut.prefix_caching"), "gateway", "M-5.1.5.1-prefix-caching"),
)
TTFT_MEASUREMENT = (
    row("P-5.1.3-ttft-formula", without_metrics("ttft.min"), "gateway", "P-5.1.4.1-mean-min-max"),
    row("P-5.1.3-run-to-count", with_run(interrupted="Ctrl-C")),
    row("P-5.1.3.1-first-content-token", stating({"timing.first_token_kind": "any"})),
    row("M-5.1.3.1-noncontent-noted", stating({"timing.noncontent_share": 0.0}), "reasoning"),
    row(
        "M-5.1.3.1-ttft-kind-stated",
        without("timing.first_token_kind"),
        "reasoning",
        "P-5.1.3.1-first-content-token",
    ),
    row("M-5.1.4.1-percentiles", with_metric("ttft.p90", point=None)),
    row("P-5.1.4.1-mean-min-max", without_metrics("ttft.mean")),
    row("P-5.1.4.2-by-input-length", without_metrics("ttft[256-512].p95")),
    row("S-5.1.4.2-buckets", with_renamed_bucket),
    row(
        "P-5.1.4.3-sample-floor",
        together(with_columns(outcome=some(OUTCOMES.index(Outcome.TIMEOUT), slice(100, 200))), restated),
        "gateway",
        "M-5.1.4.1-percentiles",  # more than 1 % failed
    ),
    row("M-5.1.4.3-sample-count-stated", with_metric("ttft.p50", n=0), "gateway", "M-5.1.4.1-percentiles"),
)
TTFT_REPORT = (
    row("M-5.1.5.1-count-duration", with_run(ended_ns=START_NS), "gateway"),
    row("S-5.1.5.2-tabular", without_table("ttft_results")),
    row("M-5.1.5.3-input-length-table", without_table("ttft_by_input_length")),
    row("S-5.1.5.4-distribution-plot", with_result(plots=())),
)
ROWS = (
    *GENERATOR,
    *RECORDS,
    *WORKLOAD,
    *TOKENIZER,
    *WARMUP,
    *STREAMING,
    *CLOCK,
    *GUARDRAILS,
    *TTFT_SETUP,
    *TTFT_MEASUREMENT,
    *TTFT_REPORT,
)

NO_SITUATION = {
    "P-A.2-synthetic-skewed-params",  # the workload of the fairness test: broken in its run
    # By facts that other entries ask for too, in whose rows they are dependants.
    "M-5.1.5.1-sut-boundary",
    "M-5.1.5.1-model-hardware",
    "M-5.1.5.1-workload",
    "M-5.1.5.1-load",
    "M-5.1.5.1-warmup",
    "M-5.1.5.1-prefix-caching",
    "M-5.1.5.1-guardrails",
}


def summing_up(entries: frozenset[str]) -> set[str]:
    catalogue = load_catalogue()
    return {
        whole for whole, has_part in DERIVED.items() if any(has_part(catalogue[entry]) for entry in entries)
    }


@pytest.mark.parametrize("case", ROWS, ids=lambda case: case.entry)
def test_mutation_breaks_its_entry_alone(case: Row) -> None:
    base = SITUATIONS[case.situation]()
    broken = audit(case.mutation(base))
    expected = {case.entry} | case.dependants
    assert unmet(broken) - unmet(audit(base)) == expected | summing_up(frozenset(expected))
    assert broken.verdict is verdict_without(expected, literal=False)
    assert broken.verdict_literal is verdict_without(expected, literal=True)


def verdict_without(entries: set[str], *, literal: bool) -> ComplianceVerdict:
    catalogue = load_catalogue()
    effects = {
        catalogue[entry].verdict_effect
        for entry in entries
        if catalogue[entry].counts_as != "none" or not literal
    }
    if "blocks" in effects:
        return ComplianceVerdict.NOT_COMPLIANT
    return ComplianceVerdict.CONDITIONAL if "downgrades" in effects else ComplianceVerdict.UNCONDITIONAL


def test_every_entry_that_counts_has_a_row() -> None:
    counting = {entry.id for entry in applicable("ttft") if entry.verdict_effect != "none"}
    assert {case.entry for case in ROWS} == counting - DERIVED.keys() - NO_SITUATION
