"""How each entry that binds every test is broken, whatever the test: entry → mutation of its complete run."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from complete_run import some
from mutations import (
    Mutation,
    alone,
    stating,
    together,
    unable,
    with_columns,
    with_field,
    with_plan,
    without,
)

from pytest_llmbench.model.plan import ClosedLoop
from pytest_llmbench.model.record import TokenSource
from pytest_llmbench.model.records import MISSING, TOKEN_SOURCES

FEW = slice(5, 8)
"""Rows of the largest run, which has at least twenty."""
FAR_FUTURE_NS = 1 << 62

SHARED: Mapping[str, Mutation] = MappingProxyType(
    {
        "M-4.1-sut-boundary-declared": stating({"manifest.frozen_ns": FAR_FUTURE_NS}),
        "M-4.2.1-timer-resolution-1ms": stating({"timing.clock_resolution_ns": 2_000_000}),
        "M-4.2.2-streaming-support": unable("streaming", "replay.streaming"),
        "M-4.2.2-per-chunk-arrival": with_columns(chunk_ns=some(1, slice(3, 4))),
        "M-4.2.3-open-loop": unable("open_loop"),
        "M-4.2.3-poisson": unable("arrival.poisson"),
        "S-4.2.3-uniform-bursty": unable("arrival.bursty"),
        "M-4.2.4-closed-loop": with_plan(load=ClosedLoop(0)),
        "M-4.2.5-request-isolation": unable("open_loop"),
        "M-4.2.5-async-or-threads": unable("concurrency_model"),
        "M-4.2.6-record-submit-time": with_columns(submitted_ns=some(MISSING, FEW)),
        "M-4.2.6-record-first-token": with_columns(first_content_ns=some(MISSING, FEW)),
        "M-4.2.6-record-subsequent-tokens": with_columns(output_tokens=some(7_777, FEW)),
        "M-4.2.6-record-final-token": with_columns(last_content_ns=some(MISSING, FEW)),
        "M-4.2.6-record-input-count": with_columns(
            token_source=some(TOKEN_SOURCES.index(TokenSource.REFERENCE_TOKENIZER), FEW)
        ),
        "M-4.2.6-record-output-count": with_columns(output_tokens=some(MISSING, FEW)),
        "M-4.2.6-record-status": with_columns(http_status=some(500, FEW)),
        "M-4.3.1-input-length-spec": with_field("workload.input_length", "tokenizer", None),
        "M-4.3.1-output-length-spec": with_field("workload.output_length", "control", "luck"),
        "M-4.3.1-content-spec": with_field("workload.content", "domain", None),
        "M-4.3.1-prefix-sharing-spec": with_field("workload.prefix_sharing", "length", None),
        "M-4.3.3-deterministic-seed": stating({"workload.sequence_sha256": "0" * 64}),
        "M-4.3.3-seed-reported": without("workload.seed"),
        "S-4.3.3-publish-sequences": without("workload.published"),
        "M-4.3.3-dataset-version": with_field("workload.dataset", "file_sha256", None),
        "M-4.3.3-dataset-subset": with_field("workload.dataset", "subset_method", None),
        "M-4.3.3-dataset-preprocessing": with_field("workload.dataset", "preprocessing", None),
        "P-A.1-synthetic-uniform-params": stating({"workload.temperature": 0.7}),
        "P-A.1.4-generation-order": unable("generation_order"),
        "P-A.2-synthetic-skewed-params": stating({"workload.stop": ["\n"]}),
        "P-A.3-conversation-params": with_field("workload.prefix_sharing", "realised_fraction", 0.6),
        "P-A.4-code-completion-params": with_field("workload.prefix_sharing", "realised_by_rank", [800] * 10),
        "P-A.5-long-context-params": with_columns(requested_max_tokens=some(128, FEW)),
        "M-4.4.1-tokenizer-name-version": without("tokenizer.version"),
        "M-4.4.1-vocab-size": stating({"tokenizer.vocab_size": 0}),
        "M-4.4.1-tokenizer-source": without("tokenizer.source"),
        "M-4.4.2-counting-option": stating({"tokenizer.counting_option": "C"}),
        "M-4.4.3-bos-eos": stating({"tokenizer.special.bos_eos": "perhaps"}),
        "M-4.4.3-system-prompt-tokens": without("tokenizer.special.system_prompt"),
        "M-4.4.3-tool-format-tokens": without("tokenizer.special.tool_format"),
        "M-4.5.1-model-loaded": stating({"warmup.model_loaded": False}),
        "M-4.5.1-warmup-volume": stating({"warmup.requests_ok": 99}),
        "M-4.5.1-queue-drained": stating({"warmup.drained": False}),
        "S-4.5.2-probe-before-after": without("warmup.probe_before_ms"),
        "S-4.5.2-stabilised": stating({"warmup.probes_after_ms": [90.0, 100.0, 130.0]}),
        "S-4.6.1-sse-for-gateway": stating({"streaming.protocol": "websocket"}),
        "M-4.6.2-protocol-stated": without("streaming.protocol"),
        "M-4.6.2-chunk-granularity": stating({"streaming.chunking": "varied"}),
        "M-4.6.2-multi-token-handling": without("streaming.chunk_handling"),
        "M-4.7.2-sync-10ms": stating({"clock.accuracy_ms": 10.5}),
        "M-4.7.2-sync-reported": without("clock.accuracy_ms"),
        "S-4.7.3-rtt-reported": stating({"network.rtt_ms": {"p50": 2.0, "n": 3}}),
        "M-4.7.4-timestamp-precision": unable("timestamp_precision_ns"),
        "S-4.7.4-timestamp-format": stating({"timing.timestamp_format": "rfc2822"}),
        "P-B.1.1-submit-point": stating({"timing.submit_point": "first_request_byte"}),
        "P-B.1.1-first-point": stating({"timing.first_point": "first_byte"}),
        "M-4.8.1-input-filter": stating({"guardrails.input_filter": "unknown"}),
        "M-4.8.1-output-filter": without("guardrails.output_filter"),
        "M-4.8.1-system-names": without("guardrails.systems"),
        "M-4.8.1-refusals": stating({"guardrails.refusals": 3}),
        "S-4.8.2-default-enabled": stating({"guardrails.default_config": False}),
        "M-4.8.2-disabled-noted": without("guardrails.disabled_note"),
        "S-4.8.2-comparative-runs": together(alone, without("guardrails.comparative_run")),
    }
)

SITUATIONAL = frozenset(
    {
        "M-4.3-custom-fully-specified",
        "M-4.5.3-cold-start-no-warmup",
        "M-4.5.3-cold-start-indicated",
        "S-4.6.1-grpc-for-engine",
        "S-4.7.1-same-machine",
        "S-4.7.2-ptp-sub-ms",
        "M-4.7.3-adjustment-documented",
        "P-B.1.2-grpc-points",
    }
)
"""Entries whose condition no complete run here fulfils: broken in the situations of the TTFT test."""
