"""Structured output over WebSocket is what it is over HTTP."""

from __future__ import annotations

from served_load import PATIENT

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.request import Workload
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.workloads.adapted import WithFixedOutput
from pytest_llmbench.workloads.profiles import profile_workload

FUNC = profile_workload("profile:FUNC")
LONG = WithFixedOutput(FUNC, 60)
SCHEMA = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
    "required": ["city", "days"],
}
TOOL = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}


def plan(workload: Workload, requests: int) -> LoadPlan:
    return LoadPlan("measure", workload, ClosedLoop(4), requests, seed=3, deadlines=PATIENT)


def test_over_websocket_as_over_http() -> None:
    with EmbeddedEngine.start("fast?schema_fault_rate=0.3") as engine:
        url = engine.url.replace("http://", "ws://")
        with LoadGenerator(Target.parse(url), dialect("openai-responses"), model=engine.model) as generator:
            records = generator.run(plan(LONG, 12)).records
        truths = {truth.request_id: truth.schema_check for truth in engine.ground_truth()}
    assert dict(zip(records.request_id, records.schema_check, strict=True)) == truths
