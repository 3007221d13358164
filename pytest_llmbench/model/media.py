"""Images, sounds and videos beside the text of a prompt: made from a seed, or files.

A piece says how it is made and holds no bytes, so a load of many large ones fits into memory. Its noise
cannot be compressed, and no two pieces of different seeds are alike, so no cache of an engine knows them.
"""

from __future__ import annotations

import base64
import hashlib
import io
import random
import struct
import wave
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

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
        [each.modality, each.seed, each.width, each.height, each.milliseconds, _named(each.path)]
        for each in pieces
    ]


def _named(path: str) -> str:
    return hashlib.sha256(path.encode()).hexdigest() if path.startswith(DATA) else Path(path).name
