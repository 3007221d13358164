"""The view of the evidence through which a predicate reads: what it asks for is recorded, so that every
answer shows what it rests on.

Predicates may use no facts but those of ``FACT_KEYS``: dotted key → what it states. The keys are the names of
the evidence vocabulary in ``requirements.yaml`` without the leading ``manifest.``. A key that is absent is
"no evidence"; the strings ``""``, ``unknown`` and ``not declared`` count as absent. All values are JSON
values.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.model.draft import SAMPLES_REQUIRED
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.records import MISSING, BoolColumn, IntColumn, Records
from pytest_llmbench.model.result import Plot, TestResult

_SUT = {
    "sut.boundary": "model_engine, application_gateway, compound_system; or custom with sut.components",
    "sut.components": "list of what lies inside the boundary; needed for a custom one",
    "sut.model.name": "model identifier",
    "sut.model.served_as": "what the endpoint calls the model, where that is another name",
    "sut.model.version": "version or revision of the model",
    "sut.model.quantization": "quantization scheme, `none` for an unquantised model",
    "sut.hardware.disclosed": "false where the operator does not say what the SUT runs on (AMB-27)",
    "sut.hardware.accelerator_type": "such as `NVIDIA H100 SXM`; `cpu`, `none`, `undisclosed`",
    "sut.hardware.accelerator_count": "number of accelerators, 0 only with type cpu or none",
    "sut.hardware.accelerator_memory_gib": "memory of one accelerator in GiB",
    "sut.software.engine": "serving software",
    "sut.software.version": "its version",
    "sut.prefix_caching": "enabled or disabled",
    "sut.simulated": "replay where the embedded engine ran in virtual time and nothing was sent",
    "sut.context_limit_tokens": "longest context that the model accepts, output included",
    "manifest.contradicted": "mapping: key of a fact → declared, observed, where these contradict",
    "isolation.isolated_system": "true when nobody else uses the SUT during an overload",
    "isolation.recovery_plan": "how the SUT is brought back, in words",
    "isolation.failure_monitoring": "how failures that spread to other components are watched for",
    "isolation.health_probe": "the probes with which a test looks after the SUT by itself",
}
_WORKLOAD = {
    "workload.name": "name as in section 4.3.2, or that of a custom workload",
    "workload.standard": "true for a reference workload",
    "workload.seed": "seed of the request sequence, an integer",
    "workload.n_requests": "requests that were to be measured, over all runs",
    "workload.input_length": "mapping: type, params, unit, tokenizer",
    "workload.output_length": "mapping: type, params, unit, tokenizer, control (max_tokens, stop or both)",
    "workload.content": "mapping: domain, language, system_prompt {present, typical_tokens}; question_tokens "
    "for long-context",
    "workload.prefix_sharing": "mapping: fraction, length; where prefixes are shared also "
    "realised_fraction, contexts (lengths in tokens) and realised_by_rank (requests per context); of a data "
    "set distinct_prompts and alike_fraction (share of the entries that begin like another one)",
    "workload.temperature": "sampling temperature",
    "workload.stop": "list of stop sequences, empty for none",
    "workload.dataset": "mapping: name, version, file_sha256, subset, subset_method, preprocessing (list)",
    "workload.targets": "list: the length of the requests in each part of workload.slices (long context)",
    "workload.classes": "list of mappings: name, input [low, high], output [low, high], share",
    "workload.class_mix": "mapping: class → share of the requests",
    "workload.answers": "live | live-compared: answers in the history of sessions; without it recorded ones",
    "workload.deviations": "list of declared changes to a reference workload: what, instead_of, rule",
    "workload.cuts": "mapping: share of the requests that users cut, after {type, params, unit}, from "
    "(submission), figures (what they are left out of); absent where all users wait",
    "workload.slices": "list of [first, count]: the parts of the sequence that were sent",
    "workload.parts": "list of [name, seed], one for each of workload.slices: the part of the measurement "
    "that it was drawn for; the seed follows from workload.seed and the name",
    "workload.sequence_sha256": "digest of the planned requests in the format of appendix A.1.4",
    "workload.published": "`sequence` (written as an artifact) or `generator` (code, seed and parameters)",
}
_REQUEST = {
    "endpoint.instance": "int: the n-th system at this endpoint in the session, from 2 on",
    "endpoint.models": "list: the names that the endpoint gives the model that was asked for",
    "request.extra_body": "fields of every request body beside those of the workload, with their values",
}
_LOAD = {
    "load.model": "open or closed",
    "load.arrival": "poisson, uniform or bursty (open loop)",
    "load.rate_rps": "requests per second (open loop)",
    "load.burstiness": "shape of the gamma gaps (bursty arrivals)",
    "load.concurrency": "requests in flight (closed loop)",
    "load.rate_range": "list: lowest rate, highest rate, step of a search",
    "load.concurrency_range": "list: lowest (capacity: first) and highest concurrency, step of a search",
    "load.duration_s": "of a level, ramp-up included; of a search the level that is reported",
    "load.slo": "mapping: ttft_p99_ms, tpot_p99_ms, min_completion; absent without limits",
    "load.levels_percent": "list of the levels in percent of capacity",
    "load.capacity_rps": "capacity that the percentages refer to, requests per second",
    "load.capacity_concurrency": "capacity that the percentages refer to, requests in flight",
    "load.capacity_found": "whether the test found that capacity by a search of its own; else it is declared",
    "load.out_of_memory_rule": "what is taken for an out-of-memory error, in words",
}
_TOKENIZER = {
    "tokenizer.name": "tokenizer that the counts refer to",
    "tokenizer.version": "its version",
    "tokenizer.vocab_size": "number of ids",
    "tokenizer.source": "model-hub id, tiktoken name or `custom`",
    "tokenizer.counting_option": "A native or B reference (section 4.4)",
    "tokenizer.reference": "name of the common tokenizer, with option B",
    "tokenizer.tokens_per_reference": "how many times the tokens of cl100k_base the tokenizer's file makes",
    "tokenizer.special.bos_eos": "included or excluded",
    "tokenizer.special.system_prompt": "separate, included or none",
    "tokenizer.special.tool_format": "included, excluded or not_used",
}
_STREAMING = {
    "streaming.protocol": "sse, websocket or grpc; in_process: none; json: one document",
    "streaming.chunking": "single (every chunk is one token) or multi",
    "streaming.single_token_share": "share of content chunks of one token, where chunk tokens are known",
    "streaming.chunk_handling": "what becomes of chunks with several tokens, in words",
    "streaming.itl_option": "direct, A, B or C (section 4.6)",
    "streaming.itl_option_from": "label of the level whose streams chose it, or `marker`: the author did",
    "streaming.server_timestamps_available": "true when the server gives the instant of every token",
    "streaming.chunk_sizes": "mapping: chunks, mean, p50, p99, max tokens per content chunk",
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
    "guardrails.impossible": "why configurations with a single filter cannot be run",
    "guardrails.benign_content": "true when content of the tester's own asks for nothing that is refused",
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
    "warmup.prefixes_populated": "number of shared prefixes sent before measuring; false for none, true for "
    "all of them",
    "warmup.count": "number of warm-ups, where each configuration has its own",
    "warmup.longest_input_tokens": "longest prompt of the warm-up",
    "cold_start": "true when model load time or cold-start latency is what is measured",
    "timing.submit_point": "last_request_byte, message_sent for gRPC, call in process",
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

_RESULTS = {
    "throughput.raw_output_tok_s": "output tokens per second of the whole duration, ramp-up included",
    "itl.levels": "list of mappings, one per level: level, excluded, zero_gaps, modality, tail_class, "
    "p99_over_p50 …",
    "fairness.equal_load": "what a class alone has in common with the mix: tokens or requests (per second)",
    "fairness.jain_normalisation": "what Jain's index is taken of, in words",
    "fairness.jain_n": "number of requests in it",
    "fairness.wait_source": "what a wait is for the starvation rate: server queue wait, or TTFT",
    "long_context.lengths": "list of mappings, one per length: length, concurrency, ms_per_1k_tokens, "
    "output_tok_s, input_tok_s …",
    "long_context.refused": "lengths that the server turned down",
    "long_context.omitted": "lengths that were not tried since they do not fit",
    "long_context.fit": "mapping: power {k, r2}, linear {slope_us_per_token, intercept_ms, r2}",
    "long_context.best_fit": "the line of the report about the better fit",
}
_COMPARISON = {
    "comparison.claim": "false where several systems are shown without a claim which is better",
    "comparison.sequences": "mapping: system → {sequence_sha256, seed, schedule_sha256}",
    "comparison.boundaries": "mapping: system → {boundary, components}",
    "comparison.hardware": "mapping: system → {accelerator_type, accelerator_count, accelerator_memory_gib}",
    "comparison.loads": "mapping: system → the facts load.* of it",
    "comparison.tokenizers": "mapping: system → the facts tokenizer.* of it",
    "comparison.normalisation": "how results from different hardware are put on one scale, in words",
    "comparison.tokens_per_gpu_second": "mapping: system → output tokens per second and accelerator",
    "comparison.tokens_per_dollar_hour": "mapping: system → {value, dollars_per_hour, date}",
    "comparison.metrics": "list of the metrics that are compared",
    "comparison.runs": "mapping: system → number of independent runs, each with its own warm-up",
    "comparison.tests": "list of mappings: metric, name, statistic, p_value or interval of the difference",
    "comparison.checklist": "mapping: workload, duration, warmup, success_criteria, same_time, "
    "production_configuration, differences → answer",
}

FACT_KEYS: Mapping[str, str] = MappingProxyType(
    {
        **_SUT,
        **_WORKLOAD,
        **_REQUEST,
        **_LOAD,
        **_TOKENIZER,
        **_STREAMING,
        **_CLOCK,
        **_GUARDRAILS,
        **_RUN,
        **_RESULTS,
        **_COMPARISON,
    }
)


_BLANK = ("", "unknown", "not declared")


class NoEvidenceError(Exception):
    """The evidence that a predicate needs is missing. The entry is then unmet, never met."""

    def __init__(self, *missing: str) -> None:
        self.missing = missing
        super().__init__(f"no evidence: {', '.join(missing)}")


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of one predicate."""

    met: bool
    reason: str
    evidence: Mapping[str, Any]


