"""Fixtures of the probes' tests: canned servers that end with the test."""

from __future__ import annotations

import ssl
import threading
from collections.abc import Callable, Iterator

import pytest
from canned_http import Canned, CannedServer, chat_chunk

Serve = Callable[..., CannedServer]


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever proxies the environment of the test run has."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server with these answers; ``tls`` is the context of a TLS server."""
    running: list[tuple[CannedServer, threading.Thread]] = []

    def start(answers: dict[str, Canned], tls: ssl.SSLContext | None = None) -> CannedServer:
        server = CannedServer(answers)
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        running.append((server, thread))
        return server

    yield start
    for server, thread in running:
        server.stopping.set()
        server.shutdown()
        server.server_close()
        thread.join(5)


@pytest.fixture
def engine() -> dict[str, Canned]:
    """Answers of an engine that does everything right."""
    models = {
        "object": "list",
        "data": [{"id": "org/small-model", "object": "model", "owned_by": "vllm", "max_model_len": 8192}],
    }
    listing = Canned.json(models)
    listing.headers["Server"] = "uvicorn"
    chat = Canned.events(
        chat_chunk("Hi", system_fingerprint="vllm-0.32.0-ab12"), chat_chunk("!", "length"), "[DONE]"
    )
    completion = Canned.events({"choices": [{"index": 0, "text": "Hi", "finish_reason": "length"}]}, "[DONE]")
    return {
        "GET /v1/models": listing,
        "POST /v1/chat/completions": chat,
        "POST /v1/completions": completion,
    }
