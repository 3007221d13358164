"""A server that a fixture launches: awaited, watched while load is running, told of with its log, ended."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import httpx
import plain_http
import pytest
import trustme

from pytest_llmbench import SUT, LaunchedServer, launched_server
from pytest_llmbench.errors import LLMBenchError, SUTError
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.open_sut import OpenSUT, open_sut
from pytest_llmbench.metrics.server_side import startup_time
from pytest_llmbench.model.facts import Facts
from pytest_llmbench.model.numbers import trimmed
from pytest_llmbench.model.observation import Observation
from pytest_llmbench.model.plan import ClosedLoop, Deadlines, LoadPlan
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload

PROGRAM = [sys.executable, str(Path(__file__).parent / "fake_llm_server.py"), "{port}"]
SMALL = SyntheticWorkload("small", Fixed(8), Fixed(2))


def answers(url: str) -> bool:
    try:
        return plain_http.get(f"{url}/models", timeout=2.0).is_success
    except httpx.HTTPError:
        return False


def opened(url: str) -> OpenSUT:
    return open_sut(SUT(url), Settings(endpoint=url, workers=0), on_progress=lambda _: None)


def load(sut: OpenSUT, requests: int) -> Observation:
    plan = LoadPlan("test", SMALL, ClosedLoop(1), requests, 1, deadlines=Deadlines(drain_s=5.0))
    return sut.executor.run(plan)


def test_it_answers_within_the_block_and_not_after_it(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    with launched_server(PROGRAM, log=log) as server:
        assert server.url.startswith("http://127.0.0.1:")
        assert server.url.endswith("/v1")
        assert answers(server.url)
        assert server.ended is None
    assert not answers(server.url)
    assert log.read_text().startswith("starting on ")


def test_two_have_ports_of_their_own() -> None:
    with launched_server(PROGRAM) as one, launched_server(PROGRAM) as two:
        assert one.url != two.url
        assert answers(one.url)
        assert answers(two.url)


def test_the_port_in_a_variable(tmp_path: Path) -> None:
    run = f"runpy.run_path({PROGRAM[1]!r}, run_name='__main__')"
    script = f"import os, runpy, sys; sys.argv[1:] = [os.environ['AT']]; {run}"
    with launched_server([sys.executable, "-c", script], env={"AT": "{port}"}, cwd=tmp_path) as server:
        assert answers(server.url)


def test_the_time_until_it_is_healthy_is_known(tmp_path: Path) -> None:
    late = f"import runpy, sys, time; time.sleep(1.0); runpy.run_path({PROGRAM[1]!r}, run_name='__main__')"
    began = time.monotonic()
    with launched_server([sys.executable, "-c", late, "{port}"], cwd=tmp_path) as server:
        took_s = time.monotonic() - began
        assert 1.0 <= server.startup_s <= took_s
        with closing(opened(server.url)) as sut:
            (found,) = startup_time(sut.facts).values()
    assert (found.point, found.unit, found.too_high_by) == (server.startup_s, "s", 0.1)
    assert startup_time(Facts()) == {}


OVER_TLS = """
import http.server, ssl, sys

class Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

server = http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Answers)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(sys.argv[2])
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
"""


def test_its_certificate_is_trusted_as_that_of_any_endpoint(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority, pem = trustme.CA(), tmp_path / "server.pem"
    authority.cert_pem.write_to_path(str(tmp_path / "ca.pem"))
    authority.issue_cert("127.0.0.1").private_key_and_cert_chain_pem.write_to_path(str(pem))
    command = [sys.executable, "-c", OVER_TLS, "{port}", str(pem)]
    url = "https://127.0.0.1:{port}/v1"
    assert "certificate verify failed" in refused(command, url=url, timeout_s=2.0)
    monkeypatch.setenv("SSL_CERT_FILE", str(tmp_path / "ca.pem"))
    with launched_server(command, url=url) as server:
        assert server.url.startswith("https://")


def refused(*arguments: Any, **options: Any) -> str:
    """What is said of a server that does not come up."""
    with pytest.raises(LLMBenchError) as caught, launched_server(*arguments, **options):
        pytest.fail("it is up")
    return str(caught.value)


def test_mistakes_are_told_together() -> None:
    told = refused("vllm serve", url="tcp://host", health="health", timeout_s=float("nan"))
    for part in ("program and arguments apart", "http://", "as /health", "seconds above 0"):
        assert part in told


def test_a_command_that_does_not_say_where_it_answers() -> None:
    assert "in command or env, or give a fixed url" in refused(["serve", "--port", "8000"])


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        (["/nowhere/serve", "{port}"], ("cannot be started: No such file", "or cwd of launched_server")),
        (
            [*PROGRAM, "die-at-start"],
            ("exit code 3 before it was healthy", "command: ", "/health", "| no such model"),
        ),
    ],
)
def test_one_that_does_not_come_up(command: list[str], parts: tuple[str, ...]) -> None:
    told = refused(command, timeout_s=30.0)
    for part in parts:
        assert part in told


def test_one_that_is_never_healthy() -> None:
    for timeout_s in (0.6, 3.0, 15.0):  # a busy machine needs longer until it listens at all
        told = refused([*PROGRAM, "never-healthy"], timeout_s=timeout_s)
        if "(status 503)" in told:
            break
    assert f"not healthy within {trimmed(timeout_s)} s (status 503)" in told
    assert "| starting on " in told


def lives_through(block: Callable[[LaunchedServer], None], *words: str) -> None:
    with launched_server([*PROGRAM, *words]) as server:
        block(server)


def test_one_that_ends_by_itself_is_told_with_its_log() -> None:
    def ask_twice(server: LaunchedServer) -> None:
        body = {"model": "m", "messages": [], "max_tokens": 1}
        for _ in range(2):
            with suppress(httpx.HTTPError):
                plain_http.post(f"{server.url}/chat/completions", json=body, timeout=5.0)
        while server.ended is None:  # its connections close before it has ended
            time.sleep(0.01)

    with pytest.raises(SUTError) as caught:
        lives_through(ask_twice, "die-after=1")
    assert "ended with exit code 7 before it was stopped" in str(caught.value)
    assert "| out of memory, good bye" in str(caught.value)


def test_an_error_of_the_block_is_not_replaced() -> None:
    def fail(server: LaunchedServer) -> None:
        os.killpg(server.pid, signal.SIGKILL)
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        lives_through(fail)


def test_a_load_during_which_it_ends_is_void_and_later_ones_are_refused() -> None:
    def load_twice(server: LaunchedServer) -> None:
        with closing(opened(server.url)) as sut:
            seen = load(sut, 2_000)
            assert seen.interrupted is not None
            assert seen.interrupted.startswith("the server of launched_server ")
            assert seen.interrupted.endswith("ended with exit code 7 while load was running")
            assert int(seen.records.ok.sum()) < 2_000
            with pytest.raises(SUTError, match="ended with exit code 7") as caught:
                load(sut, 2)
            assert "| out of memory, good bye" in str(caught.value)

    with pytest.raises(SUTError, match="before it was stopped"):
        lives_through(load_twice, "die-after=40")
