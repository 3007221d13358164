"""Messages with roles, as chat APIs take them: one array is the prompt of one request; and images, sounds and
videos beside its text: made from a seed, or files.

A piece of media says how it is made and holds no bytes, so a load of many large ones fits into memory. Its
noise cannot be compressed, and no two pieces of different seeds are alike, so no cache of an engine knows
them.
"""

from __future__ import annotations

import base64
import hashlib
import io
import json
import random
import struct
import wave
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, get_args

Role = Literal["system", "user", "assistant", "tool"]
ROLES: Final[tuple[Role, ...]] = get_args(Role)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call in an assistant's message."""

    call_id: str
    name: str
    arguments: str
    """The arguments: a JSON object as text."""


class LivePlace(NamedTuple):
    """A message whose recorded answer is replaced by live answers once they are known."""

    turns: tuple[int, ...]
    """Numbers of the session's turns whose answers go there."""
    tokens: int
    """Length of the recorded answer in tokens."""


@dataclass(frozen=True, slots=True)
class Message:
    """One message of a prompt."""

    role: Role
    content: str = ""
    calls: tuple[ToolCall, ...] = ()
    """The tool calls in an assistant's message."""
    call_id: str = ""
    """The id of the call that a tool's message answers; empty for any other message."""
    live: LivePlace | None = None
    """The place of the server's answer that replaces the content of an assistant's message; None: the content
    stays."""

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts of which tokens are counted, one by one: the content; name and arguments of each call."""
        calls = tuple(call.name + call.arguments for call in self.calls)
        return (self.content, *calls) if self.content else calls

    def as_chat(self) -> dict[str, Any]:
        """The message in the shape of OpenAI's chat API."""
        said: dict[str, Any] = {"role": self.role, "content": self.content or None}
        if self.role == "tool":
            return {"role": "tool", "tool_call_id": self.call_id, "content": self.content}
        if self.calls:
            said["tool_calls"] = [
                {
                    "id": call.call_id,
                    "type": "function",
                    "function": {"name": call.name, "arguments": call.arguments},
                }
                for call in self.calls
            ]
        return said


@dataclass(frozen=True, slots=True)
class MessageArray:
    """The messages of a request in order, with the tools that it offers."""

    messages: tuple[Message, ...]
    tools: str = ""
    """The tools as compact JSON, in the shape of OpenAI's chat API; empty: none."""
    place: str = field(default="", compare=False)
    """The position of the array in its file, for errors."""

    @property
    def texts(self) -> Iterator[str]:
        """All texts of which tokens are counted, one by one: the tools first, where servers put them."""
        if self.tools:
            yield self.tools
        for message in self.messages:
            yield from message.texts

    @property
    def rendered(self) -> str:
        """The array as one text, for APIs without roles: each message after its role, and at the end the role
        that is to answer. The text of a longer array begins with that of a shorter one."""
        parts = [f"tools: {self.tools}"] if self.tools else []
        parts += [f"{message.role}: {' '.join(message.texts)}" for message in self.messages]
        return "\n\n".join([*parts, "assistant:"])

    def as_json(self) -> str:
        """The tools, and the messages in the shape of OpenAI's chat API, as compact JSON."""
        said = [json.loads(self.tools or "[]"), [message.as_chat() for message in self.messages]]
        return json.dumps(said, separators=(",", ":"))

    @property
    def reads(self) -> tuple[int, ...]:
        """Numbers of the turns whose live answers it contains."""
        return tuple(number for message in self.messages if message.live for number in message.live.turns)

    def answered(self, answers: Mapping[int, str]) -> MessageArray:
        """The array with live answers, by number of the turn, in the place of recorded ones.

        Answers of several turns are one message. Where the server said nothing there is none, and what the
        user says before and after it is one message: many chat templates want the roles in turns.
        """
        said: list[Message] = []
        unanswered = False
        for message in self.messages:
            spoken = message
            if message.live is not None:
                texts = (answers.get(number, "") for number in message.live.turns)
                spoken = Message("assistant", "\n\n".join(text for text in texts if text))
                if not spoken.content.strip():
                    unanswered = True
                    continue
            if unanswered and said and said[-1].role == spoken.role:
                spoken = replace(spoken, content=f"{said.pop().content}\n\n{spoken.content}")
            unanswered = False
            said.append(spoken)
        return replace(self, messages=tuple(said))

    def mistakes(self) -> list[str]:
        """Why it cannot be sent to any API, in words that contain nothing of its texts."""
        return message_mistakes(self.messages) + nothing_asked(self.messages)