class EvidenceView:
    """The evidence as one predicate sees it.

    ``need`` and its relatives raise :class:`NoEvidenceError` for what is absent or blank, so that a predicate
    deals with values only.
    """

    def __init__(self, evidence: Evidence) -> None:
        self.evidence = evidence
        self.seen: dict[str, Any] = {}

    @property
    def result(self) -> TestResult:
        return self.evidence.result

    def fact(self, key: str, default: Any = None) -> Any:
        """The fact under ``key``, which has to be in ``FACT_KEYS``; ``default`` when nothing is known."""
        if key not in FACT_KEYS:
            raise KeyError(f"{key!r} is not in FACT_KEYS")
        value = self.result.facts.value(key)
        if value is None:
            return default
        self.seen[key] = value
        return value

    def need(self, key: str) -> Any:
        """The fact under ``key``; a blank one, or ``unknown``, counts as absent."""
        value = self.fact(key)
        if not _states_something(value):
            raise NoEvidenceError(key)
        return value

    def need_all(self, *keys: str) -> tuple[Any, ...]:
        missing = [key for key in keys if not _states_something(self.fact(key))]
        if missing:
            raise NoEvidenceError(*missing)
        return tuple(self.seen[key] for key in keys)

    def need_fields(self, key: str, *names: str) -> tuple[Any, ...]:
        """Fields of a fact that is a mapping; ``system_prompt.present`` reaches into it."""
        mapping = self.need(key)
        values = [_field(mapping, name) for name in names]
        missing = [
            f"{key}.{name}" for name, value in zip(names, values, strict=True) if not _states_something(value)
        ]
        if missing:
            raise NoEvidenceError(*missing)
        return tuple(values)

    @property
    def runs(self) -> tuple[Observation, ...]:
        if not self.evidence.runs:
            raise NoEvidenceError("a measured run")
        return self.evidence.runs

    @property
    def records(self) -> Records:
        """The measured requests, at least one."""
        if not len(self.evidence.records):
            raise NoEvidenceError("measured records")
        return self.evidence.records

    def capability(self, name: str) -> Any:
        """The value of a capability."""
        value = self.evidence.capabilities.get(name)
        if value in (False, None):
            raise NoEvidenceError(f"capability.{name}")
        self.seen[f"capability.{name}"] = value
        return value

    def driver_capability(self, name: str) -> Any:
        """The capability of whatever carried the load: in a replay no generator sent anything and no wire was
        there."""
        self.fact("sut.simulated")
        return self.capability(f"replay.{name}" if self.evidence.simulated else name)

    def metric(self, name: str) -> Estimate:
        """A metric whose point is defined."""
        estimate = self.result.metrics.get(name)
        if estimate is None or estimate.point is None:
            raise NoEvidenceError(f"metric {name}")
        self.seen[f"metric.{name}"] = estimate.point
        return estimate

    def need_metrics(self, names: Iterable[str]) -> None:
        """Raise NoEvidenceError with all that are not defined."""
        points = {name: getattr(self.result.metrics.get(name), "point", None) for name in names}
        missing = [f"metric {name}" for name, point in points.items() if point is None]
        if missing:
            raise NoEvidenceError(*missing)
        self.seen |= {f"metric.{name}": point for name, point in points.items()}

    def measured(self, name: str) -> float | None:
        """The point of a metric that is reported; None where it is said why there is none."""
        estimate = self.result.metrics.get(name)
        if estimate is None or (estimate.point is None and estimate.reason is None):
            raise NoEvidenceError(f"metric {name}")
        self.seen[f"metric.{name}"] = estimate.point
        return estimate.point

    def table(self, table_id: str) -> int:
        """The number of tables with this id that have rows, at least one: some come once per level."""
        found = sum(table.id == table_id and bool(table.cells) for table in self.result.tables)
        if not found:
            raise NoEvidenceError(f"table {table_id}")
        self.seen[f"table.{table_id}"] = found
        return found

    def plot(self, *plot_ids: str) -> Plot:
        """The first plot with one of these ids."""
        for plot in self.result.plots:
            if plot.id in plot_ids:
                self.seen["plot"] = plot.id
                return plot
        raise NoEvidenceError(" or ".join(f"plot {plot_id}" for plot_id in plot_ids))

    def note(self, name: str, value: Any) -> None:
        """Keep a value that was computed from the records."""
        self.seen[name] = value

    def answer(self, met: bool, yes: str, no: str) -> Answer:
        return Answer(met, yes if met else no, dict(self.seen))

    def met(self, reason: str) -> Answer:
        return Answer(True, reason, dict(self.seen))

    def unmet(self, reason: str) -> Answer:
        return Answer(False, reason, dict(self.seen))


