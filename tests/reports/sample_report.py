"""A realistic report, built the way a session builds it: measured result → entry → plain dict."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any

import numpy as np

from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.judgement import (
    Advice,
    Compliance,
    ComplianceVerdict,
    Finding,
    Gate,
    GateVerdict,
    JudgedObjective,
    RequirementStatus,
    Status,
    Validity,
)
from pytest_llmbench.model.objective import Objective
from pytest_llmbench.model.observation import ClockAnchor, Observation, SelfCheck
from pytest_llmbench.model.plan import LoadPlan, OpenLoop
from pytest_llmbench.model.record import Outcome, Phase, RequestRecord, TokenSource
from pytest_llmbench.model.records import Records
from pytest_llmbench.model.result import CONFIGURATION_ITEMS, Plot, Table, TestResult, WarmupReport
from pytest_llmbench.model.sentences import as_told
from pytest_llmbench.store import entries, schema
from pytest_llmbench.store.schema import DRAFT

MS = 1_000_000
_PERCENTILES = {"p50": 50.0, "p90": 90.0, "p95": 95.0, "p99": 99.0, "p99_9": 99.9}


@dataclass(frozen=True)
class NamedWorkload:
    name: str = "synthetic-uniform"
    standard: bool = True

    def requests(self, count: int, seed: int) -> list[Any]:
        raise NotImplementedError("the reports draw nothing")

    def specification(self) -> Mapping[str, Any]:
        return {
            "input_length": {"type": "uniform", "params": [128, 512], "unit": "tokens"},
            "temperature": 0.0,
        }


def _ttft_ms(count: int) -> np.ndarray[Any, Any]:
    """Log-normal quantiles in a shuffled order, every 33rd request slower; no random numbers."""
    normal = NormalDist(4.85, 0.28)
    quantiles = [normal.inv_cdf(((i * 7919) % count + 0.5) / count) for i in range(count)]
    slower = [150 + 270 * i / count if i % 33 == 0 else 0.0 for i in range(count)]
    return np.round(np.exp(quantiles) + slower, 3)


def _records(ttft: np.ndarray[Any, Any], failed: int) -> Records:
    rows = []
    for i, latency in enumerate(ttft):
        start = i * 50 * MS
        ok = i >= failed
        rows.append(
            RequestRecord(
                index=i,
                request_id=f"r-{i}",
                phase=Phase.MEASURE,
                submitted_ns=start,
                first_content_ns=start + int(latency * MS) if ok else None,
                output_tokens=64 if ok else None,
                token_source=TokenSource.SERVER_USAGE,
                outcome=Outcome.OK if ok else Outcome.TIMEOUT,
            )
        )
    return Records.from_rows(rows)


def _metrics(ttft: np.ndarray[Any, Any]) -> dict[str, Estimate]:
    n = len(ttft)
    metrics = {}
    for name, percent in _PERCENTILES.items():
        point = float(np.percentile(ttft, percent))
        supported = n * (1 - percent / 100) >= 5
        metrics[f"ttft.{name}"] = Estimate(
            point, point * 0.96, point * 1.05 if supported else None, 0.95, n, "order statistics", "ms",
            None if supported else 10_000,
        )  # fmt: skip
        metrics[f"tpot.{name}"] = Estimate(12.5 + percent / 50, 12.0, 15.0, 0.95, n, "block bootstrap", "ms")
    mean = float(ttft.mean())
    metrics["ttft.mean"] = Estimate(mean, mean - 3, mean + 3, 0.95, n, "block bootstrap", "ms")
    metrics["output_token_throughput"] = Estimate(1843.2, 1790.0, 1901.0, 0.95, n, "block bootstrap", "tok/s")
    metrics["completion_rate"] = Estimate(0.998, 0.992, 0.9998, 0.95, n, "Wilson", "ratio")
    return metrics


def _tables(metrics: Mapping[str, Estimate], n: int) -> tuple[Table, ...]:
    rows = [("Requests", str(n), "")]
    for label, name in (("P50", "p50"), ("P90", "p90"), ("P95", "p95"), ("P99", "p99"), ("P99.9", "p99_9")):
        metric = metrics[f"ttft.{name}"]
        if name == "p99_9":
            rows.append(("TTFT P99.9", "n < 10000, not reported", ""))
            continue
        upper = "open" if metric.upper is None else f"{metric.upper:.0f}"
        rows.append((f"TTFT {label}", f"{metric.point:.0f} ms", f"{metric.lower:.0f} … {upper}"))
    buckets = (("128-256", "333", "118", "201", "402"), ("256-512", "667", "141", "243", "511"))
    columns = ("Input Tokens", "Requests", "P50 (ms)", "P95 (ms)", "P99 (ms)")
    return (
        Table("ttft_results", "TTFT Results", ("Metric", "Value", "95 % interval"), tuple(rows)),
        Table("ttft_by_input_length", "TTFT by Input Length", columns, buckets),
    )


def _cdf(ttft: np.ndarray[Any, Any], limit_ms: float) -> Plot:
    x = np.sort(ttft)
    y = np.arange(1, len(x) + 1) / len(x)
    return Plot(
        id="ttft_cdf",
        title="Distribution of TTFT",
        x_label="TTFT (ms)",
        y_label="share of requests",
        series={"TTFT": (tuple(x.tolist()), tuple(y.tolist()))},
        marks={"limit P99": limit_ms},
        step=True,
        x_log=True,
    )


def _requirements() -> tuple[RequirementStatus, ...]:
    def one(
        id_: str, level: str, status: Status, reason: str, effect: str, **evidence: Any
    ) -> RequirementStatus:
        return RequirementStatus(id_, level, status, reason, evidence, effect, f"Statement of {id_}.")

    return (
        one("M-4.1-sut-boundary-declared", "MUST", Status.UNMET, "no evidence: sut.boundary", "blocks"),
        one("M-4.1.1-accelerator", "MUST", Status.UNMET,
            "no evidence: sut.hardware.accelerator_type, sut.hardware.accelerator_count", "blocks"),
        one("M-5.1.4.1-percentiles", "MUST", Status.UNMET, "998 samples, P99.9 needs 10000", "blocks", n=998),
        one("M-4.8-input-filter", "MUST", Status.UNMET, "no evidence: guardrails.input_filter", "blocks"),
        one("S-4.6.1-grpc", "SHOULD", Status.UNMET, "the stream is SSE", "downgrades", protocol="sse"),
        one("M-4.2.5-open-loop", "MUST", Status.MET, "arrivals do not wait", "blocks", lag_ms=0.11),
        one("O-4.3-trace", "MAY", Status.NOT_APPLICABLE, "no trace was replayed", "none"),
    )  # fmt: skip


def _selfcheck() -> SelfCheck:
    return SelfCheck(
        send_lag_p50_ns=41_000,
        send_lag_p99_ns=183_000,
        send_lag_max_ns=912_000,
        loop_lag_p99_ns=350_000,
        cpu_share=0.184,
        reads=64_120,
        content_chunks=63_872,
        coalesced_chunks=12,
        connections_prewarmed=32,
        peak_in_flight=41,
        event_loop="uvloop",
        transport="http/1.1",
    )


def _observation(ttft: np.ndarray[Any, Any], failed: int) -> Observation:
    return Observation(
        plan=LoadPlan("measure", NamedWorkload(), OpenLoop(20.0), len(ttft), 42),
        records=_records(ttft, failed),
        started_ns=5 * MS,
        ended_ns=5 * MS + 51_200 * MS,
        anchor=ClockAnchor(0, 1_768_901_400_000_000_000),
        selfcheck=_selfcheck(),
        sequence_sha256="ab" * 32,
    )


def _gate(metrics: Mapping[str, Estimate], limit_ms: float) -> Gate:
    p99, p99_9 = metrics["ttft.p99"], metrics["ttft.p99_9"]
    sure = JudgedObjective(
        Objective("ttft.p99", "<=", limit_ms, "ms"),
        p99.point, p99.lower, p99.upper, p99.n, GateVerdict.PASS, "the whole interval is good",
    )  # fmt: skip
    advice = Advice("requests", 998, 10_002, "requests=10002")
    unsure = JudgedObjective(
        Objective("ttft.p99_9", "<=", 900.0, "ms"),
        p99_9.point, p99_9.lower, None, p99_9.n, GateVerdict.INCONCLUSIVE, str(advice), 10.02, advice,
    )  # fmt: skip
    return Gate((sure, unsure))


def _configuration(run: Observation) -> tuple[tuple[str, str], ...]:
    texts = (
        "not declared", "tiny-7b on hardware not declared", "synthetic-uniform, seed 42",
        run.plan.load.describe(), f"{run.plan.requests} requests, 51.2 s", "100 requests and 10240 tokens",
        "disabled", "input filter not declared",
    )  # fmt: skip
    return tuple(zip(CONFIGURATION_ITEMS, texts, strict=True))


def _validity() -> Validity:
    return Validity((Finding.of("send_lag", True, 0.183, 10), Finding.of("client_cpu", False, 0.95, 0.9)))


def make_result(count: int = 1000, limit_ms: float = 600.0, failed: int = 2) -> TestResult:
    """A TTFT test at 20 req/s with one limit on P99 and one, undecided, on P99.9."""
    ttft = _ttft_ms(count)
    metrics = _metrics(ttft[failed:])
    run = _observation(ttft, failed)
    gate = _gate(metrics, limit_ms)
    return TestResult(
        test="ttft",
        section="5.1",
        title="Time to First Token",
        metrics=metrics,
        tables=_tables(metrics, count - failed),
        plots=(_cdf(ttft[failed:], limit_ms),),
        configuration=_configuration(run),
        observations=(run,),
        warmup=WarmupReport(True, 100, 10_240, True, 81.0, (83.5, 82.9), True, 11.4, "100 requests", 4 * MS),
        facts=Facts.of(Origin.DECLARED, {"sut.prefix_caching": "disabled"}, "sut.toml"),
        objectives=tuple(judged.objective for judged in gate.objectives),
        notes=(as_told("1.2% of the requests sent non-content output first"),),
        validity=_validity(),
        compliance=Compliance(
            ComplianceVerdict.NOT_COMPLIANT, ComplianceVerdict.CONDITIONAL, DRAFT, _requirements()
        ),
        gate=gate,
    )


def passing(result: TestResult) -> TestResult:
    """The same with its decided limit only."""
    decided = result.gate.objectives[:1]
    return replace(result, objectives=result.objectives[:1], gate=Gate(decided))


def make_report(*tests: schema.TestEntry, **facts: Any) -> dict[str, Any]:
    declared = entries.fact_entries(Facts.of(Origin.DECLARED, facts, "sut.toml"))
    return schema.Report(
        generator=schema.Generator(version="0.1.0"),
        started="2026-01-20T09:30:00.000Z",
        environment=schema.Environment(
            python="3.12.4",
            implementation="CPython",
            platform="Linux-6.8-x86_64",
            machine="x86_64",
            cpu_count=8,
            packages={"pytest": "9.0.0", "numpy": "2.1.0"},
            command=["pytest", "gates", "--llm-endpoint=https://host/v1"],
            settings={"scale": "standard", "seed": 42},
        ),
        sut=schema.Sut(endpoint="https://host/v1", model="tiny-7b", api="openai-chat", facts=declared),
        tests=list(tests),
    ).plain()
