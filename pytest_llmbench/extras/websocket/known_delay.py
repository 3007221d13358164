"""The known-delay server's side of a WebSocket: the Responses API, each event of a reply in one message."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from websockets.frames import Frame, Opcode
from websockets.http11 import Request
from websockets.server import ServerProtocol

from pytest_llmbench.simulator.known_delay import MODEL, Begin, Script

_SILENT = logging.Logger("known delay", logging.CRITICAL + 1)


class WebSocketSide:
    """The server's end of one WebSocket. Handshake, framing and closing are done by the package
    websockets."""

    def __init__(self, script: Script, write: Callable[[bytes], int], begin: Begin) -> None:
        self._script = script
        self._write = write
        self._begin = begin
        self._protocol = ServerProtocol(logger=_SILENT)

    def take(self, data: bytes, at_ns: int) -> bool:
        """Process what was read at ``at_ns``; returns whether the connection goes on."""
        self._protocol.receive_data(data)
        for event in self._protocol.events_received():
            if isinstance(event, Request):
                self._protocol.send_response(self._protocol.accept(event))
            elif isinstance(event, Frame) and event.opcode is Opcode.TEXT:
                writes = message_writes(self._script)
                try:
                    found = json.loads(bytes(event.data))["metadata"]["request_id"]
                except (ValueError, KeyError, TypeError, RecursionError):
                    found = ""
                request_id = found if isinstance(found, str) else ""
                self._begin(request_id, at_ns, self._script, writes.__getitem__)
        for out in self._protocol.data_to_send():
            if out:
                self._write(out)
        return not self._protocol.close_expected()


@lru_cache(maxsize=256)
def message_writes(script: Script) -> list[bytes]:
    """The frames of each write; the last token's write also ends the reply."""
    delta = {"type": "response.output_text.delta", "output_index": 0, "content_index": 0, "delta": " tea"}
    tokens = [_frame(delta)] * script.tokens
    text = {"type": "output_text", "text": " tea" * script.tokens}
    output = {"type": "message", "role": "assistant", "status": "completed", "content": [text]}
    usage = {"input_tokens": 1, "output_tokens": script.tokens, "total_tokens": script.tokens + 1}
    response = {"id": "resp_0", "object": "response", "model": MODEL, "status": "completed"}
    tokens[-1] += _frame(
        {"type": "response.completed", "response": {**response, "output": [output], "usage": usage}}
    )
    return script.in_writes(tokens)


def _frame(event: dict[str, Any]) -> bytes:
    return Frame(Opcode.TEXT, json.dumps(event, separators=(",", ":")).encode()).serialize(mask=False)
