"""A small OpenAI-like server that remembers what it was asked: in a thread, or as a program to be launched.

python fake_llm_server.py PORT [die-after=N] [die-at-start] [never-healthy] [metrics] [model=NAME]
"""

from __future__ import annotations

import json
import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeLLMServer(ThreadingHTTPServer):
    """``calls`` holds (method, path, JSON body, headers) of everything but the model list."""

    daemon_threads = True
    request_queue_size = 128
    """Connections not yet accepted. The default, 5, is fewer than the probe of the round trip opens, and each
    further one waits a second until it is tried again."""

    def __init__(self, port: int = 0, words: tuple[str, ...] = ()) -> None:
        super().__init__(("127.0.0.1", port), _Handler)
        self.words = words
        self.calls: list[tuple[str, str, Any, dict[str, str]]] = []
        self.completions = 0

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"

    @property
    def url(self) -> str:
        return f"{self.origin}/v1"

    def paths(self, method: str = "POST") -> list[str]:
        """Paths of the calls that are no completions."""
        return [path for how, path, _, _ in self.calls if how == method and "completions" not in path]

    def bodies(self) -> list[dict[str, Any]]:
        return [body for _, path, body, _ in self.calls if "completions" in path]

    def __enter__(self) -> FakeLLMServer:
        threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: FakeLLMServer
    disable_nagle_algorithm = True

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            models = [word.partition("=")[2] for word in self.server.words if word.startswith("model=")]
            listed = [{"id": name, "object": "model"} for name in models or ["fake"]]
            self._answer(200, {"object": "list", "data": listed})
            return
        self.server.calls.append(("GET", self.path, None, dict(self.headers)))
        if self.path == "/health":
            self._answer(503 if "never-healthy" in self.server.words else 200, {})
        elif self.path == "/metrics" and "metrics" in self.server.words:
            self._metrics()
        else:
            self._answer(404, {"error": {"message": f"no {self.path}"}})

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        body = json.loads(raw) if raw else None
        self.server.calls.append(("POST", self.path, body, dict(self.headers)))
        if "completions" in self.path:
            self._stream(body)
        elif self.path.startswith("/refuse"):
            self._answer(409, {"error": "not now"})
        else:
            self._answer(204 if self.path == "/admin/204" else 200, {})

    def _stream(self, body: dict[str, Any]) -> None:
        self.server.completions += 1
        limits = [int(word.partition("=")[2]) for word in self.server.words if word.startswith("die-after=")]
        if limits and self.server.completions > limits[0]:
            print("out of memory, good bye", flush=True)
            os._exit(7)
        tokens = int(body.get("max_tokens") or body.get("max_completion_tokens") or 1)
        events = [
            {"choices": [{"index": 0, "delta": {"content": "word "}, "finish_reason": None}]}
            for _ in range(tokens)
        ]
        events.append({"choices": [{"index": 0, "delta": {}, "finish_reason": "length"}]})
        events.append({"choices": [], "usage": {"prompt_tokens": 8, "completion_tokens": tokens}})
        data = b"".join(f"data: {json.dumps(event)}\n\n".encode() for event in events) + b"data: [DONE]\n\n"
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def _metrics(self) -> None:
        count = self.server.completions
        page = f'vllm:num_requests_running 1\nvllm:request_success_total{{finish_reason="length"}} {count}\n'
        self._send(200, page.encode(), "text/plain")

    def _answer(self, status: int, content: Any) -> None:
        self._send(status, b"" if status == 204 else json.dumps(content).encode(), "application/json")

    def _send(self, status: int, data: bytes, content_type: str) -> None:
        self.send_response(status)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: object) -> None:
        """Silent."""


if __name__ == "__main__":
    print("starting on", sys.argv[1], flush=True)
    if "die-at-start" in sys.argv:
        print("no such model", flush=True)
        sys.exit(3)
    FakeLLMServer(int(sys.argv[1]), tuple(sys.argv[2:])).serve_forever(poll_interval=0.05)
