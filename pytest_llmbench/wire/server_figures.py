"""The figures that the server reports about a reply: its timings, and the instants of its tokens."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.error_replies import shorten
from pytest_llmbench.wire.openai_stream import TOKEN_TIMES, as_count

_NS_PER_MS = 1e6
_PREFILL_MS = ("prompt_ms", "time_to_first_token_ms")
_PREFILL_RATES = (("prompt_tokens", "prompt_tps"),)
_GENERATION_MS = ("predicted_ms", "generation_time_ms")
_GENERATION_RATES = (("generation_tokens", "generation_tps"), ("completion_tokens", "decode_throughput"))
"""Names of a number of tokens, and of the tokens per second."""
_DRAFTED = ("draft_n", "num_draft_tokens", "spec_draft_token_num")
_ACCEPTED = ("draft_n_accepted", "num_accepted_draft_tokens", "spec_accept_token_num")
_MOST_FIGURES, _NAME_LIMIT = 64, 80
"""Most figures of a reply that are kept, and most characters of their names."""
_BEYOND = 2**63
"""First integer too large for a record, which keeps 64 bits; such a figure is dropped."""


@dataclass(frozen=True, slots=True)
class ServerFigures:
    """The server's figures for one reply. Names and units are those of a ``RequestRecord``; ``None``: not
    reported."""

    server_timings: dict[str, float] = field(default_factory=dict)
    """Every figure under the server's own name; the last one if several have the same name."""
    queue_wait_ns: int | None = None
    prefill_ns: int | None = None
    generation_ns: int | None = None
    model_load_ns: int | None = None
    preemptions: int | None = None
    preempted_tokens: int | None = None
    cached_tokens: int | None = None
    """How many input tokens a cache served."""
    server_token_ns: Sequence[int] = ()
    critical_evictions: int | None = None
    draft_tokens: int | None = None
    accepted_draft_tokens: int | None = None
    thinking_end_reason: str | None = None


NOTHING_SAID = ServerFigures()


def server_figures(chunks: Sequence[Chunk]) -> ServerFigures:
    """The figures in the chunks of one reply; :data:`NOTHING_SAID` where there are none.

    Queue wait is ``queue_ms``, or vLLM's ``queue_time_ms``. Prefill is llama.cpp's ``prompt_ms``, vLLM's
    ``time_to_first_token_ms``, which begins with the first scheduling, Ollama's ``prompt_eval_duration``, or
    exo's ``prompt_tokens`` / ``prompt_tps``. Generation is llama.cpp's ``predicted_ms``, vLLM's
    ``generation_time_ms``, Ollama's ``eval_duration``, or tokens / exo's ``generation_tps`` or SGLang's
    ``decode_throughput``, so that tokens over this time are the rate that the server tells.
    The loading of the model is Ollama's ``load_duration``; its durations are nanoseconds. What a cache served
    is llama.cpp's ``cache_n``. ``critical_evictions`` and ``think_reason`` are the embedded engine's. What
    speculative decoding guessed and had accepted is llama.cpp's ``draft_n`` and ``draft_n_accepted``, vLLM's
    ``metrics.speculative_decoding``, or SGLang's ``spec_draft_token_num`` and ``spec_accept_token_num``.
    """
    timed = [chunk.server_timings for chunk in chunks if chunk.server_timings is not None]
    if not timed:
        return NOTHING_SAID
    figures = _figures(timed)
    return ServerFigures(
        server_timings=figures,
        queue_wait_ns=_ns(figures.get("queue_ms", figures.get("queue_time_ms"))),
        prefill_ns=_ns(_stage_ms(figures, _PREFILL_MS, "prompt_eval_duration", _PREFILL_RATES)),
        generation_ns=_ns(_stage_ms(figures, _GENERATION_MS, "eval_duration", _GENERATION_RATES)),
        model_load_ns=_ns(_ms(figures.get("load_duration"))),
        preemptions=_count(figures.get("preemptions")),
        preempted_tokens=_count(figures.get("preempted_tokens")),
        cached_tokens=_count(figures.get("cache_n")),
        server_token_ns=_token_instants(timed),
        critical_evictions=_count(figures.get("critical_evictions")),
        draft_tokens=_first_count(figures, _DRAFTED),
        accepted_draft_tokens=_first_count(figures, _ACCEPTED),
        thinking_end_reason=next((r for one in timed if (r := reason_of(one.get("think_reason")))), None),
    )


def _stage_ms(
    figures: Mapping[str, float], in_ms: Sequence[str], in_ns: str, rates: Sequence[tuple[str, str]]
) -> float | None:
    """The milliseconds of a stage under the first name that there is; a rate of 0 tells none."""
    for name in in_ms:
        if name in figures:
            return figures[name]
    if in_ns in figures:
        return figures[in_ns] / _NS_PER_MS
    for tokens, rate in rates:
        if tokens in figures and figures.get(rate, 0.0) > 0:
            return 1000 * figures[tokens] / figures[rate]
    return None


def reason_of(value: Any) -> str | None:
    """The server's reason why reasoning ended; ``None`` for anything but non-empty text."""
    return shorten(value, _NAME_LIMIT) or None if isinstance(value, str) and value.strip() else None


def _figures(timed: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    merged = {name: value for timings in timed for name, value in timings.items()}
    if isinstance(speculation := merged.get("speculative_decoding"), dict):
        merged |= speculation
    return {
        shorten(name, _NAME_LIMIT): float(value)
        for name, value in islice(merged.items(), _MOST_FIGURES)
        if isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
    }


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def _ns(ms: float | None) -> int | None:
    return None if ms is None or not 0 <= ms * _NS_PER_MS < _BEYOND else round(ms * _NS_PER_MS)


def _ms(ns: float | None) -> float | None:
    return None if ns is None else ns / _NS_PER_MS


def _count(value: float | None) -> int | None:
    count = as_count(value)
    return count if count is not None and count < _BEYOND else None


def _first_count(figures: Mapping[str, float], names: Sequence[str]) -> int | None:
    return next((_count(figures[name]) for name in names if name in figures), None)


def _token_instants(timed: Sequence[Mapping[str, Any]]) -> list[int]:
    """All instants in the order of the stream; empty if anything else is among them."""
    found: list[int] = []
    for timings in timed:
        instants = timings.get(TOKEN_TIMES, ())
        if instants.__class__ not in (list, tuple):
            return []
        found += instants
    return found if all(one.__class__ is int and 0 <= one < _BEYOND for one in found) else []
