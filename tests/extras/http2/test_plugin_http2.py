"""``--llm-http=2`` from the option to the report, and where it is refused."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator

import pytest
from http2_script import only_http2
from http2_server import hypercorn, truth
from plugin_suite import SMALL_WARMUP, Suite, refused
from scripted_server import ScriptedServer

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

pytestmark = pytest.mark.usefixtures("however_late")

SUITE = """
from pytest_llmbench import llmbench, make_workload

@llmbench.ttft(concurrency=4, requests=12, workload=make_workload(input_tokens=16, output_tokens=3))
def test_first_token(): ...
"""
OWN_SUT = """
import pytest
from pytest_llmbench import SUT

@pytest.fixture(scope="session")
def llm_sut():
    return SUT({url!r})
"""
FOR_HTTP = "*--llm-http=2 is for http:// and https:// endpoints, and {}: *leave it out*"


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    with hypercorn() as url:
        yield url


@pytest.mark.parametrize("workers", [0, 1])
def test_it_is_measured_and_said(suite: Suite, server: str, workers: int) -> None:
    suite.write(SUITE, conftest=SMALL_WARMUP)
    result = suite.measure(server, "--llm-http=2", f"--llm-workers={workers}", "--llm-inconclusive=pass")
    result.assert_outcomes(passed=1)
    result.stdout.fnmatch_lines([f"llmbench: {server}, scale quick, over HTTP/2"])
    (entry,) = suite.report["tests"]
    assert suite.report["environment"]["settings"]["http"] == "2"
    assert entry["facts"]["wire.http_version"]["value"] == "2"
    assert entry["facts"]["streaming.protocol"]["value"] == "sse"
    told = truth(server)
    # The preflight, which has ids as the load has, asks over HTTP/1.1.
    versions = Counter(did["http_version"] for name, did in told.items() if name)
    assert versions["2"] >= 12
    assert versions["1.1"] <= 4
    for name in ("report.html", "summary.md"):
        assert "over HTTP/2" in (suite.path / "out" / name).read_text("utf-8"), name


def test_a_port_that_speaks_nothing_else_is_measured(suite: Suite) -> None:
    suite.write(SUITE, conftest=SMALL_WARMUP)
    alone = ScriptedServer(only_http2, read_body=False)
    try:
        suite.measure(alone.url, "--llm-http=2", "--llm-inconclusive=pass").assert_outcomes(passed=1)
    finally:
        alone.stop()
    (entry,) = suite.report["tests"]
    assert entry["facts"]["wire.http_version"]["value"] == "2"


def test_http1_is_the_default(suite: Suite, server: str) -> None:
    suite.write(SUITE, conftest=SMALL_WARMUP)
    before = set(truth(server))
    suite.measure(server, "--llm-inconclusive=pass").assert_outcomes(passed=1)
    new = [did for name, did in truth(server).items() if name and name not in before]
    assert {did["http_version"] for did in new} == {"1.1"}
    assert "over HTTP/2" not in json.dumps(suite.report)


def test_a_server_without_it_is_an_error_before_the_load(suite: Suite, engine: EmbeddedEngine) -> None:
    suite.write(SUITE, conftest=SMALL_WARMUP)
    result = suite.measure(engine.url, "--llm-http=2")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(
        ["*--llm-http=2, but the server answers with HTTP/1.1 (HTTP/1.1 400 Bad Request), not with HTTP/2*"]
    )
    result.stdout.fnmatch_lines(["*leave out --llm-http, or put a server or proxy there that speaks HTTP/2*"])


@pytest.mark.parametrize(
    ("url", "kind"),
    [
        ("ws://127.0.0.1:1/v1", "ws"),
        ("grpc://127.0.0.1:1", "grpc"),
        ("http+unix://%2Frun%2Fnone.sock/v1", "http+unix"),
        ("sim", "sim"),
        ("replay:fast", "replay"),
        ("python:json:dumps", "python"),
    ],
)
def test_what_is_not_asked_over_http_is_a_usage_error(suite: Suite, url: str, kind: str) -> None:
    suite.write(SUITE)
    refused(suite.measure(url, "--llm-http=2")).fnmatch_lines([FOR_HTTP.format(kind)])


@pytest.mark.parametrize(("url", "kind"), [("replay", "replay"), ("sim", "sim"), ("ws://127.0.0.1:1", "ws")])
def test_a_sut_of_the_suite_is_refused_too(suite: Suite, server: str, url: str, kind: str) -> None:
    suite.write(SUITE, conftest=OWN_SUT.format(url=url))
    result = suite.measure(server, "--llm-http=2")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines([FOR_HTTP.format(kind)])


def test_from_the_ini_file(suite: Suite) -> None:
    suite.write(SUITE)
    (suite.path / "pytest.ini").write_text("[pytest]\nllm_http = 2\n")
    refused(suite.measure("sim")).fnmatch_lines([FOR_HTTP.format("sim")])


def test_another_version_is_a_mistake(suite: Suite) -> None:
    suite.write(SUITE)
    (suite.path / "pytest.ini").write_text("[pytest]\nllm_http = 3\n")
    refused(suite.measure("sim")).fnmatch_lines(["*--llm-http: give '1.1' or '2', got*3*"])


def test_a_baseline_over_http1_is_not_compared(suite: Suite, server: str) -> None:
    suite.write(SUITE, conftest=SMALL_WARMUP)
    suite.measure(server, "--llm-save=main", "--llm-runs=3", "--llm-inconclusive=pass").assert_outcomes(
        passed=1
    )
    given = ("--llm-compare=main", "--llm-runs=3", "--llm-inconclusive=pass", "--llm-http=2")
    result = suite.measure(server, *given)
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*wire.http_version was not known, now it is 2*"])
    waiver = "--llm-waive=wire.http_version=the gateway is measured over both@2999-12-31"
    suite.measure(server, *given, waiver).assert_outcomes(passed=1)
