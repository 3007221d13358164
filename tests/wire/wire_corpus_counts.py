"""Replies whose token counts contradict each other or the text beside them, with what is to be believed."""

from __future__ import annotations

from typing import Any

from wire_corpus import Reply
from wire_events import DONE, NO_CHOICES, ROLE, Event, chat, sse, text, usage

WORDS = [" one", " two", " three", " four", " five", " six", " seven", " eight"]
EIGHT = [1] * 8
NOT_COUNTED = {"output_tokens": 8, "token_source": "chunk_count", "attribution": "none"}
"""Without a tokenizer the chunks are counted: none of the server's counts was believed."""


def _reply(name: str, body: bytes, dialect: str = "openai-chat", **summary: Any) -> Reply:
    told = {"outcome": "ok", "contradiction": None, "text": "".join(WORDS)}
    return Reply(name, dialect, body, told | summary, WORDS)


def _chat(*, each: Event | None = None, finish: Event | None = None, end: Event | None = None) -> bytes:
    """A chat; what its text events, the event with the finish reason, and one behind it have beside."""
    texts = [chat({"content": word}, **(each or {})) for word in WORDS]
    apart = [] if end is None else [{**NO_CHOICES, **end}]
    return sse(ROLE, *texts, chat({}, "stop", **(finish or {})), *apart, DONE)


def _total(prompt: int, completion: int, total: int, **more: Any) -> Event:
    return {
        "usage": {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, **more}
    }


def _cached(count: int) -> Event:
    return {"prompt_tokens_details": {"cached_tokens": count}}


def _thought(count: int) -> Event:
    return {"completion_tokens_details": {"reasoning_tokens": count}}


SETTLED = [
    _reply(
        "reasoning beside the completion, as xAI counts",
        _chat(end=_total(64, 8, 372, **_thought(300))),
        output_tokens=308,
        reasoning_tokens=300,
        input_tokens=64,
        token_source="server_usage",
    ),
    _reply(
        "reasoning among the completion",
        _chat(end=_total(64, 308, 372, **_thought(300))),
        output_tokens=308,
        reasoning_tokens=300,
    ),
    _reply(
        "fewer thoughts than text, beside the completion",
        _chat(end=_total(64, 8, 77, reasoning_tokens=5)),
        output_tokens=13,
        reasoning_tokens=5,
    ),
    _reply(
        "reasoning beside the output of a response, text completions",
        sse(*(text(word) for word in WORDS), text("", "stop", **_total(64, 8, 372, **_thought(300))), DONE),
        "openai-completions",
        output_tokens=308,
        reasoning_tokens=300,
    ),
    _reply(
        "what a cache served beside the prompt",
        _chat(end=_total(10, 8, 72, **_cached(54))),
        input_tokens=64,
        cached_tokens=54,
        output_tokens=8,
    ),
    _reply(
        "cached and thought beside both",
        _chat(end=_total(10, 8, 372, **_cached(54), **_thought(300))),
        input_tokens=64,
        cached_tokens=54,
        output_tokens=308,
        reasoning_tokens=300,
    ),
]

PARTS = [
    _reply(
        "more cached than the prompt has",
        _chat(end=_total(10, 8, 18, **_cached(54))),
        input_tokens=10,
        cached_tokens=None,
        output_tokens=8,
        contradiction="54 of 10 input tokens cached",
    ),
    _reply(
        "more reasoning than output, without a total",
        _chat(end={"usage": {"prompt_tokens": 64, "completion_tokens": 8, **_thought(300)}}),
        output_tokens=8,
        reasoning_tokens=None,
        reasoning_token_source="none",
        contradiction="300 of 8 output tokens reasoning",
    ),
    _reply(
        "a total with tokens that no count names, as Gemini's",
        _chat(end=_total(64, 8, 372)),
        output_tokens=8,
        reasoning_tokens=None,
        contradiction="372 in total, 64 of input and 8 of output",
    ),
]

