"""Tool calls and structured output of the embedded engine, measured and held against its ground truth."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from typing import Any

import httpx
import plain_http
import pytest
from served_load import PATIENT

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.metrics.throughput import schema_violations
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.model.record import Outcome
from pytest_llmbench.model.records import OUTCOMES
from pytest_llmbench.model.request import Workload
from pytest_llmbench.simulator.engine.answers import BREAKS
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
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


def measured(engine: EmbeddedEngine, wanted: LoadPlan, api: str = "openai-chat") -> Observation:
    with LoadGenerator(Target.parse(engine.url), dialect(api), model=engine.model) as generator:
        return generator.run(wanted)


@pytest.mark.parametrize(
    "options", ["", "&tokens_per_chunk=4", "&writes_per_event=7&line_end=crlf", "&blank_every=3"]
)
def test_replies_are_valid_and_prompts_as_long_as_planned(options: str) -> None:
    with EmbeddedEngine.start(f"fast?trace=true{options}") as engine:
        seen = measured(engine, plan(LONG, 12)).records
        truths = engine.ground_truth()
    assert list(seen.schema_check) == ["valid"] * 12
    assert [truth.schema_check for truth in truths] == ["valid"] * 12
    assert set(seen.finish_reason) == {"tool_calls", "stop"}
    assert (seen.input_tokens == seen.requested_input_tokens).all()
    assert (seen.output_tokens == 60).all()


def test_the_share_of_broken_replies_is_counted_exactly_and_by_reason() -> None:
    with EmbeddedEngine.start("fast?schema_fault_rate=0.5&step_base_us=100") as engine:
        seen = measured(engine, plan(LONG, 60))
        truths = {truth.request_id: truth.schema_check for truth in engine.ground_truth()}
    records = seen.records
    assert dict(zip(records.request_id, records.schema_check, strict=True)) == truths
    assert {OUTCOMES[number] for number in records.outcome} == {Outcome.OK}  # no error of transport
    counted = Counter(truths.values())
    broken = 60 - counted["valid"]
    assert 15 < broken < 45
    assert set(counted) - {"valid"} <= set(BREAKS)
    metrics = schema_violations([records])
    assert metrics["schema_violation_rate"].point == broken / 60
    assert metrics["schema_violation_rate"].n == 60
    by_reason = {name: each.point for name, each in metrics.items() if "[" in name}
    assert by_reason == {
        f"schema_violation_rate[{reason}]": count / 60
        for reason, count in counted.items()
        if reason != "valid"
    }


@pytest.mark.parametrize("api", ["openai-responses", "anthropic-messages"])
@pytest.mark.parametrize(
    "options", ["", pytest.param("&tokens_per_chunk=4&think_mean_tokens=5", marks=pytest.mark.slow)]
)
def test_other_apis_call_tools_and_keep_to_schemas_too(api: str, options: str) -> None:
    with EmbeddedEngine.start(f"fast?schema_fault_rate=0.3{options}") as engine:
        seen = measured(engine, plan(LONG, 24), api)
        truths = {truth.request_id: truth.schema_check for truth in engine.ground_truth()}
    records = seen.records
    assert records.counts()["ok"] == 24
    assert dict(zip(records.request_id, records.schema_check, strict=True)) == truths
    assert len(set(truths.values())) > 2
    assert (records.input_tokens == records.requested_input_tokens).all()
    assert (records.output_tokens == 60).all()
    assert seen.facts.value("wire.structured_output") == "fields"


def test_a_reply_that_its_limit_cuts_short_is_told_as_such() -> None:
    with EmbeddedEngine.start("fast") as engine:
        records = measured(engine, plan(WithFixedOutput(FUNC, 6), 6)).records
        truths = engine.ground_truth()
    assert list(records.schema_check) == ["cut_by_limit"] * 6 == [truth.schema_check for truth in truths]
    assert set(records.finish_reason) == {"length"}


def test_a_model_that_thinks_first_answers_in_form() -> None:
    with EmbeddedEngine.start("fast?think_mean_tokens=5&think_spread=0") as engine:
        records = measured(engine, plan(LONG, 6)).records
    assert list(records.schema_check) == ["valid"] * 6
    assert (records.reasoning_tokens == 5).all()


def test_over_a_dialect_without_tools_they_are_words_and_nothing_is_checked(fast: EmbeddedEngine) -> None:
    seen = measured(fast, plan(LONG, 4), "openai-completions")
    assert list(seen.records.schema_check) == [None] * 4
    assert schema_violations([seen.records]) == {}
    assert seen.facts.value("wire.structured_output") == "prompt_words"


def test_workers_check_replies_too() -> None:
    with EmbeddedEngine.start("fast?schema_fault_rate=0.4") as engine:
        address = Address(engine.url)
        with DistributedLoadGenerator(address, "openai-chat", workers=2, model=engine.model) as generator:
            seen = generator.run(plan(LONG, 24))
        truths = {truth.request_id: truth.schema_check for truth in engine.ground_truth()}
    assert dict(zip(seen.records.request_id, seen.records.schema_check, strict=True)) == truths
    assert seen.facts.value("wire.structured_output") == "fields"


def test_replay_breaks_as_many_as_the_engine_in_real_time() -> None:
    scenario = "fast?schema_fault_rate=0.5&step_base_us=100"
    one_by_one = plan(LONG, 40).with_(load=ClosedLoop(1))
    replayed = ReplayEngine(parse_scenario(scenario)).run(one_by_one)
    with EmbeddedEngine.start(scenario) as engine:
        served = measured(engine, one_by_one)
    assert list(replayed.records.schema_check) == list(served.records.schema_check)
    assert list(replayed.records.finish_reason) == list(served.records.finish_reason)


def post(engine: EmbeddedEngine, **body: Any) -> httpx.Response:
    content = {"messages": [{"role": "user", "content": "sea"}], "max_tokens": 40, **body}
    return plain_http.post(f"{engine.url}/chat/completions", json=content, timeout=10.0)


def test_an_unstreamed_call_has_its_arguments_whole(fast: EmbeddedEngine) -> None:
    reply = post(fast, tools=[TOOL], tool_choice={"type": "function", "function": {"name": "weather"}}).json()
    free = post(fast, tools=[TOOL]).json()
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    text = post(fast, response_format=form).json()
    (call,) = reply["choices"][0]["message"]["tool_calls"]
    assert call["function"]["name"] == "weather"
    assert json.loads(call["function"]["arguments"]).keys() == {"city", "days"}
    assert reply["choices"][0]["finish_reason"] == "tool_calls"
    assert reply["usage"]["completion_tokens"] == 40
    assert free["usage"]["prompt_tokens"] == reply["usage"]["prompt_tokens"] > text["usage"]["prompt_tokens"]
    assert "tool_calls" not in free["choices"][0]["message"]
    assert json.loads(text["choices"][0]["message"]["content"]).keys() == {"city", "days"}


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"tools": "weather"}, "tools must be a list of functions"),
        ({"tools": [{"type": "function"}]}, "has no function with a name"),
        ({"tools": [TOOL], "tool_choice": {"function": {"name": "x"}}}, "the name of one of the tools"),
        ({"response_format": {"type": "json_schema"}}, "neither tools nor a schema"),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "x"}}}},
            "type is 'x'",
        ),
    ],
)
def test_what_cannot_be_kept_to_is_refused(fast: EmbeddedEngine, body: Mapping[str, Any], said: str) -> None:
    answer = post(fast, **body)
    assert answer.status_code == 400
    assert said in answer.json()["error"]["message"]
