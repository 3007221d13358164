"""A suite against a server with an API of its own: described, asked, measured, and held against its log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from embedded_chain import measured, run_in_process
from json_message_server import DESCRIPTION, SUT_FILE, JsonMessageServer
from measured_rows import counted_rows

from pytest_llmbench.harness.beforehand import mistakes_of
from pytest_llmbench.harness.session import BenchSession
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.open_sut import open_sut
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

VARIANT = "\n[variants.hot]\nrequest = { extra_body = { limits = { heat = 1.5 } } }\n"
BY_FIXTURE = f"""
import pytest
from pytest_llmbench import SUT, llmbench

@pytest.fixture(scope="session")
def llm_sut():
    return SUT("{{url}}", model="talker", json_messages={DESCRIPTION!r})

@llmbench.ttft(rate=15, requests=10)
def test_first_token(llm_result):
    assert llm_result.observations[0].facts.value("wire.dialect") == "json-messages"
"""


@pytest.fixture
def server() -> Iterator[JsonMessageServer]:
    with JsonMessageServer() as running:
        yield running


def plan(**changes: Any) -> LoadPlan:
    workload = SyntheticWorkload("short", Fixed(20), Fixed(8))
    return LoadPlan(label="by hand", workload=workload, load=ClosedLoop(2), requests=6, seed=1, **changes)


@pytest.mark.usefixtures("without_pictures", "however_late")
@pytest.mark.parametrize("workers", [1, 2])
def test_a_suite_by_workers(pytester: pytest.Pytester, server: JsonMessageServer, workers: int) -> None:
    (pytester.path / "sut.toml").write_text(SUT_FILE, "utf-8")
    entry = measured(pytester, server.url, "--llm-sut=sut.toml", f"--llm-workers={workers}")
    truth = {served.asked["id"]: served for served in server.served}
    rows = counted_rows(pytester.path / "out", entry)
    assert len(rows) == 30
    for row in rows:
        true = truth[row["request_id"]]
        assert true.path == "/api/talk"
        assert (row["output_tokens"], row["input_tokens"]) == (len(true.written_ns), true.words)
        assert (row["token_source"], row["finish_reason"]) == ("server_usage", "length")
        assert row["submitted_ns"] <= true.read_ns <= true.written_ns[0] <= row["first_content_ns"]
    facts = {name: fact["value"] for name, fact in entry["facts"].items()}
    assert facts["endpoint.api"] == "json-messages"
    assert facts["streaming.protocol"] == "websocket"
    assert facts["json_messages"] == DESCRIPTION
    assert facts["request.extra_body"] == {"op": "ask"}
    assert "request.unsent" not in facts
    prompt = server.served[-1].asked["chat"][0]["content"]
    for file in (pytester.path / "out").iterdir():
        assert not file.is_file() or prompt.encode() not in file.read_bytes()
    clauses = {clause["id"]: clause["status"] for clause in entry["compliance"]["requirements"]}
    assert clauses["M-4.6.2-protocol-stated"] == "met"


@pytest.mark.usefixtures("without_pictures", "however_late")
def test_described_by_a_fixture(pytester: pytest.Pytester, server: JsonMessageServer) -> None:
    suite = BY_FIXTURE.replace("{url}", server.url)
    options = ("--llm-scale=quick", "--llm-inconclusive=pass", "--llm-endpoint=replay")
    run_in_process(pytester, suite, *options).assert_outcomes(passed=1)
    assert len(server.served) > 10


def test_a_variant_with_other_fields(tmp_path: Path, server: JsonMessageServer) -> None:
    file = tmp_path / "sut.toml"
    file.write_text(SUT_FILE + VARIANT, "utf-8")
    bench = BenchSession(Settings(endpoint=server.url, sut=file, workers=0))
    try:
        sut = bench.sut_from_settings()
        usual = bench.execute(plan(), sut)
        heats = {served.asked["limits"]["heat"] for served in server.served}
        hot = bench.execute(plan(variant="hot"), sut)
    finally:
        bench.close()
    assert (usual.records.counts()["ok"], hot.records.counts()["ok"]) == (6, 6)
    assert heats == {0.0}
    assert {served.asked["limits"]["heat"] for served in server.served[-6:]} == {1.5}
    assert {served.asked["limits"]["tokens"] for served in server.served[-6:]} == {8}
    assert hot.facts.value("request.variant_body") == {"op": "ask", "limits": {"heat": 1.5}}


def test_what_is_said_before_any_traffic(tmp_path: Path) -> None:
    file = tmp_path / "sut.toml"
    file.write_text(SUT_FILE, "utf-8")
    assert mistakes_of(Settings(endpoint="ws://h:1", sut=file)) == []
    for endpoint in ("http://h/v1", "sim", "replay"):
        (mistake,) = mistakes_of(Settings(endpoint=endpoint, sut=file))
        assert "json-messages is spoken over WebSocket alone" in mistake
    (mistake,) = mistakes_of(Settings(endpoint="ws://h:1", api="json-messages"))
    assert "needs a description" in mistake
    assert mistakes_of(Settings(endpoint="ws://h:1", api="openai-responses", sut=file)) == []
    file.write_text("[json_messages]\ntxet = 'a'\n", "utf-8")
    (mistake,) = mistakes_of(Settings(endpoint="ws://h:1", sut=file))
    for said in ("txet: unknown key", "request is missing", "text is missing"):
        assert f"json_messages.{said}" in mistake


def test_what_requests_do_not_tell_is_a_fact(server: JsonMessageServer) -> None:
    request = {**DESCRIPTION["request"], "limits": {"tokens": 5, "top_k": 1}}
    sut = SUT(server.url, model="talker", json_messages={**DESCRIPTION, "request": request})
    opened = open_sut(sut, Settings(workers=0), on_progress=lambda _: None)
    facts = opened.facts
    opened.close()
    assert facts.value("request.unsent") == ["max_tokens", "temperature"]
    assert facts.value("request.extra_body") == {"op": "ask", "limits": {"tokens": 5, "top_k": 1}}
    assert facts.value("json_messages")["path"] == "/talk"
