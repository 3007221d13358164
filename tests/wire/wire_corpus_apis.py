"""Replies of the other APIs in the manner of their servers, written here, with what each must be read as."""

from __future__ import annotations

import json
from typing import Any

from wire_corpus import Reply
from wire_events import DONE, sse

Event = dict[str, Any]


def named(*events: Event) -> bytes:
    """Events with their type as the name of the event too, as the Responses and Messages APIs send them."""
    return b"".join(
        f"event: {each['type']}\ndata: {json.dumps(each, ensure_ascii=False)}\n\n".encode() for each in events
    )


# --- OpenAI Responses

ITEM = {"item_id": "msg_1", "output_index": 1, "content_index": 0}


def delta(text: str, kind: str = "output_text") -> Event:
    return {"type": f"response.{kind}.delta", **ITEM, "delta": text}


def response(kind: str, **more: Any) -> Event:
    whole = {"id": "resp_1", "object": "response", "status": kind, "error": None, "incomplete_details": None}
    return {"type": f"response.{kind}", "response": {**whole, "usage": None, **more}}


OPENED = [response("created", status="in_progress"), response("in_progress")]
USED = {
    "input_tokens": 30,
    "input_tokens_details": {"cached_tokens": 16},
    "output_tokens": 6,
    "output_tokens_details": {"reasoning_tokens": 2},
    "total_tokens": 36,
}

RESPONSES_REASONING = Reply(
    "responses, reasoning and text",
    "openai-responses",
    named(
        *OPENED,
        {"type": "response.output_item.added", "output_index": 0, "item": {"type": "reasoning", "id": "rs"}},
        delta("Hm", "reasoning_text"),
        delta("m", "reasoning_summary_text"),
        {"type": "response.output_item.done", "output_index": 0, "item": {"type": "reasoning", "id": "rs"}},
        {"type": "response.content_part.added", **ITEM, "part": {"type": "output_text", "text": ""}},
        delta("\n"),
        delta("Grüße"),
        delta(""),  # a token that ends inside a character
        delta(" 🦀"),
        {"type": "response.output_text.done", **ITEM, "text": "\nGrüße 🦀"},
        response("completed", usage=USED, output=[{"type": "message"}]),
    ),
    {
        "outcome": "ok",
        "finish_reason": "completed",
        "error": None,
        "text": "\nGrüße 🦀",
        "reasoning": "Hmm",
        "input_tokens": 30,
        "cached_tokens": 16,
        "output_tokens": 6,
        "reasoning_tokens": 2,
        "token_source": "server_usage",
        "chunk_tokens": [1, 1, 1, 1, 1, 1],
        "attribution": "exact",
    },
    ["Hm", "m", "\n", "Grüße", "", " 🦀"],
)

RESPONSES_LIMIT = Reply(
    "responses, ended by the limit, in completed as vLLM writes it, with [DONE] behind it",
    "openai-responses",
    named(
        *OPENED,
        delta(" one"),
        delta(" two three"),
        {
            **response(
                "incomplete",
                incomplete_details={"reason": "max_output_tokens"},
                usage={"input_tokens": 9, "output_tokens": 3},
            ),
            "type": "response.completed",
            "timings": {"queue_ms": 1.5},
        },
    )
    + b"data: [DONE]\n\n",
    {
        "outcome": "ok",
        "finish_reason": "max_output_tokens",
        "text": " one two three",
        "output_tokens": 3,
        "chunk_tokens": [1, 2],
        "attribution": "apportioned",
        "queue_wait_ns": 1_500_000,
    },
    [" one", " two three"],
)

RESPONSES_CALL = Reply(
    "responses, a function call and a refusal",
    "openai-responses",
    named(
        *OPENED,
        {"type": "response.output_item.added", "item": {"type": "function_call", "name": "f"}},
        delta('{"a":', "function_call_arguments"),
        delta("1}", "function_call_arguments"),
        {"type": "response.function_call_arguments.done", "arguments": '{"a":1}'},
        delta("No.", "refusal"),
        response("completed"),
    ),
    {
        "outcome": "ok",
        "text": '{"a":1}No.',
        "output_tokens": 3,
        "token_source": "chunk_count",
    },
    ['{"a":', "1}", "No."],
)

