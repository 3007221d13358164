"""Each set-up of a fixture is a system of its own: also at an address where another one was before."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from fake_llm_server import FakeLLMServer

from pytest_llmbench import SUT, launched_server
from pytest_llmbench.compliance.evidence import Evidence
from pytest_llmbench.errors import LLMBenchError
from pytest_llmbench.harness.judging import MeasuredTest
from pytest_llmbench.harness.session import BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.launched import free_port
from pytest_llmbench.harness.sut.sut import SetUp
from pytest_llmbench.methodology.catalogue import definition
from pytest_llmbench.methodology.parameters import build
from pytest_llmbench.methodology.procedure import WarmupPolicy
from pytest_llmbench.model.facts import EndpointFact
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

SMALL = SyntheticWorkload("small", Fixed(8), Fixed(2))
WARMUP = WarmupPolicy(requests=2, output_tokens=0, probes=0)
SENT = 10
"""Requests of a load, its warm-up not included."""
PROGRAM = [sys.executable, str(Path(__file__).parent / "fake_llm_server.py")]


@pytest.fixture
def session() -> Iterator[BenchSession]:
    bench = BenchSession(Settings(endpoint="replay", scale="quick", workers=0))
    yield bench
    bench.close()


def measured(session: BenchSession, sut: SUT | str, set_up: SetUp | None, **given: Any) -> MeasuredTest:
    test = definition("ttft")
    parameters = build(test.parameters, {"concurrency": 2, "requests": SENT, "workload": SMALL, **given})
    nodeid = "t::by_hand" if set_up is None else set_up.test
    return session.measure(nodeid, test, parameters, sut, WARMUP, set_up=set_up)


def shared_from(one: MeasuredTest) -> str | None:
    return one.result.observations[0].shared_from


def test_tests_of_one_set_up_share_and_those_of_two_do_not(session: BenchSession) -> None:
    sharing = [measured(session, "replay", SetUp(1, test)) for test in ("t::a", "t::b")]
    session.close_set_up(1)
    other = measured(session, "replay", SetUp(2, "t::c"))
    assert [shared_from(one) for one in (*sharing, other)] == [None, "t::a", None]


def test_servers_one_after_another_on_one_port(session: BenchSession) -> None:
    port, names = free_port(), ("first", "second")
    found = []
    for number, name in enumerate(names, start=1):
        with FakeLLMServer(port, (f"model={name}",)) as server:
            found.append(measured(session, server.url, SetUp(number, f"t::{name}")))
            session.close_set_up(number)
            assert server.completions > SENT
            assert {body["model"] for body in server.bodies()} == {name}
    assert [one.result.facts.value("endpoint.models") for one in found] == [[name] for name in names]
    assert [one.result.facts.value(EndpointFact.INSTANCE) for one in found] == [None, 2]
    assert [shared_from(one) for one in found] == [None, None]


def test_a_server_that_is_there_in_two_set_ups_gets_new_prompts(session: BenchSession) -> None:
    with FakeLLMServer() as server:
        for number in (1, 2):
            one = measured(session, server.url, SetUp(number, f"t::{number}"))
            session.close_set_up(number)
            assert "prompts_sent_before" not in {finding.name for finding in one.result.findings}
        prompts = [str(body.get("messages", body.get("prompt"))) for body in server.bodies()]
    assert len(set(prompts)) > 2 * SENT


@pytest.mark.parametrize("set_ups", [(1, 2), (1, 1), (None, None)])
def test_launched_servers_one_after_another_on_one_port(
    session: BenchSession, set_ups: tuple[int | None, int | None]
) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    for set_up, name in zip(set_ups, ("first", "second"), strict=True):
        with launched_server([*PROGRAM, str(port), f"model={name}"], url=url):
            one = measured(session, url, None if set_up is None else SetUp(set_up, f"t::{name}"))
        assert one.result.facts.value("endpoint.models") == [name]
        assert shared_from(one) is None
        assert all(run.interrupted is None for run in one.result.observations)
        assert "prompts_sent_before" not in {finding.name for finding in one.result.findings}


def test_a_test_that_is_run_again_has_a_failed_opening_tried_again(session: BenchSession) -> None:
    port = free_port()
    url = f"http://127.0.0.1:{port}/v1"
    for test, told in (("t::a", "→"), ("t::b", "see the first error, at t::a"), ("t::b", "→")):
        with pytest.raises(LLMBenchError, match=told):
            measured(session, url, SetUp(1, test))
    with FakeLLMServer(port):
        with pytest.raises(LLMBenchError, match="see the first error, at t::b"):
            measured(session, url, SetUp(1, "t::a"))
        assert measured(session, url, SetUp(1, "t::a")).result.observations
        assert measured(session, url, SetUp(1, "t::c")).result.observations


def test_the_load_of_one_system_is_no_evidence_for_another(session: BenchSession) -> None:
    first, second, other = [
        measured(session, "replay", SetUp(set_up, f"t::{test}")).result
        for set_up, test in [(1, "a"), (1, "b"), (2, "c")]
    ]
    assert Evidence("ttft", first, siblings=(second, other)).same_system == (second,)
    assert Evidence("ttft", other, siblings=(first, second)).same_system == ()
