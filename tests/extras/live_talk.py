"""A talk with a server that answers each turn of a session by what it reads, and notes what that was."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from scripted_server import HEAD, Script, chunked, event

from pytest_llmbench.workloads.lengths import Fixed
from pytest_llmbench.workloads.sessions import SessionWorkload

Said = tuple[str, str]
"""Role and content."""

SESSIONS, TURNS = 3, 3
CHAT = SessionWorkload(
    "chat", Fixed(TURNS), Fixed(8), Fixed(5), system_tokens=12, own_tokens=Fixed(9), answers="live"
)


def pieces(history: Sequence[Said]) -> list[str]:
    """What the server answers to these messages: it tells which of its answers that is, and to whom."""
    number = 1 + sum(role == "assistant" for role, _ in history)
    return [f"Réponse {number} \U0001f600", ' to "', f'{opening(history)[-12:]}"']


def opening(history: Sequence[Said]) -> str:
    """What the user said first: of every session something else."""
    return next(content for role, content in history if role == "user")


@dataclass
class Heard:
    """What a server was asked."""

    histories: list[list[Said]] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, history: list[Said]) -> list[str]:
        with self._lock:
            self.histories.append(history)
        return pieces(history)

    def assert_each_read_what_it_was_told(self) -> None:
        sessions: dict[str, list[list[Said]]] = {}
        for history in sorted(self.histories, key=len):
            sessions.setdefault(opening(history), []).append(history)
        assert len(sessions) == SESSIONS
        for histories in sessions.values():
            assert len(histories) == TURNS
            for before, after in pairwise(histories):
                assert after[:-1] == [*before, ("assistant", "".join(pieces(before)))]
                assert after[-1][0] == "user"


def of_chat(messages: Iterable[dict[str, Any]]) -> list[Said]:
    return [(each["role"], each["content"]) for each in messages]


def of_text(prompt: str) -> list[Said]:
    """The messages of which this text was made."""
    assert prompt.endswith("\n\nassistant:")
    parts = prompt.removesuffix("\n\nassistant:").split("\n\n")
    return [(role, content) for role, _, content in (part.partition(": ") for part in parts)]


def sse(*payloads: Any) -> bytes:
    return HEAD + chunked([event(payload) for payload in payloads])


def chat_events(texts: list[str]) -> list[Any]:
    told = [{"choices": [{"index": 0, "delta": {"content": text}}]} for text in texts]
    last = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
    return [*told, last, {"choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": 3}}]


def by_chat(body: Any, heard: Heard) -> bytes:
    return sse(*chat_events(heard(of_chat(body["messages"]))))


def over_http(answer: Callable[[Any, Heard], bytes], heard: Heard) -> Script:
    """A script for a server made with ``read_body=False``."""
    return lambda conversation: conversation.send(answer(json.loads(conversation.read_body()), heard))
