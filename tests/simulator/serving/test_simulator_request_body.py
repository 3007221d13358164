"""What the server accepts, and how it refuses the rest."""

from __future__ import annotations

import json
from typing import Any

import pytest

from pytest_llmbench.simulator.engine.request import GenerationRequest, RefusalError
from pytest_llmbench.simulator.scenario import parse_scenario
from pytest_llmbench.simulator.serving.request_body import Endpoint, parse_request

CHAT, COMPLETIONS = Endpoint.CHAT, Endpoint.COMPLETIONS
HELLO = [{"role": "user", "content": "hello"}]


def parse(endpoint: Endpoint, **body: Any) -> GenerationRequest:
    return parse_request(json.dumps(body).encode(), endpoint, "sim-fast")


def test_chat_messages_become_texts() -> None:
    request = parse(
        CHAT,
        model="sim-fast",
        messages=[
            {"role": "system", "content": "be brief"},
            {"role": "assistant", "content": None},
            {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        ],
        stream=True,
        stream_options={"include_usage": True},
        max_completion_tokens=9,
        temperature=0,
        top_p=1,
    )
    assert request == GenerationRequest(texts=("be brief", "one", "two"), max_tokens=9)


@pytest.mark.parametrize(
    ("prompt", "texts", "ids"),
    [
        ("abc", ("abc",), None),
        (["abc"], ("abc",), None),
        ([1, 2], (), [1, 2]),
        ([[5]], (), [5]),
        ([7], (), [7]),
    ],
)
def test_prompts_of_text_and_of_ids(prompt: Any, texts: tuple[str, ...], ids: list[int] | None) -> None:
    request = parse(COMPLETIONS, prompt=prompt, min_tokens=2, max_tokens=4, ignore_eos=True)
    assert (request.texts, request.token_ids) == (texts, ids)
    assert (request.min_tokens, request.max_tokens, request.ignore_eos) == (2, 4, True)


def test_null_is_the_same_as_absent() -> None:
    request = parse(
        CHAT, messages=HELLO, model=None, stream=None, max_tokens=None, stream_options=None, n=None
    )
    assert request == GenerationRequest(texts=("hello",), stream=False, include_usage=False, max_tokens=None)


@pytest.mark.parametrize(
    ("endpoint", "body", "param"),
    [
        (CHAT, {}, "messages"),
        (CHAT, {"messages": []}, "messages"),
        (CHAT, {"messages": ["hello"]}, "messages"),
        (CHAT, {"messages": [{"content": "x"}]}, "messages"),
        (CHAT, {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages"),
        (CHAT, {"messages": HELLO, "max_tokens": "4"}, "max_tokens"),
        (CHAT, {"messages": HELLO, "max_tokens": 0}, "max_tokens"),
        (CHAT, {"messages": HELLO, "max_tokens": True}, "max_tokens"),
        (CHAT, {"messages": HELLO, "stream": "yes"}, "stream"),
        (CHAT, {"messages": HELLO, "stream_options": {"include_usage": True}}, "stream_options"),
        (CHAT, {"messages": HELLO, "stream": True, "stream_options": []}, "stream_options"),
        (CHAT, {"messages": HELLO, "temperature": "hot"}, "temperature"),
        (CHAT, {"messages": HELLO, "temperature": -1}, "temperature"),
        (CHAT, {"messages": HELLO, "n": 2}, "n"),
        (CHAT, {"messages": HELLO, "model": 7}, "model"),
        (CHAT, {"messages": HELLO, "min_tokens": 9, "max_tokens": 4}, "min_tokens"),
        (COMPLETIONS, {}, "prompt"),
        (COMPLETIONS, {"prompt": 5}, "prompt"),
        (COMPLETIONS, {"prompt": ["a", "b"]}, "prompt"),
        (COMPLETIONS, {"prompt": [1, "b"]}, "prompt"),
        (COMPLETIONS, {"prompt": [-1]}, "prompt"),
        (COMPLETIONS, {"prompt": [100277]}, "prompt"),
    ],
)
def test_wrong_types_and_values_are_400(endpoint: Endpoint, body: dict[str, Any], param: str) -> None:
    with pytest.raises(RefusalError) as caught:
        parse(endpoint, **body)
    error = caught.value.body()["error"]
    assert (caught.value.status, error["code"], error["type"]) == (400, 400, "BadRequestError")
    assert error["param"] == param
    assert param in error["message"]


def test_all_wrong_fields_are_named() -> None:
    with pytest.raises(RefusalError) as caught:
        parse(CHAT, messages=3, stream=1, max_tokens=-2)
    assert all(name in caught.value.message for name in ("messages", "stream", "max_tokens"))


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff\xfe", b'"text"', b"[" * 100_000])
def test_what_is_not_a_json_object_is_400(body: bytes) -> None:
    with pytest.raises(RefusalError, match="JSON") as caught:
        parse_request(body, CHAT, "sim-fast")
    assert caught.value.status == 400


def test_another_model_is_404_and_names_the_one_served() -> None:
    with pytest.raises(RefusalError, match="sim-fast") as caught:
        parse(CHAT, model="gpt", messages=HELLO)
    assert caught.value.status == 404
    assert caught.value.body()["error"]["type"] == "NotFoundError"


LIMITED = parse_scenario("fast?context_limit_tokens=100&default_max_tokens=40").engine


@pytest.mark.parametrize(
    ("body", "prompt_tokens", "ceiling"),
    [({}, 10, 40), ({}, 70, 30), ({"max_tokens": 90}, 10, 90), ({"min_tokens": 60}, 10, 60)],
)
def test_the_ceiling_of_a_reply(body: dict[str, Any], prompt_tokens: int, ceiling: int) -> None:
    assert parse(CHAT, messages=HELLO, **body).ceiling(prompt_tokens, LIMITED) == ceiling


@pytest.mark.parametrize(
    ("body", "prompt_tokens", "param"),
    [
        ({}, 0, "prompt"),
        ({}, 100, "input_tokens"),
        ({}, 5000, "input_tokens"),
        ({"max_tokens": 91}, 10, "max_tokens"),
        ({"min_tokens": 91}, 10, "min_tokens"),
    ],
)
def test_what_does_not_fit_is_400(body: dict[str, Any], prompt_tokens: int, param: str) -> None:
    with pytest.raises(RefusalError) as caught:
        parse(CHAT, messages=HELLO, **body).ceiling(prompt_tokens, LIMITED)
    assert (caught.value.status, caught.value.param) == (400, param)
