"""Complete runs of the TTFT test, made from columns."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt

from pytest_llmbench.arrivals import arrival_seed, schedule_ns
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.judgement import Compliance, ComplianceVerdict
from pytest_llmbench.model.observation import ClockAnchor, Observation, SelfCheck
from pytest_llmbench.model.plan import ClosedLoop, Load, LoadPlan, OpenLoop
from pytest_llmbench.model.record import Outcome, Phase, TokenSource
from pytest_llmbench.model.records import MISSING, OUTCOMES, PHASES, TOKEN_SOURCES, Records
from pytest_llmbench.model.request import Workload
from pytest_llmbench.model.result import CONFIGURATION_ITEMS, Plot, Table, TestResult, WarmupReport
from pytest_llmbench.workloads.sequence import sequence_sha256
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM

REQUESTS = 10_050
FAILED = slice(20, 30)
"""Requests whose stream broke off: what is missing of them breaks nothing else."""
SEED = 42
RATE = 50.0
CONCURRENCY = 50
START_NS = 10_000_000_000
CHUNKS = 4
EDGES = (0, 256, 512, 1024, 2048, 4096)

Columns = dict[str, Any]


def complete(
    facts: Mapping[str, Any] | None = None,
    *,
    workload: Workload = SYNTHETIC_UNIFORM,
    load: Load | None = None,
    requests: int = REQUESTS,
    siblings: Sequence[TestResult] = (),
) -> Evidence:
    """A run in which nothing is missing; ``facts`` are added to its own, None takes one away."""
    load = load or OpenLoop(RATE)
    records = records_of(workload, load, requests)
    stated = run_facts(workload, load, requests) | dict(facts or {})
    return Evidence("ttft", result_of(records, workload, load, stated), tuple(siblings))


def vouched(result: TestResult) -> TestResult:
    """The result as a report has it: audited, with nothing that blocks it."""
    unconditional = ComplianceVerdict.UNCONDITIONAL
    return dataclasses.replace(result, compliance=Compliance(unconditional, unconditional, "draft", ()))


# Records.


def some(value: Any, rows: slice = slice(5, 8)) -> Callable[[npt.NDArray[Any]], npt.NDArray[Any]]:
    """A column with a few of its entries replaced."""

    def change(column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        column[rows] = value
        return column

    return change


@cache
def records_of(workload: Workload, load: Load, requests: int) -> Records:
    drawn = np.random.default_rng(7)
    planned = workload.requests(requests, SEED)
    latency = drawn.lognormal(np.log(90e6), 0.4, requests).astype(np.int64)
    gaps = drawn.integers(15_000_000, 25_000_000, (requests, CHUNKS - 1))
    whole = latency + gaps.sum(axis=1) + 180_000
    scheduled = _starts(load, requests, whole)
    columns = _instants(scheduled, latency, gaps)
    lengths = np.array([request.input_tokens for request in planned])
    ok, broken = OUTCOMES.index(Outcome.OK), OUTCOMES.index(Outcome.TRUNCATED)
    columns |= {
        "index": np.arange(requests),
        "request_id": [f"r{index}" for index in range(requests)],
        "phase": np.full(requests, PHASES.index(Phase.MEASURE), dtype=np.int8),
        "class_label": [""] * requests,
        "input_tokens": lengths,
        "output_tokens": np.full(requests, CHUNKS),
        "requested_input_tokens": lengths,
        "requested_max_tokens": np.array([request.max_tokens for request in planned]),
        "http_status": np.full(requests, 200),
        "shared_prefix_tokens": np.zeros(requests, dtype=np.int64),
        "token_source": np.full(requests, TOKEN_SOURCES.index(TokenSource.SERVER_USAGE), dtype=np.int8),
        "outcome": some(broken, FAILED)(np.full(requests, ok, dtype=np.int8)),
        "finish_reason": ["stop"] * requests,
        "chunk_offsets": np.arange(requests + 1) * CHUNKS,
        "chunk_tokens": np.ones(requests * CHUNKS, dtype=np.int64),
    }
    return Records.filled(requests, columns)


def _starts(load: Load, requests: int, whole: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Scheduled instants: the arrival schedule, or each slot's requests end to end."""
    if isinstance(load, OpenLoop):
        return START_NS + schedule_ns(load, requests, arrival_seed(SEED))
    slots = whole.reshape(load.concurrency, -1)
    ends = np.cumsum(slots, axis=1)
    starts: npt.NDArray[np.int64] = (START_NS + ends - slots).reshape(-1)
    return starts


