"""Endpoints that cannot be measured: one clear error naming the thing and the remedy; and one that dies."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

import pytest
from plugin_suite import Suite, stored_lines

from pytest_llmbench.simulator.serving.process import EmbeddedEngine

TWO = """
@llmbench.ttft(p99_ms=500, rate=20)
def test_a(): ...

@llmbench.ttft(p99_ms=500, rate=20)
def test_b(): ...
"""


class Scripted(BaseHTTPRequestHandler):
    """Answers from a table of path → (status, content type, body)."""

    answers: ClassVar[dict[str, tuple[int, str, Any]]] = {}

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        status, kind, body = self.answers.get(
            self.path, (404, "application/json", {"error": {"message": "no"}})
        )
        raw = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    do_GET = do_POST = _answer  # noqa: N815  # the names that http.server looks for

    def log_message(self, *args: Any) -> None:
        pass


class Server(ThreadingHTTPServer):
    request_queue_size = 128  # of the usual 5 some are tried again after a second


@pytest.fixture
def scripted(request: pytest.FixtureRequest) -> Iterator[str]:
    handler = type("Handler", (Scripted,), {"answers": request.param})
    server = Server(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}/v1"
    server.shutdown()
    thread.join()
    server.server_close()


def models(*names: str) -> tuple[int, str, Any]:
    return 200, "application/json", {"object": "list", "data": [{"id": name} for name in names]}


WHOLE = {"choices": [{"message": {"role": "assistant", "content": "hello"}, "finish_reason": "stop"}]}


ON_SIM = "--llm-endpoint=sim"
WRONG = {
    "preset": (["--llm-endpoint=sim:fats"], ["unknown preset 'fats'", "did you mean 'fast'"]),
    "endpoint": (["--llm-endpoint=nonsense"], ["nonsense", "supported are http://, https://, sim"]),
    "second endpoint": ([f"{ON_SIM}", "--llm-endpoint=b=nonsense"], ["nonsense: not an endpoint"]),
    "baseline": ([ON_SIM, "--llm-baseline-endpoint=sim:fats"], ["unknown preset 'fats'"]),
    "dialect": ([ON_SIM, "--llm-api=foo"], ["unknown API dialect 'foo'", "openai-chat"]),
    "key file": ([ON_SIM, "--llm-api-key-file=/nowhere"], ["file /nowhere with the API key cannot be read"]),
    "SUT file": ([ON_SIM, "--llm-sut=/nowhere.toml"], ["SUT file /nowhere.toml: cannot be read"]),
}


@pytest.mark.parametrize(("arguments", "words"), WRONG.values(), ids=list(WRONG))
def test_what_is_wrong_with_the_options_is_said_before_anything_runs(
    suite: Suite, arguments: list[str], words: list[str]
) -> None:
    suite.write(TWO + "\ndef test_unmarked(): ...\n")
    result = suite.run(*arguments)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    assert not result.parseoutcomes().get("passed")
    said = f"{result.stdout}\n{result.stderr}"
    assert "Traceback" not in said
    for word in words:
        assert word in said


@pytest.mark.parametrize(
    ("scripted", "arguments", "words"),
    [
        ({"/v1/models": (401, "application/json", {"error": "who"})}, [], ["401", "LLM_API_KEY"]),
        ({}, [], ["404"]),
        ({"/v1/models": models("alpha", "beta")}, [], ["alpha", "beta", "--llm-model"]),
        ({"/v1/models": models("alpha")}, ["--llm-model=alhpa"], ["alhpa", "did you mean alpha"]),
        (
            {"/v1/models": models("alpha"), "/v1/chat/completions": (200, "application/json", WHOLE)},
            [],
            ["without streaming"],
        ),
    ],
    ids=["401", "404", "several models", "unknown model", "no streaming"],
    indirect=["scripted"],
)
def test_answers_that_cannot_be_used(
    suite: Suite, scripted: str, arguments: list[str], words: list[str]
) -> None:
    suite.write(TWO)
    result = suite.measure(scripted, *arguments)
    result.assert_outcomes(errors=2)
    for word in words:
        assert word in str(result.stdout)


@pytest.mark.parametrize(
    ("host", "told", "remedy"),
    [
        ("127.0.0.1:9", "refused", "start the server"),
        ("no-such-host.invalid", "cannot be resolved", "check the host name"),
    ],
)
def test_the_cause_is_told_once(suite: Suite, host: str, told: str, remedy: str) -> None:
    suite.write(TWO)
    result = suite.measure(f"http://{host}/v1")
    result.assert_outcomes(errors=2)
    body = str(result.stdout).partition("= ERRORS =")[2].partition("LLM serving benchmarks")[0]
    assert host in body
    assert told in body
    assert body.count(f"→ {remedy}") == 1
    assert body.count("see the first error, at test_suite.py::test_a") == 1
    assert "Traceback" not in body
    assert "During handling" not in body


def test_a_broken_sut_file(suite: Suite) -> None:
    suite.write(TWO)
    (suite.path / "sut.toml").write_text('[sut]\nboundary = "engine"\n[sut.model]\nnmae = "x"\n')
    result = suite.measure("sim", "--llm-sut=sut.toml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    for word in ("sut.toml", "sut.boundary", "model_engine", "nmae", "name"):
        assert word in str(result.stderr)


def test_a_server_that_dies_mid_run(suite: Suite) -> None:
    """So many may fail that those which were under way are not enough: some more find nobody."""
    suite.write("""
        from pytest_llmbench import WarmupPolicy, llmbench
        import pytest

        @pytest.fixture(scope="session")
        def llm_warmup():
            return WarmupPolicy(requests=20, output_tokens=0, probes=3)

        @llmbench.ttft(p99_ms=500, rate=50, requests=6000)
        def test_x(): ...
    """)
    with EmbeddedEngine.start("fast") as engine:
        killer = threading.Thread(target=kill_when_busy, args=(engine,))
        killer.start()
        began = time.monotonic()
        result = suite.measure(engine.url, scale="standard")
        took = time.monotonic() - began
        killer.join()
    result.assert_outcomes(errors=1)
    assert took < 120, "the test has to end within its deadlines"
    result.stdout.fnmatch_lines(
        [
            "the server stopped answering at *.* s, INVALID: this run is not judged",
            "*cut short (the error budget cannot be kept any more: 61 of the first * after *",
            "*requests failed*disconnected*",
        ]
    )
    entry = suite.report["tests"][0]
    sent = entry["counts"]["submitted"]
    assert 61 < sent < 6000
    assert entry["counts"]["ok"] >= 1
    rows = stored_lines(suite.path / "out" / entry["records_file"])[1:]
    assert sum(json.loads(row)["phase"] == "measure" for row in rows) == sent


def kill_when_busy(engine: EmbeddedEngine) -> None:
    """SIGKILL once the engine has served the warm-up and some measured requests."""
    deadline_s = time.monotonic() + 100
    while len(engine.ground_truth()) <= 80 and time.monotonic() < deadline_s:
        time.sleep(0.1)
    os.kill(engine.pid, signal.SIGKILL)


COMMANDS = {"error": {"message": "::add-mask::e " * 12 + "##[error]no"}}


@pytest.mark.parametrize(
    "scripted",
    [{"/v1/models": models("m"), "/v1/chat/completions": (500, "text/plain", COMMANDS)}],
    indirect=True,
)
@pytest.mark.parametrize("verbosity", ["-v", "--verbosity=0"])
def test_no_text_of_a_server_is_a_command_to_the_runner(suite: Suite, scripted: str, verbosity: str) -> None:
    suite.write(TWO)
    result = suite.run(f"--llm-endpoint={scripted}", "--llm-scale=quick", verbosity)
    result.assert_outcomes(errors=2)
    told = "\n".join(result.outlines)
    assert "add-mask::e" in told
    assert "##[" not in told
    assert not [line for line in result.outlines if line.strip().startswith("::")]


def test_a_mistake_in_the_file_is_told_before_a_fixture_starts_a_system(suite: Suite) -> None:
    suite.write(
        TWO,
        conftest="""
        import pytest

        @pytest.fixture(scope="session")
        def llm_sut():
            raise RuntimeError("an engine was started for nothing")
        """,
    )
    (suite.path / "sut.toml").write_text("[sut.guardrails]\ninput_filter = 'absent'\n")
    result = suite.run("--llm-sut=sut.toml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*SUT file sut.toml: sut.guardrails: unknown key*"])
    assert "started for nothing" not in result.stdout.str()
