"""A small HTTP server with canned answers, on loopback."""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import urlsplit

import pytest

from pytest_llmbench.probes.endpoint import examine

JSON = {"Content-Type": "application/json"}
HTML = {"Content-Type": "text/html; charset=utf-8"}
STREAM = {"Content-Type": "text/event-stream; charset=utf-8"}


@dataclass
class Canned:
    """An answer. ``hold_s`` keeps the connection open after the body, without ending it. ``refuses``: decides
    by the request's fields on another answer in its place."""

    status: int = 200
    headers: dict[str, str] = field(default_factory=lambda: dict(JSON))
    body: bytes = b""
    hold_s: float = 0.0
    refuses: Callable[[Any], Canned | None] = lambda _: None

    @classmethod
    def json(cls, payload: Any, status: int = 200) -> Canned:
        return cls(status, dict(JSON), json.dumps(payload).encode())

    @classmethod
    def events(cls, *payloads: Any, hold_s: float = 0.0) -> Canned:
        lines = [payload if isinstance(payload, str) else json.dumps(payload) for payload in payloads]
        body = "".join(f"data: {line}\n\n" for line in lines).encode()
        return cls(200, dict(STREAM), body, hold_s)


@dataclass
class Seen:
    """A request as it arrived."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class CannedServer(ThreadingHTTPServer):
    """``answers`` maps ``"GET /v1/models"`` to an answer; anything else is a 404."""

    daemon_threads = True
    block_on_close = False
    request_queue_size = 128  # of the usual 5 some are tried again after a second

    def __init__(self, answers: dict[str, Canned]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers = answers
        self.seen: list[Seen] = []
        self.stopping = threading.Event()

    @property
    def port(self) -> int:
        return self.server_address[1]

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Clients that hang up, or speak TLS to a plain port, are part of the tests."""


class _Handler(BaseHTTPRequestHandler):
    server: CannedServer
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        path = urlsplit(self.path)
        key = f"{self.command} {path.path}"
        self.server.seen.append(Seen(self.command, self.path, dict(self.headers), self.rfile.read(length)))
        missing = Canned.json({"detail": "Not Found"}, 404)
        canned = self.server.answers.get(key, missing)
        if self.command == "POST":
            canned = canned.refuses(self.server.seen[-1].json) or canned
        self.send_response_only(canned.status)
        for name, value in canned.headers.items():
            self.send_header(name, value)
        self.send_header("Connection", "close")
        if not canned.hold_s:
            self.send_header("Content-Length", str(len(canned.body)))
        self.end_headers()
        self.wfile.write(canned.body)
        self.wfile.flush()
        self.server.stopping.wait(canned.hold_s)
        self.close_connection = True

    do_GET = do_POST = _answer  # noqa: N815 - names that http.server calls

    def log_message(self, *_: Any) -> None:
        """Quiet."""


def chat_chunk(content: str, finish: str | None = None, **more: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": {"content": content}, "finish_reason": finish}], **more}


def told(error: type[Exception], endpoint: str, **options: Any) -> str:
    """What the preflight says when it fails with this kind of error."""
    with pytest.raises(error) as caught:
        examine(endpoint, **options)
    return str(caught.value)


Serve = Callable[..., CannedServer]


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


@pytest.fixture(autouse=True)
def no_proxies(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever proxies the environment of the test run has."""
    for name in ("http_proxy", "https_proxy", "all_proxy", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