RESPONSES_FILTERED = Reply(
    "responses, taken over by a filter",
    "openai-responses",
    named(
        *OPENED,
        delta("Sure"),
        response("incomplete", incomplete_details={"reason": "content_filter"}),
    ),
    {"outcome": "refused", "finish_reason": "content_filter", "text": "Sure"},
    ["Sure"],
)

RESPONSES_FAILED = Reply(
    "responses, failed",
    "openai-responses",
    named(
        *OPENED,
        delta("Hel"),
        response("failed", error={"code": "server_error", "message": "the model fell over"}),
    ),
    {
        "outcome": "in_band_error",
        "error": "the model fell over (code server_error)",
        "text": "Hel",
    },
    ["Hel"],
)

RESPONSES_ERROR = Reply(
    "responses, an error event",
    "openai-responses",
    named(*OPENED, delta("Hel"), {"type": "error", "code": "rate_limit_exceeded", "message": "slow down"}),
    {"outcome": "in_band_error", "error": "slow down (type error, code rate_limit_exceeded)"},
    ["Hel"],
)

RESPONSES_CUT = Reply(
    "responses, without an end",
    "openai-responses",
    named(*OPENED, delta("Hel"), delta("lo")) + b'event: response.output_text.delta\ndata: {"type":"resp',
    {"outcome": "truncated", "finish_reason": None, "text": "Hello", "output_tokens": 2},
    ["Hel", "lo"],
)

RESPONSES_CHAT = Reply(
    "responses, answered with chunks of chat",
    "openai-responses",
    named(delta("a")) + b'data: {"choices":[{"index":0,"delta":{"content":"b"}}]}\n\n',
    {"outcome": "undecodable", "error": "the stream holds an event without a type of the Responses API"},
    ["a"],
)

RESPONSES = [
    *(RESPONSES_REASONING, RESPONSES_LIMIT, RESPONSES_CALL, RESPONSES_FILTERED, RESPONSES_FAILED),
    *(RESPONSES_ERROR, RESPONSES_CUT, RESPONSES_CHAT),
]

# --- Anthropic Messages


def started(**usage: int) -> Event:
    message = {"id": "msg_1", "role": "assistant", "content": [], "stop_reason": None, "usage": usage}
    return {"type": "message_start", "message": message}


def block(part: Event, index: int = 0) -> Event:
    return {"type": "content_block_delta", "index": index, "delta": part}


def said(text: str, index: int = 0) -> Event:
    return block({"type": "text_delta", "text": text}, index)


def opened(kind: str, index: int = 0, **more: Any) -> Event:
    return {"type": "content_block_start", "index": index, "content_block": {"type": kind, **more}}


def closed(index: int = 0) -> Event:
    return {"type": "content_block_stop", "index": index}


def stopped(reason: str, **usage: int) -> list[Event]:
    delta = {"stop_reason": reason, "stop_sequence": None}
    return [{"type": "message_delta", "delta": delta, "usage": usage}, {"type": "message_stop"}]


PING = {"type": "ping"}

MESSAGES_THINKING = Reply(
    "messages, thinking and text, output counted twice on the way",
    "anthropic-messages",
    named(
        started(input_tokens=10, cache_read_input_tokens=16, cache_creation_input_tokens=4, output_tokens=1),
        opened("thinking", thinking="", signature=""),
        PING,
        block({"type": "thinking_delta", "thinking": "Hmm"}),
        block({"type": "signature_delta", "signature": "EqQB"}),
        closed(),
        opened("text", 1, text=""),
        said("\n", 1),
        said("Grüße", 1),
        said(" 🦀", 1),
        block({"type": "citations_delta", "citation": {"cited_text": "x"}}, 1),
        closed(1),
        {"type": "message_delta", "delta": {}, "usage": {"output_tokens": 3}},
        *stopped("end_turn", output_tokens=4),
    ),
    {
        "outcome": "ok",
        "finish_reason": "end_turn",
        "error": None,
        "text": "\nGrüße 🦀",
        "reasoning": "Hmm",
        "input_tokens": 30,
        "cached_tokens": 16,
        "output_tokens": 4,
        "token_source": "server_usage",
        "chunk_tokens": [1, 1, 1, 1],
        "attribution": "exact",
        "reasoning_tokens": 1,
    },
    ["Hmm", "\n", "Grüße", " 🦀"],
)

