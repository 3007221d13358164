"""Replies in the manner of real servers, written here, with what each must be read as."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from wire_events import DONE, NO_CHOICES, ROLE, chat, sse, text, usage


@dataclass(frozen=True)
class Reply:
    """A body and the known answers; ``summary`` names fields of a StreamSummary."""

    name: str
    dialect: str
    body: bytes
    summary: dict[str, Any]
    texts: list[str] = field(default_factory=list)
    """The output of each content chunk, reasoning or text."""


VLLM_CHAT = Reply(
    "vllm chat",
    "openai-chat",
    sse(
        ROLE,
        chat({"content": "\n"}),
        chat({"content": "Grüße"}),
        chat({"content": ""}),  # a token that ends inside a character
        chat({"content": " 🦀"}),
        chat({"content": ""}, "stop"),  # the end-of-sequence token
        {**NO_CHOICES, **usage(21, 5, prompt_tokens_details={"cached_tokens": 16})},
        DONE,
    ),
    {
        "outcome": "ok",
        "finish_reason": "stop",
        "error": None,
        "text": "\nGrüße 🦀",
        "input_tokens": 21,
        "output_tokens": 5,
        "cached_tokens": 16,
        "token_source": "server_usage",
        "chunk_tokens": [1, 1, 1, 1, 1],
        "attribution": "exact",
        "reasoning_tokens": None,
    },
    ["\n", "Grüße", "", " 🦀", ""],
)

VLLM_COMPLETIONS = Reply(
    "vllm completions, four tokens a chunk",
    "openai-completions",
    sse(
        text(" one", usage=None),
        text(" two three four five"),
        text(" six seven", "length"),
        {"id": "cmpl-1f", "choices": [], **usage(128, 7)},
        DONE,
    ),
    {
        "outcome": "ok",
        "finish_reason": "length",
        "text": " one two three four five six seven",
        "input_tokens": 128,
        "output_tokens": 7,
        "token_source": "server_usage",
        "chunk_tokens": [1, 4, 2],
        "attribution": "apportioned",
    },
    [" one", " two three four five", " six seven"],
)

VLLM_CONTINUOUS = Reply(
    "vllm chat, usage on every chunk",
    "openai-chat",
    sse(
        chat({"role": "assistant", "content": ""}, **usage(22, 0)),
        chat({"content": "Hi"}, **usage(22, 1)),
        chat({"content": " you all"}, **usage(22, 4)),
        chat({"content": ""}, "stop", **usage(22, 5)),
        {**NO_CHOICES, **usage(22, 5)},
        DONE,
    ),
    {
        "outcome": "ok",
        "output_tokens": 5,
        "token_source": "server_usage",
        "chunk_tokens": [1, 3, 1],
        "attribution": "exact",
        "input_tokens": 22,
    },
    ["Hi", " you all", ""],
)

VLLM_TOKEN_IDS = Reply(
    "vllm completions, token ids and metrics, no usage",
    "openai-completions",
    sse(
        {
            **text(""),
            "choices": [{"index": 0, "text": "", "token_ids": [198], "prompt_token_ids": [1, 2, 3]}],
        },
        {**text(""), "choices": [{"index": 0, "text": " a b", "token_ids": [264, 293]}]},
        {
            **text(""),
            "choices": [{"index": 0, "text": " c", "token_ids": [272], "finish_reason": "length"}],
            "metrics": {"time_to_first_token_ms": 12.5, "queue_time_ms": 0, "engine": "0"},
        },
        DONE,
    ),
    {
        "outcome": "ok",
        "output_tokens": 4,
        "token_source": "chunk_usage",
        "chunk_tokens": [1, 2, 1],
        "attribution": "exact",
        "server_timings": {"time_to_first_token_ms": 12.5, "queue_time_ms": 0.0},
        "queue_wait_ns": 0,
        "prefill_ns": 12_500_000,
    },
    ["", " a b", " c"],
)

VLLM_ALL_SPECIAL = Reply(
    "vllm chat, nothing but special tokens",
    "openai-chat",
    sse(
        ROLE,
        chat({"content": ""}),
        chat({"content": ""}),
        chat({"content": ""}, "length"),
        {**NO_CHOICES, **usage(9, 3)},
        DONE,
    ),
    {
        "outcome": "empty",
        "output_tokens": 3,
        "token_source": "server_usage",
        "chunk_tokens": [1, 1, 1],
        "first_content_ns": None,
        "error": "the reply held no visible text (output tokens: 3)",
    },
    ["", "", ""],
)

LLAMA_CPP = Reply(
    "llama.cpp chat",
    "openai-chat",
    sse(
        chat(
            {"role": "assistant", "content": None},
            prompt_progress={"total": 20, "processed": 8, "time_ms": 4},
        ),
        chat({"role": "assistant", "content": None}),
        chat({"content": "Hello"}),
        chat({"content": " world"}),
        chat({}, "stop"),
        {
            **NO_CHOICES,
            **usage(21, 3),
            "timings": {
                "prompt_n": 21,
                "prompt_ms": 30.25,
                "predicted_n": 3,
                "predicted_ms": 11,
                "cache_n": 0,
            },
        },
        DONE,
    ),
    {
        "outcome": "ok",
        "finish_reason": "stop",
        "text": "Hello world",
        "output_tokens": 3,
        "input_tokens": 21,
        "token_source": "server_usage",
        "chunk_tokens": [1, 2],
        "attribution": "apportioned",
        "server_timings": {
            "prompt_n": 21.0,
            "prompt_ms": 30.25,
            "predicted_n": 3.0,
            "predicted_ms": 11.0,
            "cache_n": 0.0,
        },
    },
    ["Hello", " world"],
)

LLAMA_CPP_TIMINGS = Reply(
    "llama.cpp chat, timings on every chunk",
    "openai-chat",
    sse(
        chat({"content": "Hel"}, timings={"predicted_n": 1, "predicted_ms": 2.0}),
        chat({"content": "lo €"}, timings={"predicted_n": 4, "predicted_ms": 6.0}),
        chat({}, "length", timings={"predicted_n": 4, "predicted_ms": 6.5}),
        DONE,
    ),
    {
        "outcome": "ok",
        "output_tokens": 4,
        "token_source": "chunk_usage",
        "chunk_tokens": [1, 3],
        "attribution": "exact",
        "server_timings": {"predicted_n": 4.0, "predicted_ms": 6.5},
    },
    ["Hel", "lo €"],
)

LITELLM = Reply(
    "litellm proxy with an output filter",
    "openai-chat",
    sse(
        {"id": "chatcmpl-2", "choices": [{"index": 0, "delta": {"content": "", "role": "assistant"}}]},
        *({"id": "chatcmpl-2", "choices": [{"index": 0, "delta": {"content": ""}}]} for _ in range(3)),
        {"id": "chatcmpl-2", "choices": [{"index": 0, "delta": {"content": "The quick brown fox"}}]},
        {
            "id": "chatcmpl-2",
            "choices": [{"finish_reason": "stop", "index": 0, "delta": {"content": " jumps"}}],
        },
        {"id": "chatcmpl-2", "choices": [{"index": 0, "delta": {}}], **usage(20, 6)},
        DONE,
    ),
    {
        "outcome": "ok",
        "finish_reason": "stop",
        "text": "The quick brown fox jumps",
        "output_tokens": 6,
        "token_source": "server_usage",
        "attribution": "apportioned",
        "chunk_tokens": [4, 2],
    },
    ["The quick brown fox", " jumps"],
)

DEEPSEEK = Reply(
    "deepseek reasoning",
    "openai-chat",
    b": keep-alive\n\n"
    + sse(
        chat({"role": "assistant", "content": None, "reasoning_content": ""}),
        chat({"content": None, "reasoning_content": "Let"}),
        chat({"content": None, "reasoning_content": " me"}),
        chat({"content": "42", "reasoning_content": None}),
        chat({"content": "!", "reasoning_content": None}),
        chat(
            {"content": "", "reasoning_content": None},
            "stop",
            **usage(12, 4, prompt_cache_hit_tokens=8, completion_tokens_details={"reasoning_tokens": 2}),
        ),
        DONE,
    ),
    {
        "outcome": "ok",
        "text": "42!",
        "reasoning": "Let me",
        "output_tokens": 4,
        "reasoning_tokens": 2,
        "cached_tokens": 8,
        "chunk_tokens": [1, 1, 1, 1],
        "attribution": "exact",
    },
    ["Let", " me", "42", "!"],
)

REASONING_ONLY = Reply(
    "reasoning until the length ran out",
    "openai-chat",
    sse(
        ROLE,
        chat({"reasoning": "Hmm", "reasoning_content": "Hmm"}),
        chat({"reasoning_details": [{"type": "reasoning.text", "text": ", so"}, {"type": "x", "data": "e"}]}),
        chat({}, "length"),
        {**NO_CHOICES, **usage(5, 2)},
        DONE,
    ),
    {
        "outcome": "empty",
        "reasoning": "Hmm, so",
        "output_tokens": 2,
        "reasoning_tokens": 2,
        "first_content_ns": None,
        "chunk_tokens": [1, 1],
        "error": "the reply held reasoning but no visible content",
    },
    ["Hmm", ", so"],
)

CRLF_COMMENTS = Reply(
    "CRLF, byte order mark, comments, no space after the colon",
    "openai-chat",
    b"\xef\xbb\xbf: open\r\nretry: 1000\r\n\r\nid: 1\r\ndata:"
    + json.dumps(ROLE).encode()
    + b"\r\n\r\n: ping\r\n\r\n"
    + sse(chat({"content": "ä\n"}), chat({"content": "b"}, "stop"), end="\r\n\r\n")
    + b"event: ping\r\ndata: 2026\r\n\r\ndata:[DONE]",
    {
        "outcome": "ok",
        "text": "ä\nb",
        "output_tokens": 2,
        "token_source": "chunk_count",
        "chunk_tokens": [],
        "attribution": "none",
        "finish_reason": "stop",
        "error": None,
    },
    ["ä\n", "b"],
)

TRUNCATED = Reply(
    "killed in the middle of an event",
    "openai-chat",
    sse(ROLE, chat({"content": "Hello"}), chat({"content": " wörld"})) + b'data: {"choices":[{"del',
    {
        "outcome": "truncated",
        "finish_reason": None,
        "text": "Hello wörld",
        "output_tokens": 2,
        "token_source": "chunk_count",
    },
    ["Hello", " wörld"],
)

ERROR_THEN_DONE = Reply(
    "an error event, then the end marker",
    "openai-chat",
    sse(
        ROLE,
        chat({"content": "Hello"}),
        {"error": {"message": "EngineCore encountered an issue", "type": "InternalServerError", "code": 500}},
        DONE,
    ),
    {
        "outcome": "in_band_error",
        "finish_reason": None,
        "text": "Hello",
        "error": "EngineCore encountered an issue (type InternalServerError, code 500)",
    },
    ["Hello"],
)

TOOL_CALL = Reply(
    "a tool call, then usage with the finish reason",
    "openai-chat",
    sse(
        chat({"role": "assistant", "content": None}),
        chat({"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": {"name": "f"}}]}),
        chat({"tool_calls": [{"index": 0, "function": {"arguments": '{"a":'}}]}),
        chat({"tool_calls": [{"index": 0, "function": {"arguments": " 1}"}}]}),
        chat({}, "tool_calls", **usage(40, 3)),
    ),
    {
        "outcome": "ok",
        "finish_reason": "tool_calls",
        "text": 'f{"a": 1}',
        "output_tokens": 3,
        "token_source": "server_usage",
        "chunk_tokens": [1, 1, 1],
        "attribution": "exact",
    },
    ["f", '{"a":', " 1}"],
)

TWO_CHOICES = Reply(
    "llama.cpp, two choices and two usage chunks",
    "openai-chat",
    sse(
        chat({"content": "a"}),
        {"choices": [{"index": 1, "delta": {"content": "b"}, "finish_reason": None}]},
        chat({}, "length"),
        {**NO_CHOICES, **usage(7, 1)},
        {"choices": [{"index": 1, "delta": {"content": "c"}, "finish_reason": None}]},
        {"choices": [{"index": 1, "delta": {}, "finish_reason": "length"}]},
        {**NO_CHOICES, **usage(7, 2)},
        DONE,
    ),
    {"outcome": "ok", "output_tokens": 3, "input_tokens": 7, "chunk_tokens": [1, 1, 1]},
    ["a", "b", "c"],
)

ONE_CHOICE_UNFINISHED = Reply(
    "two choices, one of them without an end",
    "openai-completions",
    sse(
        text("a"),
        {"choices": [{"index": 1, "text": "b", "finish_reason": None}]},
        text("c", "stop"),
        {"choices": [], **usage(7, 3)},
        DONE,
    ),
    {"outcome": "truncated", "finish_reason": None, "output_tokens": 3, "chunk_tokens": [1, 1, 1]},
    ["a", "b", "c"],
)

ONE_CHOICE_FILTERED = Reply(
    "two choices, the first taken over by a filter, with refusal and a call by its old name",
    "openai-chat",
    sse(
        chat({"refusal": "I"}),
        {"choices": [{"index": 1, "delta": {"function_call": {"name": "f", "arguments": "{}"}}}]},
        chat({}, "content_filter"),
        {"choices": [{"index": 1, "delta": {}, "finish_reason": "function_call"}]},
        DONE,
    ),
    {"outcome": "refused", "finish_reason": "content_filter", "text": "If{}", "output_tokens": 2},
    ["I", "f{}"],
)

BYTES_NOT_TEXT = Reply(
    "an event that is not UTF-8",
    "openai-completions",
    sse(text("a")) + b'data: {"choices":[{"text":"\xff"}]}\n\n' + sse(text("", "stop"), DONE),
    {"outcome": "undecodable", "text": "a"},
    ["a"],
)

REPLIES = [
    *(VLLM_CHAT, VLLM_COMPLETIONS, VLLM_CONTINUOUS, VLLM_TOKEN_IDS, VLLM_ALL_SPECIAL, LLAMA_CPP),
    *(LLAMA_CPP_TIMINGS, LITELLM, DEEPSEEK, REASONING_ONLY, CRLF_COMMENTS, TRUNCATED, ERROR_THEN_DONE),
    *(TOOL_CALL, TWO_CHOICES, ONE_CHOICE_UNFINISHED, ONE_CHOICE_FILTERED, BYTES_NOT_TEXT),
]


INSTANTS = (
    "first_event_ns",
    "first_nonempty_ns",
    "first_reasoning_ns",
    "thinking_end_ns",
    "last_reasoning_ns",
    "first_content_ns",
    "last_content_ns",
)
"""The instants of what a reply is read to."""
