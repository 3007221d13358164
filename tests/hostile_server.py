"""A server that speaks the protocol well enough to be measured, and then does its worst."""

from __future__ import annotations

import base64
import html
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import Any, ClassVar
from urllib.parse import quote

Reply = tuple[int, str, bytes]
"""Status, content type and body."""
Behaviour = Callable[[str, int], Reply]
"""From the key that the request carried, and the number of the completion asked for."""

ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": str,
    "percent": lambda key: quote(key, safe=""),
    "every sign percent": lambda key: "".join(f"%{ord(sign):02X}" for sign in key),
    "base64": lambda key: base64.b64encode(f"user:{key}".encode()).decode(),
    "html": lambda key: html.escape(key),
    "decimal entities": lambda key: "".join(f"&#{ord(sign)};" for sign in key),
    "unicode escapes": lambda key: "".join(f"\\u{ord(sign):04x}" for sign in key),
    "mixed escapes": lambda key: "".join(
        f"\\u{ord(sign):04X}" if place % 2 else sign for place, sign in enumerate(key)
    ),
    "repr": repr,
}


def encoded(key: str, number: int) -> str:
    """One encoding after the other."""
    return list(ENCODINGS.values())[number % len(ENCODINGS)](key)


def traces(text: str, key: str) -> list[str]:
    """Encodings in which the key, or the most of it, stands in the text."""
    found = []
    for name, encode in ENCODINGS.items():
        whole = encode(key)
        if name == "base64":
            # As encode() does it: what stands before the key shifts it by a byte or two.
            whole = encode(key)[10:]
        if whole[: len(whole) * 2 // 3] in text or whole[len(whole) // 3 :] in text:
            found.append(name)
    return found


def event(payload: Any) -> bytes:
    return f"data: {json.dumps(payload)}\n\n".encode()


def words(number: int = 4, finish: str = "stop", usage: Any = None, more: Any = None) -> bytes:
    """A whole stream of so many words."""
    body = b"".join(event({"choices": [{"index": 0, "delta": {"content": f"w{n} "}}]}) for n in range(number))
    body += event({"choices": [{"index": 0, "delta": {}, "finish_reason": finish}]})
    counts = {"prompt_tokens": 7, "completion_tokens": number} if usage is None else usage
    return body + event({"choices": [], "usage": counts, **(more or {})}) + b"data: [DONE]\n\n"


def stream(body: bytes) -> Reply:
    return 200, "text/event-stream", body


ABSURD_PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{model_name="m",engine="0"} +Inf
vllm:num_requests_waiting{model_name="m"} NaN
vllm:gpu_cache_usage_perc 1e308
vllm:num_preemptions_total{engine="0"} 1.7e308
vllm:num_preemptions_total{engine="1"} 1.7e308
vllm:prompt_tokens_total -5
"""
"""The metrics page of an engine that lies."""


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128
    """Of five, as the standard library has it, the connections of a preflight overflow: a second is lost."""


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    behaviour: ClassVar[Behaviour]
    models: ClassVar[Callable[[str], Reply]]
    honest: ClassVar[int]
    numbers: ClassVar[Iterator[int]]

    def do_GET(self) -> None:
        if self.path.endswith("/models"):
            self._send(*type(self).models(self._key))
        else:
            self._send(404, "application/json", b'{"error": "no"}')

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        if not self.path.endswith("/chat/completions"):
            self._send(404, "application/json", b'{"error": "no"}')
            return
        number = next(type(self).numbers) - type(self).honest
        self._send(*(stream(words()) if number < 0 else type(self).behaviour(self._key, number)))

    @property
    def _key(self) -> str:
        return self.headers.get("authorization", "").removeprefix("Bearer ")

    def _send(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        if 300 <= status < 400:
            self.send_header("location", body.decode())
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: Any) -> None:
        pass


def model_list(_: str) -> Reply:
    return 200, "application/json", json.dumps({"object": "list", "data": [{"id": "m"}]}).encode()


@contextmanager
def serving(
    behaviour: Behaviour, *, honest: int = 0, models: Callable[[str], Reply] = model_list
) -> Iterator[str]:
    """The base URL of a server that answers the first ``honest`` completions well."""
    attributes = {
        "behaviour": staticmethod(behaviour),
        "models": staticmethod(models),
        "honest": honest,
        "numbers": count(),
    }
    server = _Server(("127.0.0.1", 0), type("Handler", (_Handler,), attributes))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}/v1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
