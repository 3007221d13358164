"""Every fact that the audit reads: dotted key → what it states. Predicates may use no other.

The keys are the names of the evidence vocabulary in ``requirements.yaml`` without the leading ``manifest.``.
A key that is absent is "no evidence"; the strings ``""``, ``unknown`` and ``not declared`` count as absent.
All values are JSON values.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

_SUT = {
    "sut.boundary": "model_engine, application_gateway, compound_system; or custom with sut.components",
    "sut.components": "list of what lies inside the boundary; needed for a custom one",
    "sut.model.name": "model identifier",
    "sut.model.version": "version or revision of the model",
    "sut.model.quantization": "quantization scheme, `none` for an unquantised model",
    "sut.hardware.disclosed": "false where the operator does not say what the SUT runs on (AMB-27)",
    "sut.hardware.accelerator_type": "such as `NVIDIA H100 SXM`; `cpu`, `none`, `undisclosed`",
    "sut.hardware.accelerator_count": "number of accelerators, 0 only with type cpu or none",
    "sut.hardware.accelerator_memory_gib": "memory of one accelerator in GiB",
    "sut.software.engine": "serving software",
    "sut.software.version": "its version",
    "sut.prefix_caching": "enabled or disabled",
}
_WORKLOAD = {
    "workload.name": "name as in METHODOLOGY §4.2, or that of a custom workload",
    "workload.standard": "true for a reference workload",
    "workload.seed": "seed of the request sequence, an integer",
    "workload.n_requests": "requests that were to be measured, over all runs",
    "workload.input_length": "mapping: type, params, unit, tokenizer",
    "workload.output_length": "mapping: type, params, unit, tokenizer, control (max_tokens, stop or both)",
    "workload.content": "mapping: domain, language, system_prompt {present, typical_tokens}; question_tokens "
    "for long-context",
    "workload.prefix_sharing": "mapping: fraction, length; where prefixes are shared also "
    "realised_fraction, contexts (lengths in tokens) and realised_by_rank (requests per context)",
    "workload.temperature": "sampling temperature",
    "workload.stop": "list of stop sequences, empty for none",
    "workload.dataset": "mapping: name, version, file_sha256, subset, subset_method, preprocessing (list)",
    "workload.sequence_sha256": "digest of the planned requests in the format of METHODOLOGY §4.3",
    "workload.published": "`sequence` (written as an artifact) or `generator` (code, seed and parameters)",
}
_LOAD = {
    "load.model": "open or closed",
    "load.arrival": "poisson, uniform or bursty (open loop)",
    "load.rate_rps": "requests per second (open loop)",
    "load.burstiness": "shape of the gamma gaps (bursty arrivals)",
    "load.concurrency": "requests in flight (closed loop)",
}
_TOKENIZER = {
    "tokenizer.name": "tokenizer that the counts refer to",
    "tokenizer.version": "its version",
    "tokenizer.vocab_size": "number of ids",
    "tokenizer.source": "model-hub id, tiktoken name or `custom`",
    "tokenizer.counting_option": "A native or B reference (METHODOLOGY §5)",
    "tokenizer.reference": "name of the common tokenizer, with option B",
    "tokenizer.special.bos_eos": "included or excluded",
    "tokenizer.special.system_prompt": "separate, included or none",
    "tokenizer.special.tool_format": "included, excluded or not_used",
}
_STREAMING = {
    "streaming.protocol": "sse, websocket or grpc",
    "streaming.chunking": "single (every chunk is one token) or multi",
    "streaming.single_token_share": "share of content chunks of one token, where chunk tokens are known",
    "streaming.chunk_handling": "what becomes of chunks with several tokens, in words",
    "streaming.itl_option": "direct, A, B or C (METHODOLOGY §7)",
}
_CLOCK = {
    "clock.topology": "single_machine or distributed",
    "clock.method": "ntp, ptp or other (distributed)",
    "clock.accuracy_ms": "estimated accuracy of the synchronisation in ms",
    "clock.sub_ms_required": "true when instants of two machines are subtracted",
    "clock.offset_ms": "measured offset to the time server in ms",
    "clock.ntp_server": "time server that both machines use",
    "network.significant": "true when network time matters beside TTFT",
    "network.rtt_ms": "mapping: p50, n (samples of a connection-level probe)",
    "network.ttft_adjustment": "mapping: applied, amount_ms, method",
}
_GUARDRAILS = {
    "guardrails.input_filter": "enabled, disabled or absent",
    "guardrails.output_filter": "enabled, disabled or absent",
    "guardrails.systems": "list of names, or `not known`",
    "guardrails.refusals": "number of refused requests, 0 included",
    "guardrails.production_claim": "true when the results are to stand for production",
    "guardrails.default_config": "true when the safety systems run as delivered",
    "guardrails.disabled_note": "text of the note about safety systems that were switched off",
    "guardrails.comparative_run": "reference of the run with the opposite state",
}
_RUN = {
    "warmup.performed": "whether there was a warm-up",
    "warmup.requests_ok": "successful warm-up requests",
    "warmup.output_tokens": "output tokens of the warm-up",
    "warmup.model_loaded": "true when the model was completely in accelerator memory before measuring",
    "warmup.drained": "whether every warm-up request had ended before measuring",
    "warmup.probe_before_ms": "latency of the probe before the warm-up",
    "warmup.probes_after_ms": "latencies of the probes after the warm-up, null for one that failed",
    "cold_start": "true when model load time or cold-start latency is what is measured",
    "timing.submit_point": "last_request_byte, or message_sent for gRPC",
    "timing.first_point": "parsed_data_event, or first_token_message for gRPC",
    "timing.first_token_kind": "content, or any",
    "timing.clock_resolution_ns": "of the monotonic clock: as reported, or the smallest step seen if larger",
    "timing.timestamp_format": "format of exported timestamps: iso8601_ms or epoch_ms",
    "timing.noncontent_share": "share of requests with non-content output ahead of the first content token",
    "timing.server_side": "list of server-side quantities collected, such as queue_wait and prefill",
    "manifest.frozen_ns": "monotonic instant at which the manifest was frozen",
    "manifest.sha256": "its digest at that instant",
    "production_sample_check": "reference of a check against samples of production traffic",
    "publication.intended": "true when the results are to be published",
    "publication.considered": "note that publishing capacity figures was weighed",
}

FACT_KEYS: Mapping[str, str] = MappingProxyType(
    {
        **_SUT,
        **_WORKLOAD,
        **_LOAD,
        **_TOKENIZER,
        **_STREAMING,
        **_CLOCK,
        **_GUARDRAILS,
        **_RUN,
    }
)

__all__ = ["FACT_KEYS"]