def _states_something(value: Any) -> bool:
    if isinstance(value, str):
        return value.strip().lower() not in _BLANK
    return value is not None and value != {}


def _field(mapping: Any, dotted: str) -> Any:
    for name in dotted.split("."):
        if not isinstance(mapping, Mapping):
            return None
        mapping = mapping.get(name)
    return mapping


# Questions about stored records. A run may have more chunks than memory has room for: whatever is asked of
# chunks is asked block by block.


def has(column: IntColumn) -> BoolColumn:
    return np.asarray(column != MISSING)


def has_first_token(records: Records) -> BoolColumn:
    """The valid TTFT samples: successful, with both instants."""
    return np.asarray(records.ok & has(records.submitted_ns) & has(records.first_content_ns))


def first_output_before_content(records: Records) -> BoolColumn:
    """Requests with output that is no content (whitespace, reasoning) ahead of the first content token."""
    before = np.zeros(len(records), dtype=bool)
    for other in (records.first_nonempty_ns, records.first_reasoning_ns):
        before |= has(other) & (other < records.first_content_ns)
    return np.asarray(records.ok & before)


def chunk_counts(records: Records) -> IntColumn:
    return np.diff(records.chunk_offsets)


def chunk_token_sums(records: Records) -> tuple[IntColumn, BoolColumn]:
    """Tokens over all chunks of each request, and whether every one of its chunks has a count."""
    sums, complete = [], []
    for block in records.blocks():
        if (block.chunk_tokens == 1).all():  # mostly so, and quicker
            sums.append(chunk_counts(block))
            complete.append(np.ones(len(block), dtype=bool))
            continue
        known = has(block.chunk_tokens)
        sums.append(_per_request(np.where(known, block.chunk_tokens, 0), block.chunk_offsets))
        complete.append(_per_request((~known).astype(np.int64), block.chunk_offsets) == 0)
    return np.concatenate(sums), np.concatenate(complete)


