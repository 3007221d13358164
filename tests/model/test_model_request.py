"""Which further fields of a body change what a request asks for."""

from __future__ import annotations

from typing import Any

import pytest

from pytest_llmbench.model.request import (
    INPUT_FIELDS,
    OUTPUT_FIELDS,
    OUTPUT_LIMITS,
    SAMPLING_FIELDS,
    meaning,
    present,
)


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"stop_words_list": [[13]], "stopSequences": ["."]}, ["stop_words_list", "stopSequences"]),
        ({"generationConfig": {"maxOutputTokens": 8}}, ["generationConfig.maxOutputTokens"]),
        ({"end_id": 13, "eos_token_id": 2, "forced-eos": 2}, ["end_id", "eos_token_id", "forced-eos"]),
        ({"t_max_predict_ms": 5, "max_time": 1}, ["t_max_predict_ms", "max_time"]),
        ({"thinking": {"budget_tokens": 64}, "timeout": 1}, ["thinking.budget_tokens", "timeout"]),
        ({"max_tokens": None, "options": {"num_predict": "{max_tokens}"}}, []),
        ({"timings_per_token": True, "return_token_ids": True, "priority": 3, "seed": 7, "top_k": 1}, []),
        ({"include_stop_str_in_output": True, "min_p": 0.1, "top_logprobs": 2, "max_retries": 3}, []),
        ({"stream_options": {"include_usage": True}, "chat_template_kwargs": {"x": 1}}, []),
    ],
)  # fmt: skip
def test_what_ends_replies_is_known_by_its_words(body: dict[str, Any], found: list[str]) -> None:
    assert present(body, OUTPUT_FIELDS) == found
    assert list(meaning(body)) == found or not found


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ({"repetition_penalty": 1.8, "frequency_penalty": 1}, ["repetition_penalty", "frequency_penalty"]),
        ({"repeat_penalty": 1.0, "presencePenalty": 0, "length_penalty": 1}, []),
    ],
)
def test_penalties_count_as_sampling_where_they_do_something(body: dict[str, Any], found: list[str]) -> None:
    assert present(body, SAMPLING_FIELDS) == found


def test_what_shortens_prompts_is_known_by_its_words() -> None:
    body = {"truncation": "auto", "options": {"trim_prompt": 9}, "transforms": ["middle-out"]}
    assert present(body, INPUT_FIELDS) == ["truncation", "options.trim_prompt", "transforms"]
    assert not present({"truncation": "disabled", "truncate": False, "no_stop_trim": True}, INPUT_FIELDS)


def test_a_limit_is_one_in_any_spelling() -> None:
    assert present({"config": {"maxNewTokens": 8, "max-length": 9}}, OUTPUT_LIMITS) == [
        "config.maxNewTokens",
        "config.max-length",
    ]
