"""What the events of both OpenAI dialects share: errors, choices, usage, server timings."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pytest_llmbench.wire.chunk import Chunk, Usage
from pytest_llmbench.wire.error_replies import error_in
from pytest_llmbench.wire.event_payload import finish_reason, payload_of, set_error
from pytest_llmbench.wire.sse import SSEEvent
from pytest_llmbench.wire.usage import settled

TOKEN_TIMES = "token_times_ns"
"""Key of an event with the server's instant of each of its tokens, in integer nanoseconds of the server's
clock."""

ReadChoice = Callable[[Chunk, dict[str, Any]], None]
"""Reads one entry of ``choices`` into the chunk, as the dialect has it."""


def decode_event(event: SSEEvent, read_choice: ReadChoice) -> Chunk:
    """The chunk of one event."""
    chunk = Chunk(event.stamp_ns, event.read_index)
    payload = payload_of(event, chunk)
    if payload is not None:
        _read_payload(chunk, payload, event.event, read_choice)
    return chunk


def _read_payload(chunk: Chunk, payload: dict[str, Any], event_type: str, read_choice: ReadChoice) -> None:
    get = payload.get
    choices = get("choices")
    if choices.__class__ is list:
        for choice in choices:
            if choice.__class__ is dict:
                _read_choice(chunk, choice, read_choice)
            else:
                chunk.problem = "an entry of choices that is no JSON object"
    elif choices is not None:
        chunk.problem = "choices that are no list"
    if "error" in payload or event_type != "message" or choices is None:
        error = error_in(payload)
        if error is not None or event_type == "error":
            set_error(chunk, payload if error is None else error)
    if get("usage") is not None:
        chunk.usage = read_usage(payload["usage"])
        if chunk.usage is not None and chunk.choice is not None:
            chunk.tokens_cumulative = chunk.usage.output_tokens
    if (
        get("timings") is not None
        or get("metrics") is not None
        or TOKEN_TIMES in payload
        or get("generation_stats") is not None
    ):
        read_timings(chunk, payload)


def _read_choice(chunk: Chunk, choice: dict[str, Any], read_choice: ReadChoice) -> None:
    get = choice.get
    index = get("index")
    chunk.choice = index if index.__class__ is int else 0
    read_choice(chunk, choice)
    if reason := get("finish_reason"):
        chunk.finish_reason = finish_reason(reason)
    ids = get("token_ids")
    if ids.__class__ is list:
        chunk.tokens = (chunk.tokens or 0) + len(ids)


def read_usage(usage: Any) -> Usage | None:
    """The usage in a usage object; ``None`` for an object without any."""
    if usage.__class__ is not dict:
        return None
    found = Usage(
        input_tokens=_first_count(usage, "prompt_tokens", "input_tokens"),
        output_tokens=_first_count(usage, "completion_tokens", "output_tokens"),
        cached_tokens=_first_count(usage, "prompt_cache_hit_tokens"),
        reasoning_tokens=_first_count(usage, "reasoning_tokens"),
        total_tokens=_first_count(usage, "total_tokens"),
    )
    for key in ("prompt_tokens_details", "input_tokens_details"):
        if usage.get(key).__class__ is dict and found.cached_tokens is None:
            found.cached_tokens = as_count(usage[key].get("cached_tokens"))
    for key in ("completion_tokens_details", "output_tokens_details"):
        if usage.get(key).__class__ is dict and found.reasoning_tokens is None:
            found.reasoning_tokens = as_count(usage[key].get("reasoning_tokens"))
    return None if found == Usage(total_tokens=found.total_tokens) else settled(found)


def _first_count(source: dict[str, Any], *keys: str) -> int | None:
    for key in keys:
        count = as_count(source.get(key))
        if count is not None:
            return count
    return None


def as_count(value: Any) -> int | None:
    """``value`` if it is a valid count, else None: 12.0 is one, True, -1 and "12" are not."""
    if value.__class__ is float and value.is_integer():
        value = int(value)
    return value if value.__class__ is int and value >= 0 else None


def read_timings(chunk: Chunk, payload: dict[str, Any]) -> None:
    """Read llama.cpp's ``timings``, vLLM's ``metrics`` and exo's ``generation_stats``; the first also counts
    tokens, per chunk if asked to.

    Instants of tokens go with them: a field of their own would cost every chunk of every stream.
    """
    sources = [source for key in ("timings", "metrics") if isinstance(source := payload.get(key), dict)]
    if isinstance(stats := payload.get("generation_stats"), dict):
        # A prompt that was in the cache has the rate of when it came there.
        cached = stats.get("prefix_cache_hit", "none") != "none"
        sources.append({name: it for name, it in stats.items() if not cached or name != "prompt_tps"})
    if TOKEN_TIMES in payload:
        sources.append({TOKEN_TIMES: payload[TOKEN_TIMES]})
    if not sources:
        return
    one = len(sources) == 1
    chunk.server_timings = sources[0] if one else {name: it[name] for it in sources for name in it}
    if not chunk.tokens_cumulative and chunk.choice is not None:  # usage of zeros is none
        chunk.tokens_cumulative = as_count(chunk.server_timings.get("predicted_n"))
