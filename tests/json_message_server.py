"""An API of its own by JSON messages, served by the package websockets. What it notes is the truth."""

from __future__ import annotations

import json
import threading
import time
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Self

from websockets.exceptions import ConnectionClosed
from websockets.sync.server import ServerConnection, serve

DESCRIPTION: dict[str, Any] = {
    "path": "/talk",
    "request": {
        "op": "ask",
        "id": "{request_id}",
        "of": "{model}",
        "chat": "{messages}",
        "limits": {"tokens": "{max_tokens}", "heat": "{temperature}"},
    },
    "text": {"at": "data.text", "when": {"event": "token"}},
    "end": {"when": {"event": "end"}},
    "finish_reason": "data.reason",
    "output_tokens": "data.count",
    "input_tokens": "data.words",
}
SUT_FILE = """
[endpoint]
model = "talker"

[json_messages]
path = "/talk"
text = { at = "data.text", when = { event = "token" } }
end = { when = { event = "end" } }
finish_reason = "data.reason"
output_tokens = "data.count"
input_tokens = "data.words"

[json_messages.request]
op = "ask"
id = "{request_id}"
of = "{model}"
chat = "{messages}"
limits = { tokens = "{max_tokens}", heat = "{temperature}" }
"""
"""The same as a SUT file."""


@dataclass
class Served:
    """One request."""

    asked: dict[str, Any]
    read_ns: int
    path: str
    written_ns: list[int] = field(default_factory=list)
    """When each token was about to be written."""

    @property
    def words(self) -> int:
        return len(self.asked["chat"][0]["content"].split())


class JsonMessageServer:
    """Answers each request with as many tokens as it asks for, at most sixteen. A context manager."""

    def __init__(self) -> None:
        self.served: list[Served] = []
        self.connections = 0
        self._server = serve(self._talk, "127.0.0.1", 0, compression=None)
        self._thread = threading.Thread(target=self._server.serve_forever)
        host, port = self._server.socket.getsockname()[:2]
        self.url = f"ws://{host}:{port}/api"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._server.shutdown()
        self._thread.join()

    def _talk(self, connection: ServerConnection) -> None:
        self.connections += 1
        try:
            for message in connection:
                read_ns = time.monotonic_ns()
                served = Served(json.loads(message), read_ns, connection.request.path)
                self.served.append(served)
                self._answer(connection, served)
        except ConnectionClosed:
            pass

    def _answer(self, connection: ServerConnection, served: Served) -> None:
        count = min(16, served.asked["limits"]["tokens"])
        connection.send('{"event": "queued"}')
        for number in range(count):
            served.written_ns.append(time.monotonic_ns())
            said = {"text": f" word{number}", "count": number + 1}
            connection.send(json.dumps({"event": "token", "data": said}))
        end = {"reason": "length", "count": count, "words": served.words}
        connection.send(json.dumps({"event": "end", "data": end}))
