"""The script of a reply of the known-delay server, and where a request carries it."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any
from urllib.parse import parse_qsl

MODEL = "known-delay"
LOG_PATH = "/known_delay/log"
SCRIPT_HEADER = "x-known-delay"
"""Name of the header that carries the script of a request whose path has no query, such as a gRPC call."""


@dataclass(frozen=True, slots=True)
class Script:
    """The form and the delays of one reply. Without an ITL all tokens leave in one write."""

    ttft_us: int = 0
    itl_us: int = 0
    tokens: int = 1

    @classmethod
    def of(cls, query: str) -> Script:
        """Parse a script from a query. :raises ValueError: a name is unknown, or a value is not a number or
        too small."""
        given = {name: int(value) for name, value in parse_qsl(query)}
        unknown = given.keys() - {"ttft_us", "itl_us", "tokens"}
        if unknown or given.get("tokens", 1) < 1 or any(value < 0 for value in given.values()):
            raise ValueError(f"not a script: {query}")
        return cls(**given)

    @property
    def query(self) -> str:
        return f"ttft_us={self.ttft_us}&itl_us={self.itl_us}&tokens={self.tokens}"

    @property
    def writes(self) -> int:
        """Number of writes."""
        return self.tokens if self.itl_us else 1

    @property
    def offsets_ns(self) -> list[int]:
        """Offsets of the writes in nanoseconds, from the last byte of the request."""
        return [(self.ttft_us + number * self.itl_us) * 1000 for number in range(self.writes)]

    def in_writes(self, tokens: list[bytes]) -> list[bytes]:
        """The bytes of each write, made of the bytes of each token."""
        return tokens if self.itl_us else [b"".join(tokens)]


Begin = Callable[[str, int, Script, Callable[[int], bytes]], None]
"""Function that begins a reply; takes its request id, when its last byte arrived, the script, and the bytes
of each write."""


_HTTP1_HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


@lru_cache(maxsize=256)
def http1_writes(script: Script) -> list[bytes]:
    """The bytes of each write over HTTP/1.1: one HTTP chunk per event; the last token's write also ends the
    reply."""
    tokens = _of_each_token(script, lambda event: b"%x\r\n%b\r\n" % (len(event), event))
    tokens[-1] += b"0\r\n\r\n"
    first, *others = script.in_writes(tokens)
    return [_HTTP1_HEAD + first, *others]


def event_writes(script: Script) -> list[bytes]:
    """The server-sent events of each write, without HTTP's framing."""
    return script.in_writes(_of_each_token(script, lambda event: event))


def _of_each_token(script: Script, framed: Callable[[bytes], bytes]) -> list[bytes]:
    tokens = [framed(_choice({"content": " tea"}))] * script.tokens
    usage = {
        "prompt_tokens": 1,
        "completion_tokens": script.tokens,
        "total_tokens": script.tokens + 1,
    }
    end = (_choice({}, "stop"), _event({"choices": [], "usage": usage}), b"data: [DONE]\n\n")
    tokens[-1] += b"".join(map(framed, end))
    return tokens


def _choice(delta: dict[str, str], finish_reason: str | None = None) -> bytes:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
    return _event({"choices": [choice]})


def _event(content: dict[str, Any]) -> bytes:
    identity = {"id": "chatcmpl-0", "object": "chat.completion.chunk", "created": 0, "model": MODEL}
    return b"data: " + json.dumps(identity | content, separators=(",", ":")).encode() + b"\n\n"