NO_COUNTS = [
    _reply(
        "zeros, as LitServe sends them",
        _chat(each=usage(0, 0), finish=usage(0, 0)),
        **NOT_COUNTED,
        input_tokens=None,
        contradiction="0 output tokens although the reply has text",
    ),
    _reply(
        "zeros apart from any choice",
        _chat(end=usage(0, 0)),
        **NOT_COUNTED,
        input_tokens=None,
        contradiction="0 output tokens although the reply has text",
    ),
    _reply(
        "usage in the first event only",
        sse(chat({"role": "assistant"}, **usage(64, 0)), *(chat({"content": word}) for word in WORDS))
        + sse(chat({}, "stop"), DONE),
        **NOT_COUNTED,
        input_tokens=64,
    ),
    _reply(
        "usage in a first event of its own",
        sse({**NO_CHOICES, **usage(64, 1)}, *(chat({"content": word}) for word in WORDS))
        + sse(chat({}, "stop"), DONE),
        **NOT_COUNTED,
        input_tokens=64,
    ),
    _reply(
        "chunks that count themselves",
        _chat(each=usage(64, 1), finish=usage(64, 1)),
        **NOT_COUNTED,
        input_tokens=64,
        contradiction="1 output tokens behind each of 8 pieces of text",
    ),
    _reply("chunks that count themselves, and nothing at the end", _chat(each=usage(64, 1)), **NOT_COUNTED),
    _reply(
        "less in the end than before",
        _chat(each=usage(64, 3), finish=usage(64, 2)),
        **NOT_COUNTED,
        contradiction="2 output tokens in the end, 3 before",
    ),
    _reply(
        "token ids that are always empty",
        sse(*({"choices": [{"index": 0, "text": word, "token_ids": []}]} for word in WORDS))
        + sse(text("", "stop"), DONE),
        "openai-completions",
        **NOT_COUNTED,
    ),
]

RUNNING = [
    _reply(
        "zeros while it runs, the count at the end",
        _chat(each=usage(64, 0), finish=usage(64, 8)),
        output_tokens=8,
        token_source="server_usage",
        attribution="exact",
        chunk_tokens=EIGHT,
    ),
    _reply(
        "one a chunk while it runs, the count at the end",
        _chat(each=usage(64, 1), end=usage(64, 20)),
        output_tokens=20,
        attribution="apportioned",
    ),
    _reply(
        "an input of zero in the last usage",
        _chat(each=usage(64, 1, **_cached(32)), end=usage(0, 8)),
        input_tokens=64,
        cached_tokens=32,
        output_tokens=8,
    ),
    _reply(
        "usage of zeros beside timings that count, as llama.cpp's",
        sse(
            *(
                chat({"content": word}, **usage(0, 0), timings={"predicted_n": number})
                for number, word in enumerate(WORDS, start=1)
            ),
            chat({}, "stop", **usage(0, 0), timings={"predicted_n": 8}),
            DONE,
        ),
        output_tokens=8,
        token_source="chunk_usage",
        attribution="exact",
        chunk_tokens=EIGHT,
        contradiction="0 output tokens although the reply has text",
    ),
]


def _anthropic(start: Event, end: Event) -> bytes:
    said = [
        {
            "type": "content_block_delta",
            "index": 0,
            "delta": {"type": "text_delta", "text": word},
        }
        for word in WORDS
    ]
    return sse(
        {"type": "message_start", "message": {"role": "assistant", "usage": start}},
        *said,
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": end},
        {"type": "message_stop"},
    )


OTHER_APIS = [
    _reply(
        "input of zero in the last event",
        _anthropic(
            {"input_tokens": 32, "cache_read_input_tokens": 32, "output_tokens": 1},
            {"input_tokens": 0, "cache_read_input_tokens": 0, "output_tokens": 8},
        ),
        "anthropic-messages",
        input_tokens=64,
        cached_tokens=32,
        output_tokens=8,
    ),
    _reply(
        "zeros beside text",
        _anthropic({"input_tokens": 0, "output_tokens": 0}, {"output_tokens": 0}),
        "anthropic-messages",
        **NOT_COUNTED,
        input_tokens=None,
        contradiction="0 output tokens although the reply has text",
    ),
    _reply(
        "a running count that stands still",
        sse(
            *({"text": word, "meta_info": {"prompt_tokens": 64, "completion_tokens": 0}} for word in WORDS),
            {"text": "", "meta_info": {"completion_tokens": 0, "finish_reason": {"type": "stop"}}},
            DONE,
        ),
        "sglang-generate",
        **NOT_COUNTED,
        input_tokens=64,
        contradiction="0 output tokens although the reply has text",
    ),
    _reply(
        "reasoning beside the output",
        sse(
            *({"type": "response.output_text.delta", "delta": word} for word in WORDS),
            {
                "type": "response.completed",
                "response": {
                    "status": "completed",
                    "usage": {
                        "input_tokens": 64,
                        "output_tokens": 8,
                        "total_tokens": 372,
                        "output_tokens_details": {"reasoning_tokens": 300},
                    },
                },
            },
        ),
        "openai-responses",
        output_tokens=308,
        reasoning_tokens=300,
    ),
]

COUNTS_REPLIES = [*SETTLED, *PARTS, *NO_COUNTS, *RUNNING, *OTHER_APIS]
