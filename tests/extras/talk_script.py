"""Connections of :class:`scripted_server.ScriptedServer` that have one request at a time, whatever they
speak."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from scripted_server import Conversation


@dataclass
class Talk:
    """One connection, from the server's side."""

    conversation: Conversation
    turn: int = field(default=-1, kw_only=True)
    """Requests of the client are numbered from 0."""
    read_ns: int = field(default=0, kw_only=True)
    """When the last byte of the last one had been read."""
    heard: list[Any] = field(default_factory=list, kw_only=True)
    """What else the client said."""

    def send(self, data: bytes) -> None:
        self.conversation.send(data)

    def next(self) -> bool:
        """The client's next request; False when it has closed."""
        raise NotImplementedError

    def parts(self) -> list[bytes]:
        """A whole reply of two tokens: what comes before them, each of them, and the end."""
        raise NotImplementedError


T = TypeVar("T", bound=Talk)


@dataclass
class Opened(Generic[T]):
    """The connections that a server was asked for."""

    talks: list[T] = field(default_factory=list)

    @property
    def turns(self) -> list[int]:
        """Requests on each connection."""
        return [talk.turn + 1 for talk in self.talks]

    @property
    def heard(self) -> list[Any]:
        """What else all clients said."""
        return [heard for talk in self.talks for heard in talk.heard]

    def got(self, kind: type) -> list[Any]:
        return [heard for heard in self.heard if isinstance(heard, kind)]


def begun(talk: Talk) -> bytes:
    """The reply up to its first token."""
    return b"".join(talk.parts()[:2])


def in_turn(*parts: bytes | Callable[[T], bytes], then: Callable[[T], None]) -> Callable[[T], None]:
    """Sends these parts to each request, and then does something."""

    def turn(talk: T) -> None:
        for part in parts:
            talk.send(part if isinstance(part, bytes) else part(talk))
        then(talk)

    return turn


def hangs_up(talk: Talk) -> None:
    talk.conversation.half_close()


def nothing_more(talk: Talk) -> None:
    """The connection goes on."""
