"""The parts of a message's content for images, sounds and videos, as OpenAI and vLLM write them."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest

from pytest_llmbench.errors import GeneratorError
from pytest_llmbench.model.messages import Piece
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.wire.dialect import EncodeOptions

REQUEST = PlannedRequest(3, 16, 2, text="look and listen")


def content(*pieces: Piece) -> Any:
    body = dialect("openai-chat").encode(replace(REQUEST, media=pieces), EncodeOptions("m"))
    (message,) = json.loads(body)["messages"]
    assert message["role"] == "user"
    return message["content"]


def test_text_alone_stays_a_text():
    assert content() == "look and listen"


def test_parts_follow_the_text(tmp_path):
    (tmp_path / "clip.mp4").write_bytes(b"film")
    image, sound = Piece("image", 1, 4, 4), Piece("audio", 1, milliseconds=10)
    told = content(image, sound, Piece("video", path=str(tmp_path / "clip.mp4")))
    assert told == [
        {"type": "text", "text": "look and listen"},
        {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{_base64(image)}"}},
        {"type": "input_audio", "input_audio": {"data": _base64(sound), "format": "wav"}},
        {"type": "video_url", "video_url": {"url": "data:video/mp4;base64,ZmlsbQ=="}},
    ]


def test_a_file_that_went_is_told():
    with pytest.raises(GeneratorError, match="the image cannot be read"):
        content(Piece("image", path="/nowhere/a.png"))


def _base64(piece: Piece) -> str:
    return base64.b64encode(piece.payload()).decode()