class ChunkSizes(NamedTuple):
    """The content chunks of successful requests, by size."""

    chunks: int
    known: int
    """The chunks with a token count."""
    single: int
    """The chunks of exactly one token."""
    several: int

    @property
    def single_share(self) -> float | None:
        """The share of single-token chunks among those with a token count; None where no chunk has one."""
        return self.single / self.known if self.known else None


def chunk_sizes(records: Records) -> ChunkSizes:
    chunks = known = single = several = 0
    for block in records.blocks():
        every = block.chunk_tokens
        tokens = every if block.ok.all() else every[np.repeat(block.ok, chunk_counts(block))]
        of_one = int(np.count_nonzero(tokens == 1))
        chunks += len(tokens)
        single += of_one
        if of_one == len(tokens):  # mostly so
            known += of_one
            continue
        known += int(np.count_nonzero(has(tokens)))
        several += int(np.count_nonzero(tokens > 1))
    return ChunkSizes(chunks, known, single, several)


def in_flight_peak(records: Records) -> int:
    """Most requests in flight at once, each from its dispatch to its end. An end frees its place first."""
    both = has(records.dispatched_ns) & has(records.finished_ns)
    instants = np.concatenate((records.finished_ns[both], records.dispatched_ns[both]))
    steps = np.concatenate((np.full(int(both.sum()), -1), np.ones(int(both.sum()), dtype=np.int64)))
    if not len(instants):
        return 0
    return int(np.cumsum(steps[np.lexsort((steps, instants))]).max())


def reported(result: TestResult, statistic: str) -> bool:
    """Whether a TTFT statistic is defined, over as many samples as it needs."""
    estimate = result.metrics.get(f"ttft.{statistic}")
    return (
        estimate is not None
        and estimate.point is not None
        and estimate.n >= SAMPLES_REQUIRED.get(statistic, 1)
    )


def _per_request(values: IntColumn, offsets: IntColumn) -> IntColumn:
    running = np.concatenate(([0], np.cumsum(values))).astype(np.int64)
    return np.asarray(running[offsets[1:]] - running[offsets[:-1]])