def message_mistakes(messages: Sequence[Message]) -> list[str]:
    """Mistakes in the messages, whoever has the last word."""
    found = []
    calls: set[str] = set()
    for number, message in enumerate(messages, start=1):
        found += [f"message {number} {mistake}" for mistake in _mistakes_of(message, calls)]
        calls.update(call.call_id for call in message.calls)
    if not any(message.role == "user" for message in messages):
        found.append("no message is the user's")
    return found


def nothing_asked(messages: Sequence[Message]) -> list[str]:
    """Mistake: messages that ask nothing, since the last is neither the user's nor a tool's."""
    if messages and messages[-1].role in ("assistant", "system"):
        return [f"message {len(messages)} is the {messages[-1].role}'s: there is nothing to answer"]
    return []


def _mistakes_of(message: Message, calls: set[str]) -> Iterator[str]:
    """Mistakes in one message. ``calls``: the ids of the calls before it."""
    if message.role not in ROLES:
        yield f"has the role {message.role!r}: give one of {', '.join(ROLES)}"
    elif message.role == "tool":
        if not message.call_id:
            yield "is a tool's and names no call: give tool_call_id"
        elif message.call_id not in calls:
            yield f"is a tool's and answers {message.call_id!r}, which no message before it calls"
    elif not message.content.strip() and not message.calls:
        yield "is empty"
    if message.calls and message.role != "assistant":
        yield "has tool calls: only the assistant's messages may"


Modality = Literal["image", "audio", "video"]
SUFFIXES: Final[dict[Modality, dict[str, str]]] = {
    "image": {".png": "png", ".jpg": "jpeg", ".jpeg": "jpeg", ".webp": "webp", ".gif": "gif"},
    "audio": {".wav": "wav", ".mp3": "mp3", ".flac": "flac", ".ogg": "ogg"},
    "video": {".mp4": "mp4", ".webm": "webm", ".mov": "quicktime"},
}
"""Modality → suffix of its files → name of the format, which is the subtype of its media type."""
DATA: Final = "data:"
"""What a URL begins with that holds its bytes itself (RFC 2397)."""
_RATE_HZ = 16_000
"""Sample rate of the sounds that are made, which speech models take."""


@dataclass(frozen=True, slots=True)
class Piece:
    """One image, sound or video. With a ``path`` it is that file, or that ``data:`` URL; else made: an image
    of ``width`` by ``height`` pixels of random colours (PNG), a sound of noise (WAV, 16 kHz, mono, 16
    bits)."""

    modality: Modality
    seed: int = 0
    width: int = 0
    height: int = 0
    milliseconds: int = 0
    path: str = ""

    @property
    def format(self) -> str:
        """Name of its format, the subtype of its media type."""
        made = "png" if self.modality == "image" else "wav"
        if self.path.startswith(DATA):
            return self.path.partition(";")[0].partition("/")[2]
        return SUFFIXES[self.modality][Path(self.path).suffix.lower()] if self.path else made

    def payload(self) -> bytes:
        """Its bytes, the same each time. Raises OSError for a file that cannot be read."""
        if self.path.startswith(DATA):
            return base64.b64decode(self.path.partition(",")[2])
        if self.path:
            return Path(self.path).read_bytes()
        noise = random.Random(self.seed).randbytes
        if self.modality == "image":
            return _png(self.width, self.height, noise(3 * self.width * self.height))
        return _wav(noise(2 * (self.milliseconds * _RATE_HZ // 1000)))


def _png(width: int, height: int, colours: bytes) -> bytes:
    """A PNG of 8 bits for each of red, green and blue, without compression (RFC 2083)."""
    row = 3 * width
    rows = b"".join(b"\0" + colours[at : at + row] for at in range(0, row * height, row))
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(rows, 0)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        for kind, data in chunks
    )


def _wav(samples: bytes) -> bytes:
    whole = io.BytesIO()
    with wave.open(whole, "wb") as out:
        out.setnchannels(1)
        out.setsampwidth(2)
        out.setframerate(_RATE_HZ)
        out.writeframes(samples)
    return whole.getvalue()


def modalities_of(pieces: Sequence[Piece]) -> str:
    """The class of a request with these pieces: ``image``, ``audio+image``, or ``text`` without any."""
    return "+".join(sorted({piece.modality for piece in pieces})) or "text"


def media_json(pieces: Sequence[Piece]) -> list[list[Any]]:
    """What the digest of a sequence holds of pieces: their fields in order, and of a file its name alone, of
    a ``data:`` URL the SHA-256 of it."""
    return [
        [
            *(each.modality, each.seed, each.width, each.height, each.milliseconds),
            Path(each.path).name
            if not each.path.startswith(DATA)
            else hashlib.sha256(each.path.encode()).hexdigest(),
        ]
        for each in pieces
    ]