MESSAGES_TOOL = Reply(
    "messages, a tool call, ended by the limit, with the whole usage at the end",
    "anthropic-messages",
    named(
        started(input_tokens=9, output_tokens=0),
        opened("tool_use", id="t", name="f", input={}),
        block({"type": "input_json_delta", "partial_json": ""}),
        block({"type": "input_json_delta", "partial_json": '{"a":'}),
        block({"type": "input_json_delta", "partial_json": " 1}"}),
        closed(),
        *stopped("tool_use", input_tokens=11, cache_read_input_tokens=5, output_tokens=3),
    ),
    {
        "outcome": "ok",
        "finish_reason": "tool_use",
        "text": '{"a": 1}',
        "input_tokens": 16,
        "cached_tokens": 5,
        "output_tokens": 3,
        "chunk_tokens": [1, 1, 1],
    },
    ["", '{"a":', " 1}"],
)

MESSAGES_LIMIT = Reply(
    "messages, text in the block's beginning, ended by the limit",
    "anthropic-messages",
    named(
        started(input_tokens=9),
        opened("text", text="one"),
        said(" two"),
        *stopped("max_tokens", output_tokens=2),
    ),
    {"outcome": "ok", "finish_reason": "max_tokens", "text": "one two", "chunk_tokens": [1, 1]},
    ["one", " two"],
)

MESSAGES_REFUSED = Reply(
    "messages, stopped by a classifier",
    "anthropic-messages",
    named(started(input_tokens=9), opened("text", text=""), said("Sure"), *stopped("refusal")),
    {"outcome": "refused", "finish_reason": "refusal", "output_tokens": 1, "token_source": "chunk_count"},
    ["Sure"],
)