def _instants(
    scheduled: npt.NDArray[np.int64], latency: npt.NDArray[np.int64], gaps: npt.NDArray[np.int64]
) -> Columns:
    submitted = scheduled + 80_000
    chunks = np.cumsum(np.column_stack((submitted + latency, gaps)), axis=1)
    return {
        "scheduled_ns": scheduled,
        "dispatched_ns": scheduled + 50_000,
        "submitted_ns": submitted,
        "first_byte_ns": chunks[:, 0] - 20_000,
        "first_event_ns": chunks[:, 0] - 15_000,
        "first_nonempty_ns": chunks[:, 0].copy(),
        "first_content_ns": chunks[:, 0].copy(),
        "last_content_ns": chunks[:, -1].copy(),
        "finished_ns": chunks[:, -1] + 100_000,
        "chunk_ns": chunks.reshape(-1),
    }


# The result around them.


def result_of(records: Records, workload: Workload, load: Load, facts: Mapping[str, Any]) -> TestResult:
    plan = LoadPlan("measure", workload, load, requests=len(records), seed=SEED)
    run = Observation(
        plan=plan,
        records=records,
        started_ns=START_NS,
        ended_ns=int(records.finished_ns.max()),
        anchor=ClockAnchor(START_NS, 1_700_000_000_000_000_000),
        selfcheck=SelfCheck(clock_resolution_ns=1),
        sequence_sha256=digest(workload, len(records)),
    )
    metrics = metrics_of(records)
    return TestResult(
        test="ttft",
        section="5.1",
        title="Time to First Token",
        metrics=metrics,
        tables=(results_table(metrics), by_length_table(metrics)),
        plots=(Plot("ttft_cdf", "TTFT", "ms", "share", {"TTFT": ((1.0, 2.0), (0.5, 1.0))}),),
        configuration=tuple((item, "as stated") for item in CONFIGURATION_ITEMS),
        observations=(run,),
        warmup=WarmupReport(
            performed=True, requests_ok=120, output_tokens=12_000, drained=True, last_finished_ns=START_NS - 1
        ),
        facts=Facts.of(Origin.DECLARED, facts),
    )


@cache
def digest(workload: Workload, requests: int) -> str:
    return sequence_sha256(workload.requests(requests, SEED))


def metrics_of(records: Records) -> dict[str, Estimate]:
    valid = records.ok & (records.first_content_ns != MISSING)
    ttft_ms = (records.first_content_ns - records.submitted_ns)[valid] / 1e6
    lengths = records.input_tokens[valid]
    metrics = _distribution("ttft", ttft_ms)
    for low, high in zip(EDGES, (*EDGES[1:], None), strict=True):
        inside = (lengths >= low) & (lengths < (high or np.inf))
        if inside.any():
            label = f"{low}-{high}" if high else f"{low}+"
            metrics |= _distribution(f"ttft[{label}]", ttft_ms[inside])
    return metrics


def _distribution(name: str, values: npt.NDArray[np.float64]) -> dict[str, Estimate]:
    percentiles = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}
    points = {key: float(np.percentile(values, q)) for key, q in percentiles.items()}
    points |= {"mean": float(values.mean()), "min": float(values.min()), "max": float(values.max())}
    return {f"{name}.{key}": estimate(point, len(values)) for key, point in points.items()}


def estimate(point: float, n: int) -> Estimate:
    return Estimate(point=point, lower=None, upper=None, level=0.95, n=n, method="test", unit="ms")


def results_table(metrics: Mapping[str, Estimate]) -> Table:
    names = {"p50": "P50", "p90": "P90", "p95": "P95", "p99": "P99", "p99_9": "P99.9"}
    names |= {"mean": "Mean", "min": "Min", "max": "Max"}
    rows = [("Requests", f"{metrics['ttft.p50'].n}")]
    rows += [(f"TTFT {name}", f"{metrics[f'ttft.{key}'].point:.1f} ms") for key, name in names.items()]
    return Table("ttft_results", "TTFT Results", ("Metric", "Value"), tuple(rows))


