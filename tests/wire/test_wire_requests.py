"""Request bodies of the dialects, and the table of dialects."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_llmbench.errors import GeneratorError, SuiteError
from pytest_llmbench.model.request import ASKED_LIMIT, PlannedRequest
from pytest_llmbench.wire.catalogue import DIALECTS, dialect
from pytest_llmbench.wire.dialect import Dialect, EncodeOptions, headers_for, path_for

REQUEST = PlannedRequest(3, max_tokens=92, input_tokens=4, token_ids=(1, 2, 3, 4), text="Grüße 🦀")


def body(name: str, request: PlannedRequest = REQUEST, **options: Any) -> dict[str, Any]:
    encoded = dialect(name).encode(request, EncodeOptions("small", **options))
    decoded: dict[str, Any] = json.loads(encoded)
    return decoded


TEXT = "Grüße 🦀"
SAID = {"messages": [{"role": "user", "content": TEXT}]}
USUAL = {"model": "small", "stream": True, "temperature": 0.0}
COUNTED = {**USUAL, "stream_options": {"include_usage": True}, "max_tokens": 92}
RESPONSE = {**USUAL, "input": TEXT, "store": False, "max_output_tokens": 92}
OF_OLLAMA = {"num_predict": 92, "temperature": 0.0}
OF_SGLANG = {"max_new_tokens": 92, "temperature": 0.0}
WARM = PlannedRequest(0, max_tokens=1, input_tokens=1, text="a", temperature=0.5)


@pytest.mark.parametrize(
    ("name", "options", "made"),
    [
        ("openai-chat", {}, {**COUNTED, **SAID}),
        ("openai-completions", {}, {**COUNTED, "prompt": TEXT}),
        ("openai-responses", {}, RESPONSE),
        (
            "responses",
            {"ignore_eos": True, "extra_body": {"reasoning": {"effort": "low"}}},
            {**RESPONSE, "ignore_eos": True, "reasoning": {"effort": "low"}},
        ),
        ("anthropic-messages", {}, {**USUAL, **SAID, "max_tokens": 92}),
        ("messages", {"ignore_eos": True}, {**USUAL, **SAID, "max_tokens": 92, "ignore_eos": True}),
        ("ollama-chat", {}, {"model": "small", **SAID, "stream": True, "options": OF_OLLAMA}),
        (
            "ollama-generate",
            {"extra_body": {"raw": True, "options": {"num_ctx": 4096}}},
            {
                "model": "small",
                "prompt": TEXT,
                "stream": True,
                "options": {**OF_OLLAMA, "num_ctx": 4096},
                "raw": True,
            },
        ),
        ("sglang-generate", {}, {"text": TEXT, "stream": True, "sampling_params": OF_SGLANG}),
        (
            "sglang-generate",
            {"prompt_form": "token_ids", "ignore_eos": True},
            {
                "input_ids": [1, 2, 3, 4],
                "stream": True,
                "sampling_params": {**OF_SGLANG, "ignore_eos": True},
            },
        ),
        (
            "tgi-generate",
            {},
            {"inputs": TEXT, "parameters": {"max_new_tokens": 92, "details": True, "do_sample": False}},
        ),
        (
            "tgi-generate",
            {"request": WARM},
            {
                "inputs": "a",
                "parameters": {"max_new_tokens": 1, "details": True, "do_sample": True, "temperature": 0.5},
            },
        ),
        (
            "triton-generate",
            {},
            {"text_input": TEXT, "max_tokens": 92, "temperature": 0.0, "stream": True},
        ),
    ],
)
def test_bodies(name, options, made):
    assert body(name, **options) == made


def test_a_path_may_name_the_model():
    assert path_for(dialect("triton-generate"), "a b/c") == "/v2/models/a%20b%2Fc/generate_stream"
    assert path_for(dialect("chat"), "m") == "/chat/completions"


@pytest.mark.parametrize("name", ["ollama-chat", "ollama-generate", "tgi-generate"])
def test_what_a_server_would_pass_over_is_refused(name):
    with pytest.raises(SuiteError, match="cannot ask a server to go on past"):
        body(name, ignore_eos=True)


def test_headers_of_messages():
    """The key under its other name too; what the endpoint's own headers say stands."""
    messages = dialect("messages")
    version = {"anthropic-version": "2023-06-01"}
    assert headers_for(messages, {}) == version
    assert headers_for(messages, {"Authorization": "Bearer k"}) == {**version, "x-api-key": "k"}
    assert headers_for(messages, {"authorization": "Basic k"}) == version
    own = {"Authorization": "Bearer k", "X-Api-Key": "mine", "Anthropic-Version": "2024-01-01"}
    assert headers_for(messages, own) == {}
    assert headers_for(dialect("chat"), {"Authorization": "Bearer k"}) == {}


