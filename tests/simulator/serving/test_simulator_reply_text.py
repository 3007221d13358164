"""The bytes of replies."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_llmbench.simulator.engine.cheats import WORDS, Conduct
from pytest_llmbench.simulator.serving.event_stream import ReplyText
from pytest_llmbench.simulator.serving.ground_truth import GroundTruth
from pytest_llmbench.simulator.serving.request_body import Endpoint
from pytest_llmbench.tokens import reference_tokenizer


def event(data: bytes) -> Any:
    assert data.startswith(b"data: ")
    assert data.endswith(b"\n\n")
    assert data.count(b"\n") == 2
    return json.loads(data[6:])


def text_of(endpoint: Endpoint, first_word: int = 0, request_id: str = "id-1") -> ReplyText:
    return ReplyText(endpoint, request_id, 1_700_000_000, "sim-fast", first_word)


def whole(text: ReplyText, prompt_tokens: int, output_tokens: int, first_word: int = 0) -> dict[str, Any]:
    """The reply as one JSON object."""
    content = Conduct(first_word, output_tokens).text(output_tokens)
    usage = GroundTruth("id-1", 0, prompt_tokens, output_tokens=output_tokens).usage()
    body = text.whole({"content": content}, "length", usage)
    found: dict[str, Any] = json.loads(body)
    return found


def test_chat_events() -> None:
    text = text_of(Endpoint.CHAT)
    identity = {
        "id": "chatcmpl-id-1",
        "object": "chat.completion.chunk",
        "created": 1_700_000_000,
        "model": "sim-fast",
    }

    def choice(delta: dict[str, str], reason: str | None = None) -> list[dict[str, Any]]:
        return [{"index": 0, "delta": delta, "logprobs": None, "finish_reason": reason}]

    role = text.role()
    assert role is not None
    assert event(role) == identity | {"choices": choice({"role": "assistant", "content": ""})}
    assert event(text.content(0)) == identity | {"choices": choice({"content": WORDS[0]})}
    assert event(text.content(1)) == identity | {"choices": choice({"content": WORDS[1]})}
    assert event(text.chunk({}, "stop")) == identity | {"choices": choice({}, "stop")}
    usage = {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert event(text.usage_chunk(GroundTruth("id-1", 0, 3, output_tokens=4).usage())) == identity | {
        "choices": [],
        "usage": usage,
    }


def test_completion_events() -> None:
    text = text_of(Endpoint.COMPLETIONS)
    assert text.role() is None
    first, finish = event(text.content(0)), event(text.chunk({}, "length"))
    assert (first["id"], first["object"]) == ("cmpl-id-1", "text_completion")
    assert first["choices"][0]["text"] == WORDS[0]
    assert (finish["choices"][0]["text"], finish["choices"][0]["finish_reason"]) == ("", "length")


def test_a_request_id_is_quoted() -> None:
    assert event(text_of(Endpoint.CHAT, request_id='a"\\ü').content(0))["id"] == 'chatcmpl-a"\\ü'


@pytest.mark.parametrize("endpoint", list(Endpoint))
def test_whole_replies_say_the_same_as_their_chunks(endpoint: Endpoint) -> None:
    text = text_of(endpoint, first_word=21)
    body = whole(text, 3, 150, first_word=21)
    chunks = [event(text.content(i))["choices"][0] for i in range(150)]
    choice = body["choices"][0]
    if endpoint is Endpoint.CHAT:
        assert choice["message"]["content"] == "".join(chunk["delta"]["content"] for chunk in chunks)
    else:
        assert choice["text"] == "".join(chunk["text"] for chunk in chunks)
    assert choice["finish_reason"] == "length"
    assert body["usage"]["completion_tokens"] == 150


@pytest.mark.parametrize("first_word", range(len(WORDS)))
def test_a_tokenizer_finds_as_many_tokens_as_were_given(first_word: int) -> None:
    text = whole(text_of(Endpoint.COMPLETIONS), 1, 130, first_word)["choices"][0]["text"]
    assert reference_tokenizer("cl100k_base").count(text) == 130
