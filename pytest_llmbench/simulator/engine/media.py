"""What the embedded engine makes of images and sounds: tokens by a known rule, and a time to encode them.

An image is a token for each tile of 28 by 28 pixels, as in Qwen2.5-VL (arXiv 2502.13923, section 2.1: patches
of 14 pixels, merged two by two); a sound is 25 tokens a second, as in Qwen2-Audio (arXiv 2407.10759). The
encoder works before the request joins the queue, and no piece waits for another.
"""

from __future__ import annotations

import base64
import binascii
import random
import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

from pytest_llmbench.model.messages import Piece
from pytest_llmbench.simulator.engine.config import EngineConfig
from pytest_llmbench.simulator.engine.request import RefusalError

_TILE = 28
_TOKENS_A_SECOND = 25
_PNG = b"\x89PNG\r\n\x1a\n"
_HIGHEST_ID = 100_255


def image_tokens(width: int, height: int) -> int:
    return -(-width // _TILE) * -(-height // _TILE)


def audio_tokens(milliseconds: int) -> int:
    return max(1, -(-milliseconds * _TOKENS_A_SECOND // 1000))


def encoder_ns(tokens: int, config: EngineConfig) -> int:
    """Time that the encoder takes for so many tokens."""
    return round(config.media_encoder_us_per_token * 1000 * tokens)


def tokens_of(pieces: Sequence[Piece]) -> int:
    """The tokens of pieces; files are read. Raises RefusalError for one that is neither PNG nor WAV."""
    return sum(_seed_and_tokens(each)[1] for each in pieces)


def ids_of(pieces: Sequence[Piece]) -> list[int]:
    """Ids that stand for the tokens of pieces: alike for the same piece, as a prefix cache sees it."""
    return [each for piece in pieces for each in _ids(*_seed_and_tokens(piece))]


@lru_cache(maxsize=4096)
def _seed_and_tokens(piece: Piece) -> tuple[int, int]:
    if not piece.path and piece.modality == "image":
        return piece.seed, image_tokens(piece.width, piece.height)
    if not piece.path:
        return piece.seed, audio_tokens(piece.milliseconds)
    if piece.modality == "video":
        raise RefusalError(400, "video_url: the embedded engine takes image_url and input_audio", "messages")
    try:
        data = piece.payload()
    except OSError as error:
        raise RefusalError(400, f"the {piece.modality} cannot be read: {error}", "messages") from error
    return _of_image(data) if piece.modality == "image" else _of_sound(data)


def ids_in(content: Any) -> list[int]:
    """The same of the parts of a message's content. Raises RefusalError for what is not read here."""
    found: list[int] = []
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if kind == "image_url":
            found += _ids(*_of_image(_bytes(_member(part, kind, "url").partition("base64,")[2])))
        elif kind == "input_audio":
            found += _ids(*_of_sound(_bytes(_member(part, kind, "data"))))
        elif kind in ("video_url", "audio_url"):
            raise RefusalError(
                400, f"{kind}: the embedded engine takes image_url and input_audio", "messages"
            )
    return found


def _of_image(data: bytes) -> tuple[int, int]:
    """The seed of its ids, and how many they are."""
    if data[:8] != _PNG or len(data) < 24:
        raise RefusalError(400, "messages: image_url: the embedded engine reads PNG", "messages")
    width, height = struct.unpack(">II", data[16:24])
    return zlib.crc32(data), image_tokens(width, height)


def _of_sound(data: bytes) -> tuple[int, int]:
    if data[:4] != b"RIFF" or data[8:12] != b"WAVE" or len(data) < 44:
        raise RefusalError(400, "messages: input_audio: the embedded engine reads WAV", "messages")
    (bytes_a_second,) = struct.unpack("<I", data[28:32])
    return zlib.crc32(data), audio_tokens(1000 * (len(data) - 44) // max(1, bytes_a_second))


def _ids(seed: int, tokens: int) -> list[int]:
    return random.Random(seed).choices(range(_HIGHEST_ID), k=tokens)


def _member(part: dict[str, Any], kind: str, name: str) -> str:
    own = part.get(kind)
    value = own.get(name) if isinstance(own, dict) else None
    return value if isinstance(value, str) else ""


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError) as error:
        raise RefusalError(400, f"messages: a part is not base64: {error}", "messages") from None
