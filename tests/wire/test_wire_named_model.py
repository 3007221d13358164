"""The model that a reply names, read without parsing the reply."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_llmbench.wire.server_figures import named_model

CHAT = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "model": "m-large", "choices": []}


def event(payload: object, **dumping: Any) -> bytes:
    return f"data: {json.dumps(payload, **dumping)}\n\n".encode(errors="surrogatepass")


@pytest.mark.parametrize(
    ("body", "named"),
    [
        (event(CHAT), "m-large"),
        (event(CHAT, separators=(",", ":")), "m-large"),
        (event({"type": "message_start", "message": {"model": "claude-x"}}), "claude-x"),
        (json.dumps({"model": "llama3:8b", "done": False}).encode() + b"\n", "llama3:8b"),
        (json.dumps({"data": [{"embedding": [0.5] * 9000}], "model": "e-5"}).encode(), "e-5"),
        (event({**CHAT, "model": "größe/ü"}), "größe/ü"),
        (event({**CHAT, "model": "größe/ü"}, ensure_ascii=False), "größe/ü"),
        (event({"text": 'say "model": "other"', "model": "own"}), "own"),
        (event({"text": json.dumps({"model": "other"})}), None),
        (event({"model": None}), None),
        (event({"model": ""}), None),
        (event({"model": 7, "of": "x"}), None),
        (event({"model": "x" * 300}), None),
        (event({"choices": []}), None),
        (b'data: {"model":', None),
        (b'data: {"model":"cut', None),
        (b"\xff\x00 not text", None),
        (b'{"model":"\xff"}', None),
        (b"", None),
    ],
)
def test_what_is_named(body, named):
    assert named_model([body]) == named
    for cut in range(len(body) if len(body) < 1000 else 0):
        assert named_model([body[:cut], body[cut:]]) == named
    assert named_model([body[at : at + 1] for at in range(len(body))]) == named


def test_a_reply_without_any_piece():
    assert named_model([]) is None


@given(st.text(max_size=60), st.text(max_size=20), st.booleans())
def test_as_a_reader_of_json_reads_it(before, model, ascii_alone):
    """A name with a quote in it may be left out, and is never another one."""
    body = event({"before": before, "model": model}, ensure_ascii=ascii_alone)
    found = named_model([body])
    assert found in (model, None)
    assert found == (model or None) or '"' in model
