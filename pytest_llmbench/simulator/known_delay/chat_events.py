"""Replies of the known-delay server as server-sent events of a chat completion."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import lru_cache
from typing import Any

from pytest_llmbench.simulator.known_delay.script import MODEL, Script

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