def by_length_table(metrics: Mapping[str, Estimate]) -> Table:
    labels = [name[5:-5] for name in metrics if name.startswith("ttft[") and name.endswith("].p50")]
    columns = ("Input Tokens", "Requests", "P50 (ms)", "P95 (ms)", "P99 (ms)")
    rows = tuple((label, "1", "1.0", "1.0", "1.0") for label in labels)
    return Table("ttft_by_input_length", "TTFT by Input Length", columns, rows)


# The facts.

DISCLOSED = {
    "sut.boundary": "application_gateway",
    "sut.components": ["router"],
    "sut.model.name": "llama-3 8b",
    "sut.model.version": "rev-7",
    "sut.model.quantization": "none",
    "sut.hardware.accelerator_type": "H100",
    "sut.hardware.accelerator_count": 8,
    "sut.hardware.accelerator_memory_gib": 80,
    "sut.software.engine": "vLLM",
    "sut.software.version": "1.0",
    "sut.prefix_caching": "enabled",
    "tokenizer.name": "cl100k_base",
    "tokenizer.version": "tiktoken 0.7",
    "tokenizer.vocab_size": 100_277,
    "tokenizer.source": "tiktoken:cl100k_base",
    "tokenizer.counting_option": "B",
    "tokenizer.reference": "cl100k_base",
    "tokenizer.special.bos_eos": "excluded",
    "tokenizer.special.system_prompt": "none",
    "tokenizer.special.tool_format": "not_used",
    "clock.topology": "distributed",
    "clock.method": "ntp",
    "clock.accuracy_ms": 1.5,
    "clock.sub_ms_required": False,
    "clock.offset_ms": 0.2,
    "clock.ntp_server": "time.example",
    "network.significant": True,
    "network.rtt_ms": {"p50": 2.0, "n": 11},
    "network.ttft_adjustment": {"applied": False},
    "guardrails.input_filter": "enabled",
    "guardrails.output_filter": "absent",
    "guardrails.systems": ["Llama Guard"],
    "guardrails.production_claim": True,
    "guardrails.default_config": True,
    "guardrails.comparative_run": "run 17",
    "production_sample_check": "replay of 2 May",
    "publication.intended": True,
    "publication.considered": "figures are public already",
}


def run_facts(workload: Workload, load: Load, requests: int) -> dict[str, Any]:
    specification = {f"workload.{key}": value for key, value in workload.specification().items()}
    return DISCLOSED | specification | _load_facts(load) | {
        "workload.name": workload.name,
        "workload.standard": workload.standard,
        "workload.seed": SEED,
        "workload.n_requests": requests,
        "workload.sequence_sha256": digest(workload, requests),
        "workload.published": "generator",
        "streaming.protocol": "sse",
        "streaming.chunking": "single",
        "streaming.single_token_share": 1.0,
        "streaming.chunk_handling": "stored with its token count",
        "streaming.itl_option": "direct",
        "guardrails.refusals": 0,
        "warmup.performed": True,
        "warmup.requests_ok": 120,
        "warmup.output_tokens": 12_000,
        "warmup.model_loaded": True,
        "warmup.drained": True,
        "warmup.probe_before_ms": 130.0,
        "warmup.probes_after_ms": [90.0, 100.0, 102.0, 101.0],
        "cold_start": False,
        "timing.submit_point": "last_request_byte",
        "timing.first_point": "parsed_data_event",
        "timing.first_token_kind": "content",
        "timing.clock_resolution_ns": 1,
        "timing.timestamp_format": "iso8601_ms",
        "timing.noncontent_share": 0.0,
        "manifest.frozen_ns": START_NS - 5_000_000_000,
        "manifest.sha256": "0" * 64,
    }  # fmt: skip


def _load_facts(load: Load) -> dict[str, Any]:
    if isinstance(load, ClosedLoop):
        return {"load.model": "closed", "load.concurrency": load.concurrency}
    arrival = "bursty" if load.arrival == "gamma" else load.arrival
    return {
        "load.model": "open",
        "load.arrival": arrival,
        "load.rate_rps": load.rate,
        "load.burstiness": load.burstiness,
    }
