"""A small measured result and its report, as the store sees them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pytest_llmbench.model.estimate import Estimate
from pytest_llmbench.model.facts import Facts, Origin
from pytest_llmbench.model.judgement import (
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
from pytest_llmbench.model.result import Plot, Table, TestResult, WarmupReport
from pytest_llmbench.store import schema
from pytest_llmbench.store.schema import DRAFT


@dataclass(frozen=True)
class NamedWorkload:
    name: str = "synthetic-uniform"
    standard: bool = True

    def requests(self, count: int, seed: int) -> list[Any]:
        raise NotImplementedError("nothing is drawn here")

    def specification(self) -> Mapping[str, Any]:
        return {"input_length": {"type": "uniform", "params": (128, 512)}, "temperature": 0.0}


def make_record(index: int, outcome: Outcome = Outcome.OK, phase: Phase = Phase.MEASURE) -> RequestRecord:
    start = 9_007_199_254_740_993 + index * 50_000_001  # beyond what a float of nanoseconds can hold
    return RequestRecord(
        index=index,
        request_id=f"id-{index}",
        phase=phase,
        scheduled_ns=start,
        dispatched_ns=start + 1_001,
        submitted_ns=start + 20_003,
        first_content_ns=start + 123_456_789,
        chunk_ns=[start + 123_456_789, start + 130_000_001],
        chunk_tokens=[1, 2],
        last_content_ns=start + 130_000_001,
        finished_ns=start + 130_100_000,
        output_tokens=3,
        token_source=TokenSource.SERVER_USAGE,
        outcome=outcome,
        http_status=200,
        server_timings={"prompt_ms": 12.5},
    )


def make_observation(run: int = 0, **check: Any) -> Observation:
    plan = LoadPlan("measure", NamedWorkload(), OpenLoop(20.0), 3, 42, first=3 * run)
    rows = [
        make_record(0),
        make_record(1),
        make_record(2, Outcome.TIMEOUT),
        make_record(3, phase=Phase.WARMUP),
    ]
    return Observation(
        plan=plan,
        records=Records.from_rows(rows),
        started_ns=1_000_000_000,
        ended_ns=3_500_000_000,
        anchor=ClockAnchor(0, 1_768_901_400_123_999_999),
        selfcheck=SelfCheck(**check),
        sequence_sha256="cd" * 32,
    )


def make_result(**changes: Any) -> TestResult:
    estimate = Estimate(123.4, 120.0, None, 0.95, 2, "order statistics", "ms", 1000)
    objective = Objective("ttft.p99", "<=", 500.0, "ms")
    unsure = JudgedObjective(objective, 123.4, 120.0, None, 2, GateVerdict.INCONCLUSIVE, "too few", 998)
    met = RequirementStatus("M-1-one", "MUST", Status.MET, "seen", {"n": 2, "share": 0.5}, "blocks", "One.")
    values: dict[str, Any] = {
        "test": "ttft",
        "section": "5.1",
        "title": "Time to First Token",
        "metrics": {"ttft.p99": estimate},
        "tables": (Table("ttft_results", "TTFT Results", ("Metric", "Value"), (("Requests", "2"),)),),
        "plots": (
            Plot("ttft_cdf", "CDF", "ms", "share", {"TTFT": ((1.0, 2.0), (0.5, 1.0))}, marks={"limit": 5.0}),
        ),
        "configuration": (("Workload", "synthetic-uniform"),),
        "observations": (make_observation(),),
        "warmup": WarmupReport(True, 100, 10_000, True, 81.0, (80.0, None), True, 9.5, "done", 5),
        "facts": Facts.of(Origin.DECLARED, {"sut.boundary": "model_engine"}, "sut.toml"),
        "objectives": (objective,),
        "validity": Validity((Finding.of("send_lag", True, 0.1, 10.0),)),
        "compliance": Compliance(
            ComplianceVerdict.CONDITIONAL, ComplianceVerdict.UNCONDITIONAL, DRAFT, (met,)
        ),
        "gate": Gate((unsure,)),
    }
    return TestResult(**(values | changes))


def make_report(*tests: schema.TestEntry, **sut: Any) -> schema.Report:
    return schema.Report(
        generator=schema.Generator(version="0.1.0"),
        started="2026-01-20T09:30:00.000Z",
        environment=schema.Environment(
            python="3.12", implementation="CPython", platform="Linux", machine="x86_64", cpu_count=2
        ),
        sut=schema.Sut(**({"endpoint": "https://host/v1", "model": "m", "api": None} | sut)),
        tests=list(tests),
    )