MESSAGES_OVERLOADED = Reply(
    "messages, overloaded in mid-stream",
    "anthropic-messages",
    named(
        started(input_tokens=9, output_tokens=1),
        said("Hel"),
        {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    ),
    {
        "outcome": "in_band_error",
        "error": "Overloaded (type overloaded_error)",
        "output_tokens": 1,
        "input_tokens": 9,
        "token_source": "chunk_count",
    },
    ["Hel"],
)

MESSAGES_CUT = Reply(
    "messages, without an end; what message_start counted is no total",
    "anthropic-messages",
    named(started(input_tokens=9, output_tokens=1), said("Hel"), said("lo"), PING) + b"event: message_del",
    {
        "outcome": "truncated",
        "text": "Hello",
        "input_tokens": 9,
        "output_tokens": 2,
        "token_source": "chunk_count",
    },
    ["Hel", "lo"],
)

MESSAGES_UNFINISHED = Reply(
    "messages, a stop without a reason",
    "anthropic-messages",
    named(started(input_tokens=9), said("Hel"), {"type": "message_stop"}),
    {"outcome": "truncated", "error": "the stream ended with its end marker but gave no finish reason"},
    ["Hel"],
)

MESSAGES_GARBAGE = Reply(
    "messages, a delta that is none",
    "anthropic-messages",
    named(started(input_tokens=9), said("a"), {"type": "content_block_delta", "index": 0, "delta": "b"}),
    {"outcome": "undecodable", "error": "the stream holds a delta that is not a JSON object"},
    ["a"],
)

MESSAGES = [
    *(MESSAGES_THINKING, MESSAGES_TOOL, MESSAGES_LIMIT, MESSAGES_REFUSED, MESSAGES_OVERLOADED),
    *(MESSAGES_CUT, MESSAGES_UNFINISHED, MESSAGES_GARBAGE),
]

# --- Ollama


def lines(*lines: Event | str, end: str = "\n") -> bytes:
    texts = (each if isinstance(each, str) else json.dumps(each, ensure_ascii=False) for each in lines)
    return "".join(f"{text}{end}" for text in texts).encode()


def spoke(content: str = "", *, done: bool = False, reason: str | None = None, **more: Any) -> Event:
    message = {"role": "assistant", "content": content, **more}
    line = {"model": "small", "created_at": "2026-03-04T05:06:07.1Z", "message": message, "done": done}
    return line if reason is None else {**line, "done_reason": reason}


TIMES = {
    "total_duration": 2_500_000_000,
    "load_duration": 2_000_000_000,
    "prompt_eval_duration": 300_000_000,
    "eval_duration": 200_000_000,
}

OLLAMA_CHAT = Reply(
    "ollama chat, thinking and text, after a cold start",
    "ollama-chat",
    lines(
        spoke(thinking="Hmm"),
        spoke("Grüße"),
        spoke(""),  # a token that ends inside a character
        spoke(" 🦀"),
        {**spoke(done=True, reason="stop"), **TIMES, "prompt_eval_count": 26, "eval_count": 4},
    ),
    {
        "outcome": "ok",
        "finish_reason": "stop",
        "error": None,
        "text": "Grüße 🦀",
        "reasoning": "Hmm",
        "input_tokens": 26,
        "output_tokens": 4,
        "token_source": "server_usage",
        "chunk_tokens": [1, 1, 1, 1],
        "attribution": "exact",
        "queue_wait_ns": None,  # the load of the model is no queue, and the queue is not told
        "prefill_ns": 300_000_000,
        "model_load_ns": 2_000_000_000,
        "server_timings": {name: float(value) for name, value in TIMES.items()},
    },
    ["Hmm", "Grüße", "", " 🦀"],
)

OLLAMA_GENERATE = Reply(
    "ollama generate, CRLF and blank lines, the last line without an end, several tokens a line",
    "ollama-generate",
    lines(
        {"model": "small", "response": " one", "done": False},
        "",
        {"model": "small", "response": " two three", "done": False},
        end="\r\n",
    )
    + b'{"model":"small","response":"","done":true,"done_reason":"length","eval_count":3}',
    {
        "outcome": "ok",
        "finish_reason": "length",
        "text": " one two three",
        "input_tokens": None,
        "output_tokens": 3,
        "chunk_tokens": [1, 2],
        "attribution": "apportioned",
        "prefill_ns": None,
    },
    [" one", " two three"],
)

OLLAMA_TOOL = Reply(
    "ollama chat, a tool call in one piece",
    "ollama-chat",
    lines(
        spoke(tool_calls=[{"function": {"name": "f", "arguments": {"a": 1}}}, 7]),
        {**spoke(done=True, reason="stop"), "prompt_eval_count": 26, "eval_count": 9},
    ),
    {"outcome": "ok", "text": 'f{"a": 1}', "output_tokens": 9, "chunk_tokens": [9]},
    ['f{"a": 1}'],
)

OLLAMA_ERROR = Reply(
    "ollama chat, an error line",
    "ollama-chat",
    lines(spoke("Hel"), {"error": "an error was encountered while running the model"}),
    {"outcome": "in_band_error", "error": "an error was encountered while running the model", "text": "Hel"},
    ["Hel"],
)

OLLAMA_CUT = Reply(
    "ollama chat, cut off in the last line",
    "ollama-chat",
    lines(spoke("Hel"), spoke("lo")) + b'{"model":"small","mess',
    {"outcome": "truncated", "text": "Hello", "finish_reason": None, "output_tokens": 2},
    ["Hel", "lo"],
)

OLLAMA_UNFINISHED = Reply(
    "ollama generate, done without a reason",
    "ollama-generate",
    lines({"response": "a", "done": False}, {"response": "", "done": True, "eval_count": 1}),
    {"outcome": "truncated", "error": "the stream ended with its end marker but gave no finish reason"},
    ["a"],
)

OLLAMA_UNLOADED = Reply(
    "ollama generate, a reply that only loaded the model, after a word",
    "ollama-generate",
    lines({"response": "a", "done": False}, {"response": "", "done": True, "done_reason": "load"}),
    {
        "outcome": "in_band_error",
        "error": "finish reason load is not a normal end (stop or length)",
    },
    ["a"],
)

OLLAMA_GARBAGE = Reply(
    "ollama chat, a page in the stream",
    "ollama-chat",
    lines(spoke("a"), "<html>Bad Gateway</html>", spoke(done=True, reason="stop")),
    {
        "outcome": "undecodable",
        "error": "the stream holds an event that is not a JSON object: <html>Bad Gateway</html>",
    },
    ["a"],
)

OLLAMA_BYTES = Reply(
    "ollama chat, bytes that are no text",
    "ollama-chat",
    lines(spoke("a")) + b'{"message":{"content":"\xff"},"done":false}\n' + lines(spoke("b")),
    {"outcome": "undecodable", "text": "ab"},
    ["a", "b"],
)

OLLAMA = [
    *(OLLAMA_CHAT, OLLAMA_GENERATE, OLLAMA_TOOL, OLLAMA_ERROR, OLLAMA_CUT, OLLAMA_UNFINISHED),
    *(OLLAMA_UNLOADED, OLLAMA_GARBAGE, OLLAMA_BYTES),
]

# --- SGLang


def sglang(text: str, tokens: int, ended: Any = None, **more: Any) -> Event:
    told = {"id": "9", "prompt_tokens": 12, "completion_tokens": tokens, "cached_tokens": 8}
    return {"text": text, "meta_info": {**told, "finish_reason": ended}, **more}


SGLANG_WHOLE = Reply(
    "sglang, all text so far, a character that comes in halves, several tokens an event",
    "sglang-generate",
    sse(
        sglang(" one", 1, output_ids=[7]),
        sglang(" one", 2),  # a token without text
        sglang(" one two �", 5),
        sglang(" one two 🦀", 6),
        sglang(" one two 🦀.", 7, {"type": "length", "length": 7}),
        DONE,
    ),
    {
        "outcome": "ok",
        "finish_reason": "length",
        "error": None,
        "text": " one two �🦀.",
        "input_tokens": 12,
        "cached_tokens": 8,
        "output_tokens": 7,
        "token_source": "server_usage",
        "chunk_tokens": [1, 1, 3, 1, 1],
        "attribution": "exact",
    },
    [" one", "", " two �", "🦀", "."],
)

SGLANG_INCREMENTS = Reply(
    "sglang, what is new, which at first looks like all so far",
    "sglang-generate",
    sse(
        sglang(" t", 1),
        sglang(" t", 2),
        sglang(" the", 3),
        sglang(" cat", 4),
        sglang(" t", 5, {"type": "stop", "matched": 2}),
        DONE,
    ),
    {
        "outcome": "ok",
        "finish_reason": "stop",
        "text": " t t the cat t",
        "output_tokens": 5,
        "chunk_tokens": [1, 1, 1, 1, 1],
        "attribution": "exact",
    },
    [" t", " t", " the", " cat", " t"],
)

SGLANG_ABORT = Reply(
    "sglang, aborted",
    "sglang-generate",
    sse(
        sglang("a", 1),
        sglang("a", 1, {"type": "abort", "message": "out of memory", "status_code": 500}),
        DONE,
    ),
    {"outcome": "in_band_error", "error": "out of memory", "output_tokens": 1},
    ["a"],
)

SGLANG_REWRITTEN = Reply(
    "sglang, text taken back",
    "sglang-generate",
    sse(*(sglang("abcdefghijkl"[:n], n) for n in range(1, 11)), sglang("xyz", 11), DONE),
    {
        "outcome": "undecodable",
        "error": "the stream holds text that does not go on from the text before it",
    },
    [*"abcdefghij", "xyz"],
)

SGLANG_CUT = Reply(
    "sglang, without an end",
    "sglang-generate",
    sse(sglang("a", 1), sglang("ab", 2)) + b'data: {"text":"abc","meta',
    {"outcome": "truncated", "text": "ab", "output_tokens": 2, "token_source": "chunk_usage"},
    ["a", "b"],
)

SGLANG_ERROR = Reply(
    "sglang, an error event",
    "sglang-generate",
    sse(sglang("a", 1), {"error": {"message": "the scheduler died"}}),
    {"outcome": "in_band_error", "error": "the scheduler died"},
    ["a"],
)

# --- Text Generation Inference


def tgi(text: str, *, special: bool = False, ended: str | None = None, **details: int) -> Event:
    told = None if ended is None else {"finish_reason": ended, "seed": None, **details}
    whole = None if ended is None else "all of it"
    token = {"id": 5, "text": text, "logprob": -0.5, "special": special}
    return {"index": 1, "token": token, "generated_text": whole, "details": told}


TGI_STREAM = Reply(
    "tgi, a special token in mid-stream and one at the end",
    "tgi-generate",
    sse(
        tgi(" one"),
        tgi("<mask>", special=True),
        tgi(" two"),
        tgi("</s>", special=True, ended="eos_token", generated_tokens=4, input_length=9),
    ),
    {
        "outcome": "ok",
        "finish_reason": "eos_token",
        "text": " one two",
        "input_tokens": 9,
        "output_tokens": 4,
        "token_source": "server_usage",
        "chunk_tokens": [1, 1, 1, 1],
        "attribution": "exact",
    },
    [" one", "", " two", ""],
)

TGI_ERROR = Reply(
    "tgi, an error in mid-stream",
    "tgi-generate",
    sse(tgi(" one")) + b'event: error\ndata: {"error":"Request failed","error_type":"generation"}\n\n',
    {"outcome": "in_band_error", "error": "Request failed", "text": " one"},
    [" one"],
)

TGI_CUT = Reply(
    "tgi, without an end",
    "tgi-generate",
    sse(tgi(" one"), tgi(" two")),
    {"outcome": "truncated", "output_tokens": 2, "token_source": "chunk_usage"},
    [" one", " two"],
)

# --- Triton


def triton(text: str) -> Event:
    return {"model_name": "ensemble", "model_version": "1", "sequence_end": False, "text_output": text}


TRITON_INCREMENTS = Reply(
    "triton, what is new",
    "triton-generate",
    sse(triton(" one"), triton(" two"), triton(""), triton(" three")),
    {
        "outcome": "ok",
        "finish_reason": "end of stream",
        "text": " one two three",
        "input_tokens": None,
        "output_tokens": 3,
        "token_source": "chunk_count",
    },
    [" one", " two", " three"],
)

TRITON_WHOLE = Reply(
    "triton, all text so far",
    "triton-generate",
    sse(triton("one"), triton("one two"), triton("one two three")),
    {"outcome": "ok", "text": "one two three", "output_tokens": 3},
    ["one", " two", " three"],
)

TRITON_ERROR = Reply(
    "triton, an error in a reply with status 200",
    "triton-generate",
    sse(triton("one"), {"error": "in ensemble, the request was cancelled"}),
    {"outcome": "in_band_error", "error": "in ensemble, the request was cancelled", "text": "one"},
    ["one"],
)

TRITON_CUT = Reply(
    "triton, cut off in an event, though the body came to its end",
    "triton-generate",
    sse(triton("one"), triton(" two")) + b'data: {"text_out',
    {"outcome": "truncated", "finish_reason": None},
    ["one", " two"],
)

ENGINES = [
    *(SGLANG_WHOLE, SGLANG_INCREMENTS, SGLANG_ABORT, SGLANG_REWRITTEN, SGLANG_CUT, SGLANG_ERROR),
    *(TGI_STREAM, TGI_ERROR, TGI_CUT, TRITON_INCREMENTS, TRITON_WHOLE, TRITON_ERROR, TRITON_CUT),
]

API_REPLIES = [*RESPONSES, *MESSAGES, *OLLAMA, *ENGINES]
