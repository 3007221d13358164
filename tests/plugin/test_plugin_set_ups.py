"""Fixtures ``llm_sut`` that put one system after another at one address, and openings that fail at first."""

from __future__ import annotations

from pathlib import Path

import pytest
from plugin_suite import SMALL_WARMUP, Suite

pytestmark = pytest.mark.usefixtures("fake_servers", "however_late")

SERVERS = """
import pytest
from fake_llm_server import FakeLLMServer
from pytest_llmbench import Fixed, SyntheticWorkload, llmbench
from pytest_llmbench.harness.sut.launched import free_port

SMALL = SyntheticWorkload("small", Fixed(8), Fixed(2))
PORT = free_port()

@pytest.fixture(scope="{scope}", params=["first", "second"])
def llm_sut(request):
    with FakeLLMServer(PORT, ("model=" + request.param,)) as server:
        yield server.url
        names = {{body["model"] for body in server.bodies()}}
        assert names == {{request.param}}, names

{body}
"""
MARKED = """
@llmbench.ttft(concurrency=2, requests=10, workload=SMALL)
def test_a(llm_result):
    assert llm_result.observations[0].shared_from is None

@llmbench.ttft(concurrency=2, requests=10, workload=SMALL)
def test_b(llm_result):
    assert (llm_result.observations[0].shared_from or "").startswith("test_suite.py::test_a[") == {shared}
"""
BY_HAND = """
def test_by_hand(llm_bench, llm_sut):
    result = llm_bench.measure("ttft", concurrency=2, requests=10, workload=SMALL)
    assert result.observations[0].records.ok.all()

@pytest.mark.asyncio
async def test_single_requests(llm_client):
    assert (await llm_client.complete("Hello", max_tokens=2)).text
"""
OVERRIDDEN = """
import pytest
@llmbench.ttft(rate=20, requests=40)
def test_outside(): ...

class TestIts:
    @pytest.fixture(scope="class")
    def llm_sut(self, llm_sut):
        return llm_sut

    @llmbench.ttft(rate=20, requests=40)
    def test_inside(self, llm_result):
        assert llm_result.observations[0].shared_from is None

@llmbench.ttft(rate=20, requests=40)
def test_outside_again(llm_result):
    assert llm_result.observations[0].shared_from == "test_suite.py::test_outside"
"""
PARAMETRIZED = """
import pytest
@pytest.mark.parametrize("llm_sut", ["replay:fast", "replay:h100-8b"])
@llmbench.ttft(rate=20, requests=40)
def test_each(llm_sut, llm_result):
    assert llm_result.observations[0].shared_from is None
    assert llm_result.facts.value("endpoint.url") == llm_sut
"""


@pytest.fixture
def fake_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[1] / "harness"))


@pytest.mark.parametrize(("scope", "shared"), [("module", True), ("class", False), ("function", False)])
def test_each_of_two_servers_on_one_port_is_measured(suite: Suite, scope: str, shared: bool) -> None:
    suite.write(SERVERS.format(scope=scope, body=MARKED.format(shared=shared)), SMALL_WARMUP)
    suite.run("--llm-scale=quick", "--llm-workers=0").assert_outcomes(passed=4)


def test_by_hand_each_of_two_servers_on_one_port_is_asked(suite: Suite) -> None:
    suite.write(SERVERS.format(scope="module", body=BY_HAND), SMALL_WARMUP)
    result = suite.run("--llm-scale=quick", "--llm-workers=0")
    result.assert_outcomes(passed=4)


def test_an_override_is_a_system_of_its_own_and_the_overridden_one_stays(suite: Suite) -> None:
    suite.write(OVERRIDDEN)
    suite.measure("replay").assert_outcomes(passed=3)


def test_a_parametrized_name(suite: Suite) -> None:
    suite.write(PARAMETRIZED)
    suite.run("--llm-scale=quick").assert_outcomes(passed=2)


PLANNED = """
import pytest
@pytest.fixture(scope="session", params=["fast", "h100-8b"])
def preset(request):
    return request.param

@pytest.fixture(scope="{scope}")
def llm_sut(preset):
    return "replay:" + preset

@llmbench.ttft(rate=20, requests=40)
def test_a(): ...

@llmbench.ttft(rate=20, requests=40)
def test_b(): ...
"""


@pytest.mark.slow
@pytest.mark.parametrize(("scope", "shared"), [("session", 2), ("module", 2), ("class", 0), ("function", 0)])
def test_the_plan_says_what_is_shared_within_a_set_up(suite: Suite, scope: str, shared: int) -> None:
    suite.write(PLANNED.format(scope=scope))
    told = str(suite.run("--llm-plan", "--llm-endpoint=replay", "--llm-scale=quick").stdout)
    assert told.count("loads shared with") == shared
    suite.measure("replay").assert_outcomes(passed=4)
    assert sum(test["shared"] for test in suite.report["tests"]) == shared


def test_a_server_that_does_not_start_is_told_without_our_code(suite: Suite) -> None:
    suite.write("""
        import pytest
        from pytest_llmbench import SUT, launched_server, llmbench

        @pytest.fixture(scope="session")
        def llm_sut():
            with launched_server(["sh", "-c", "echo no such model; exit 3", "{port}"]) as server:
                yield SUT(server.url)

        @llmbench.ttft(rate=20)
        def test_one(): ...

        @llmbench.ttft(rate=20)
        def test_two(): ...
    """)
    ran = suite.run()
    ran.assert_outcomes(errors=2)
    told = ["*ended with exit code 3 before it was healthy", "*| no such model", "*start it by hand*"]
    ran.stdout.fnmatch_lines([*told, *told])
    ran.stdout.no_fnmatch_line("*launched.py*")
