"""Messages with roles, sent over each API and held against what the embedded engine counts and caches."""

from __future__ import annotations

import json

import pytest
from served_load import PATIENT

from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.generator.run import LoadGenerator
from pytest_llmbench.generator.workers.distributed import DistributedLoadGenerator
from pytest_llmbench.generator.workers.protocol import Address
from pytest_llmbench.metrics.session_figures import growth
from pytest_llmbench.model.messages import Message, MessageArray, ToolCall
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import LoadPlan, SessionSlots
from pytest_llmbench.registry import transport_for
from pytest_llmbench.simulator.replay.engine import ReplayEngine
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.simulator.serving.process import EmbeddedEngine
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.workloads.dataset import DatasetIdentity
from pytest_llmbench.workloads.trace_sessions import (
    TracedSession,
    TracedTurn,
    TraceSessionWorkload,
    ids_of,
)

SCENARIO = "fast?prefix_caching=true&kv_block_tokens=1&kv_blocks=140000"
TOOLS = json.dumps(
    [{"type": "function", "function": {"name": "find", "parameters": {"type": "object", "properties": {}}}}],
    separators=(",", ":"),
)
ROUNDS = 4


def session(number: int) -> TracedSession:
    """An agent that calls a tool, is answered, and is asked for more."""
    said = [
        Message("system", f"You are clerk number {number} of a library."),
        Message("user", "Where is it?"),
    ]
    turns = []
    for place in range(ROUNDS):
        array = MessageArray(tuple(said), TOOLS)
        turns.append(TracedTurn(len(ids_of(array)), 6, (place,) if place else (), messages=array))
        said += [
            Message("assistant", "I look.", (ToolCall(f"c{place}", "find", f'{{"place":{place}}}'),)),
            Message("tool", f"It is on floor {place}.", call_id=f"c{place}"),
        ]
    return TracedSession(tuple(turns))


TALKS = TraceSessionWorkload(
    "talks", tuple(map(session, range(3))), DatasetIdentity("talks", "1", "all"), timed=False
)
PLAN = LoadPlan("measure", TALKS, SessionSlots(1), 3 * ROUNDS, seed=3, deadlines=PATIENT)


def measured(api: str, scheme: str = "http") -> Observation:
    with EmbeddedEngine.start(SCENARIO) as engine:
        url = engine.url.replace("http", scheme, 1)
        target = Target.parse(url.removesuffix("/v1") if dialect(api).rooted else url)
        with LoadGenerator(target, dialect(api), model=engine.model) as generator:
            seen = generator.run(PLAN)
        truths = {truth.request_id: truth for truth in engine.ground_truth()}
    records = seen.records
    assert records.counts()["ok"] == 3 * ROUNDS
    assert [truths[each].cached_tokens for each in records.request_id] == records.cached_tokens.tolist() or (
        records.cached_tokens < 0
    ).all()
    return seen


@pytest.mark.parametrize(
    ("api", "scheme"),
    [
        ("openai-chat", "http"),
        ("openai-responses", "http"),
        pytest.param(
            "openai-responses",
            "ws",
            marks=pytest.mark.skipif(transport_for("ws") is None, reason="the extra is left out"),
        ),
        ("anthropic-messages", "http"),
        ("ollama-chat", "http"),
    ],
)
def test_prompts_have_the_length_of_their_texts_over_each_api_with_roles(api: str, scheme: str) -> None:
    seen = measured(api, scheme)
    records = seen.records
    assert (records.input_tokens == records.requested_input_tokens).all()
    assert seen.facts.value("wire.messages") == "roles"
    grown = growth(records)
    assert grown.counted == grown.asked > 0
    assert grown.turns == 3 * (ROUNDS - 1)


def test_the_cache_has_of_a_turn_what_the_one_before_it_asked() -> None:
    records = measured("openai-chat").records
    later = records.turn > 1
    # The answer of the engine is not the recorded one, so nothing beyond the earlier prompt is in the cache.
    assert (records.cached_tokens[later] == records.shared_prefix_tokens[later]).all()
    replayed = ReplayEngine(parse_scenario(SCENARIO)).run(PLAN).records
    assert replayed.cached_tokens.tolist() == records.cached_tokens.tolist()


def test_over_an_api_without_roles_they_are_one_text() -> None:
    seen = measured("openai-completions")
    assert seen.facts.value("wire.messages") == "one_text"
    assert (seen.records.input_tokens > seen.records.requested_input_tokens).all()


@pytest.mark.slow
def test_workers_send_messages_too() -> None:
    with EmbeddedEngine.start(SCENARIO) as engine:
        address = Address(engine.url)
        for api, how in (("openai-chat", "roles"), ("openai-completions", "one_text")):
            with DistributedLoadGenerator(address, api, workers=2, model=engine.model) as generator:
                seen = generator.run(PLAN.with_(load=SessionSlots(2)))
            assert seen.records.counts()["ok"] == 3 * ROUNDS
            assert seen.facts.value("wire.messages") == how
            as_asked = seen.records.input_tokens == seen.records.requested_input_tokens
            assert as_asked.all() == (how == "roles")
