"""Builders of wire events for tests, and texts that are odd in them."""

from __future__ import annotations

import json
from typing import Any

Event = dict[str, Any]


def sse(*events: Event | str, end: str = "\n\n") -> bytes:
    """Events as ``data`` lines; strings are sent as they are."""
    lines = (each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in events)
    return "".join(f"data: {line}{end}" for line in lines).encode()


def chat(delta: Event, finish: str | None = None, **more: Any) -> Event:
    choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
    head = {"id": "chatcmpl-1f", "object": "chat.completion.chunk", "created": 1763700000, "model": "small"}
    return {**head, "choices": [choice], **more}


def text(piece: str, finish: str | None = None, **more: Any) -> Event:
    choice = {"index": 0, "text": piece, "logprobs": None, "finish_reason": finish, "stop_reason": None}
    return {"id": "cmpl-1f", "object": "text_completion", "model": "small", "choices": [choice], **more}


def usage(prompt: int, completion: int, **more: Any) -> Event:
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {"usage": {**counts, **more}}


DONE = "[DONE]"
ROLE = chat({"role": "assistant", "content": ""})
NO_CHOICES = {"id": "chatcmpl-1f", "object": "chat.completion.chunk", "choices": []}


ODD_TEXTS = ('"', "\\", "\n", '"}', "another", "\u2028", "\x7f", " ", "é", "🦀", "x")
"""Texts of chunks that are hard to find in JSON, or to tell from it."""