def test_text_is_sent_as_utf8_and_compact():
    encoded = dialect("chat").encode(REQUEST, EncodeOptions("small"))
    assert "Grüße 🦀".encode() in encoded
    assert b'"stream":true' in encoded


def test_numbers_that_json_has_not_are_refused_and_large_ones_are_sent():
    with pytest.raises(SuiteError, match="not JSON"):
        EncodeOptions("small", extra_body={"sampling": {"min_p": float("nan")}})
    assert body("chat", extra_body={"seed": 2**70})["seed"] == 2**70


def test_half_a_surrogate_pair_is_an_error():
    with pytest.raises(GeneratorError, match="UTF-8"):
        body("chat", PlannedRequest(3, max_tokens=1, input_tokens=1, text="\ud83d"))


def test_token_ids_where_they_are_taken():
    assert body("completions", prompt_form="token_ids")["prompt"] == [1, 2, 3, 4]
    assert dialect("completions").accepts_token_ids
    assert not dialect("chat").accepts_token_ids


def test_what_the_request_does_not_hold_is_an_error():
    bare = PlannedRequest(7, max_tokens=1, input_tokens=1)
    for name in DIALECTS:
        with pytest.raises(GeneratorError, match="request 7: the request has no text"):
            body(name, bare)
        if not dialect(name).accepts_token_ids:
            with pytest.raises(GeneratorError, match=f"request 7: {name} takes text"):
                body(name, bare, prompt_form="token_ids")
    for name in ("completions", "sglang-generate"):
        with pytest.raises(GeneratorError, match="request 7: the request has no token ids"):
            body(name, bare, prompt_form="token_ids")


def test_ignore_eos_is_sent_only_when_asked_for():
    assert "ignore_eos" not in body("chat")
    assert body("chat", ignore_eos=True)["ignore_eos"] is True


def test_extra_fields_come_last_and_objects_are_merged():
    extra = {"temperature": 0.7, "seed": 1, "stream_options": {"continuous_usage_stats": True}}
    seen = body("chat", extra_body=extra)
    assert seen["temperature"] == 0.7
    assert seen["seed"] == 1
    assert seen["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert extra["stream_options"] == {"continuous_usage_stats": True}


def test_what_a_server_refuses_can_be_left_out():
    assert "stream_options" not in body("chat", extra_body={"stream_options": None})
    assert body("chat", extra_body={"stop": None})["stop"] is None
    changed = {"max_tokens": None, "max_completion_tokens": ASKED_LIMIT, "temperature": None}
    for name in ("openai-chat", "openai-completions"):
        seen = body(name, extra_body=changed)
        assert seen["max_completion_tokens"] == 92
        assert not {"max_tokens", "temperature"} & seen.keys()
    assert changed["max_completion_tokens"] == ASKED_LIMIT


@pytest.mark.parametrize("name", DIALECTS)
def test_streaming_cannot_be_switched_off(name):
    with pytest.raises(SuiteError, match="stream to false"):
        body(name, extra_body={"stream": False})


def test_dialects_by_name():
    assert dialect("chat") is dialect("openai-chat")
    assert dialect("completions") is dialect("openai-completions")
    assert (dialect("chat").path, dialect("completions").path) == ("/chat/completions", "/completions")
    for name, known in DIALECTS.items():
        assert isinstance(known, Dialect)
        assert known.name == name
        assert known.protocol == ("ndjson" if name.startswith("ollama") else "sse")


def test_an_unknown_dialect_says_which_was_meant():
    with pytest.raises(SuiteError, match="did you mean 'openai-chat'"):
        dialect("openai_chat")
    with pytest.raises(SuiteError, match="known: openai-chat, openai-completions, openai-responses"):
        dialect("kserve")
