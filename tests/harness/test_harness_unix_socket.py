"""An endpoint behind a Unix socket: preflight, load, single requests, and what is wrong with a path."""

from __future__ import annotations

import socketserver
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import pytest
from fake_llm_server import _Handler

from pytest_llmbench.errors import NotReadyError, SuiteError
from pytest_llmbench.generator.http.target import Target
from pytest_llmbench.harness.settings import Settings
from pytest_llmbench.harness.sut.open_sut import open_sut
from pytest_llmbench.harness.sut.sut import SUT
from pytest_llmbench.model.plan import ClosedLoop, LoadPlan
from pytest_llmbench.probes.endpoint import examine
from pytest_llmbench.probes.model_list import base_candidates
from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.synthetic import SyntheticWorkload


class _UnixHandler(_Handler):
    disable_nagle_algorithm = False


class _UnixServer(socketserver.ThreadingUnixStreamServer):
    daemon_threads = True
    words = ("metrics",)
    completions = 0

    def __init__(self, path: Path) -> None:
        self.calls: list[tuple[object, ...]] = []
        super().__init__(str(path), _UnixHandler)


@pytest.fixture
def path(tmp_path: Path) -> Iterator[Path]:
    path = tmp_path / "engine.sock"
    server = _UnixServer(path)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield path
    server.shutdown()
    server.server_close()
    thread.join(5)


def url(path: Path) -> str:
    return f"http+unix://{quote(str(path), safe='')}/v1"


@pytest.mark.asyncio
@pytest.mark.parametrize("workers", [0, 1])
async def test_a_load_and_a_single_request(path: Path, workers: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALL_PROXY", "http://127.0.0.1:9")
    settings = Settings(endpoint=url(path), workers=workers)
    opened = open_sut(SUT(url(path)), settings, on_progress=lambda _: None)
    try:
        assert (opened.base_url, opened.opened.model) == (url(path), "fake")
        assert opened.facts.value("endpoint.url") == url(path)
        assert opened.facts.value("clock.topology") == "single_machine"
        assert "network.rtt_ms" not in opened.facts
        words = SyntheticWorkload("words", Fixed(8), Fixed(4))
        seen = opened.executor.run(LoadPlan("load", words, ClosedLoop(2), 6, seed=1))
        assert opened.client is not None
        reply = await opened.client().complete("Hello", max_tokens=3)
    finally:
        opened.close()
    assert seen.records.ok.all()
    assert set(seen.records.output_tokens) == {4}
    assert seen.selfcheck.stamp_source.startswith("user space")
    assert reply.output_tokens == 3


def test_a_socket_that_is_not_there_yet(tmp_path: Path) -> None:
    gone = tmp_path / "none.sock"
    with pytest.raises(NotReadyError, match="this socket does not exist") as caught:
        examine(url(gone))
    assert caught.value.where == f"{url(gone)}/models"


def test_a_socket_that_nobody_listens_at_any_more(tmp_path: Path) -> None:
    left = tmp_path / "left.sock"
    _UnixServer(left).server_close()
    with pytest.raises(NotReadyError, match="connection refused"):
        examine(url(left))


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("http+unix://run/engine.sock", "no absolute path of a socket; its slashes are written %2F"),
        ("http+unix:///run/engine.sock", "no absolute path"),
        (f"http+unix://%2F{'x' * 200}/v1", "may have 107 bytes, this one has 201"),
    ],
)
def test_what_is_no_path_of_a_socket(given: str, said: str) -> None:
    with pytest.raises(SuiteError, match=said):
        Target.parse(given)
    with pytest.raises(SuiteError, match=said):
        base_candidates(given)


def test_a_target_shows_its_socket() -> None:
    target = Target.parse("http+unix://%2Frun%2Fengine.sock/v1")
    assert (target.authority, target.place) == ("localhost", "/run/engine.sock")
    assert target.url == "http+unix://%2Frun%2Fengine.sock/v1"
    assert target.request_target("/v1/chat/completions") == "/v1/chat/completions"
