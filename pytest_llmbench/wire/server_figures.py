"""What a server says about its reply: timings, instants of tokens, the model that answered, and, where it is
declared, what no client can see."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal

from pytest_llmbench.model.record import RequestRecord
from pytest_llmbench.wire.chunk import TOKEN_TIMES, TOKENS_PER_STEP, Chunk, as_count
from pytest_llmbench.wire.error_replies import header, shorten
from pytest_llmbench.wire.inline_reasoning import InlineReasoning
from pytest_llmbench.wire.sse import SSEEvent

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


def server_figures(chunks: Sequence[Chunk], output_tokens: int | None = None) -> dict[str, Any]:
    """The figures in the chunks of one reply of so many tokens: field of a ``RequestRecord`` → value,
    ``None`` where the server does not report it; empty where it reports none. ``server_timings`` has every
    figure under the server's own name, the last one if several have the same name.

    Queue wait is ``queue_ms``, or vLLM's ``queue_time_ms``. Prefill is llama.cpp's ``prompt_ms``, vLLM's
    ``time_to_first_token_ms``, which begins with the first scheduling, Ollama's ``prompt_eval_duration``, or
    exo's ``prompt_tokens`` / ``prompt_tps``. Generation is llama.cpp's ``predicted_ms``, vLLM's
    ``generation_time_ms``, Ollama's ``eval_duration``, or tokens / exo's ``generation_tps`` or SGLang's
    ``decode_throughput``, so that tokens over this time are the rate that the server tells.
    The loading of the model is Ollama's ``load_duration``; its durations are nanoseconds. What a cache served
    is llama.cpp's ``cache_n``. ``critical_evictions`` and ``think_reason`` are the embedded engine's. What
    speculative decoding guessed and had accepted is llama.cpp's ``draft_n`` and ``draft_n_accepted``, vLLM's
    ``metrics.speculative_decoding``, or SGLang's ``spec_draft_token_num`` and ``spec_accept_token_num``; of
    TensorRT-LLM's ``avg_decoded_tokens_per_iter`` what was accepted follows, and not what was guessed.
    """
    timed = [chunk.server_timings for chunk in chunks if chunk.server_timings is not None]
    if not timed:
        return {}
    merged = {name: value for timings in timed for name, value in timings.items()}
    if isinstance(speculation := merged.get("speculative_decoding"), dict):
        merged |= speculation
    figures = {
        shorten(name, _NAME_LIMIT): float(value)
        for name, value in islice(merged.items(), _MOST_FIGURES)
        if isinstance(value, int | float) and not isinstance(value, bool) and _is_finite(value)
    }
    load_ns = figures.get("load_duration")
    return {
        "server_timings": figures,
        "queue_wait_ns": _ns(figures.get("queue_ms", figures.get("queue_time_ms"))),
        "prefill_ns": _ns(_stage_ms(figures, _PREFILL_MS, "prompt_eval_duration", _PREFILL_RATES)),
        "generation_ns": _ns(_stage_ms(figures, _GENERATION_MS, "eval_duration", _GENERATION_RATES)),
        "model_load_ns": _ns(None if load_ns is None else load_ns / _NS_PER_MS),
        "preemptions": _count(figures.get("preemptions")),
        "preempted_tokens": _count(figures.get("preempted_tokens")),
        "cached_tokens": _count(figures.get("cache_n")),
        "server_token_ns": _token_instants(timed),
        "critical_evictions": _count(figures.get("critical_evictions")),
        "draft_tokens": _first_count(figures, _DRAFTED),
        "accepted_draft_tokens": _accepted(figures, output_tokens),
        "thinking_end_reason": next((r for one in timed if (r := reason_of(one.get("think_reason")))), None),
    }


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


def _is_finite(value: float) -> bool:
    try:
        return math.isfinite(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def _ns(ms: float | None) -> int | None:
    return None if ms is None or not 0 <= ms * _NS_PER_MS < _BEYOND else round(ms * _NS_PER_MS)


def _count(value: float | None) -> int | None:
    count = as_count(value)
    return count if count is not None and count < _BEYOND else None


def _first_count(figures: Mapping[str, float], names: Sequence[str]) -> int | None:
    return next((_count(figures[name]) for name in names if name in figures), None)


def _accepted(figures: Mapping[str, float], output_tokens: int | None) -> int | None:
    """Accepted tokens: those that the server counts, or all that iterations gave beside one each."""
    told, per_step = _first_count(figures, _ACCEPTED), figures.get(TOKENS_PER_STEP, 0.0)
    if told is not None or per_step < 1 or not output_tokens:
        return told
    return output_tokens - round(output_tokens / per_step)


def _token_instants(timed: Sequence[Mapping[str, Any]]) -> list[int]:
    """All instants in the order of the stream; empty if anything else is among them."""
    found: list[int] = []
    for timings in timed:
        instants = timings.get(TOKEN_TIMES, ())
        if instants.__class__ not in (list, tuple):
            return []
        found += instants
    return found if all(one.__class__ is int and 0 <= one < _BEYOND for one in found) else []


FIELD, HEADER = "field:", "header:"
TimeUnit = Literal["s", "ms", "us", "ns"]
_NS = {"s": 1e9, "ms": 1e6, "us": 1e3, "ns": 1.0}


@dataclass(frozen=True, slots=True)
class Declared:
    """Where replies hold what. A place is ``field:a.b.0.c``, a path through the JSON of an event (numbers
    count list entries), ``header:Name`` of the response, or ``header:Server-Timing:entry``, the duration
    of one entry of that header (W3C Server Timing); empty: nothing is declared. Other places are not read
    here."""

    inline: InlineReasoning = field(default_factory=InlineReasoning)
    end_reason: str = ""
    """Place of the reason why the reasoning of a reply ended."""
    critical_evictions: str = ""
    """Place of the number of evictions of the request in its output phase."""
    queue_wait: str = ""
    """Place of the time that the request waited to be scheduled."""
    prefill: str = ""
    """Place of the time from there to the first token."""
    time_unit: TimeUnit = "ms"
    """Unit of both times; an entry of Server-Timing is always in ms."""

    @property
    def tells(self) -> bool:
        """Whether something must be looked up in each reply."""
        return any(place.startswith((FIELD, HEADER)) for place in self._places)

    @property
    def needs_every_event(self) -> bool:
        """Whether replies must be read event by event: their text alone does not show what they are."""
        return self.inline.declared or any(place.startswith(FIELD) for place in self._places)

    @property
    def _places(self) -> tuple[str, ...]:
        return self.end_reason, self.critical_evictions, self.queue_wait, self.prefill

    def passing(self, events: Iterable[SSEEvent], held: list[SSEEvent]) -> Iterable[SSEEvent]:
        """The ``events``; those that may have a declared field go to ``held`` as they pass, so that a reply
        is read once."""
        names = [_name_in(place) for place in self._places if place.startswith(FIELD)]
        return _holding(events, names, held) if names else events

    def fill(self, record: RequestRecord, events: Sequence[SSEEvent], headers: Mapping[str, str]) -> None:
        """Put what a reply has at the declared places into its record; what it does not have stays
        unknown. ``events``: its events, or those that :meth:`passing` held."""
        reason = _at(self.end_reason, events, headers)
        count = _at(self.critical_evictions, events, headers)
        told = reason_of(str(reason).lower() if isinstance(reason, bool) else reason)
        if told is not None:
            record.thinking_end_reason = told
        if isinstance(count, str) and len(count) <= 20 and count.strip().isdecimal():
            count = int(count)  # as headers are
        if (count := _count(count)) is not None:
            record.critical_evictions = count
        for name, place in (("queue_wait_ns", self.queue_wait), ("prefill_ns", self.prefill)):
            took_ns = self._time_ns(place, _at(place, events, headers))
            if took_ns is not None:
                setattr(record, name, took_ns)

    def _time_ns(self, place: str, value: Any) -> int | None:
        if isinstance(value, str):
            try:
                value = float(value)  # as headers are
            except ValueError:
                return None
        if not isinstance(value, int | float) or isinstance(value, bool):
            return None
        try:
            took_ns = value * _NS["ms" if _entry_of(place) else self.time_unit]
        except OverflowError:
            return None
        return round(took_ns) if math.isfinite(took_ns) and 0 <= took_ns < _BEYOND else None


def _holding(events: Iterable[SSEEvent], names: Sequence[str], held: list[SSEEvent]) -> Iterator[SSEEvent]:
    for event in events:
        if any(name in event.data for name in names):
            held.append(event)
        yield event


def _name_in(place: str) -> str:
    """The last name in a path: an event without it is not looked into."""
    path = place.removeprefix(FIELD).split(".")
    return next((part for part in reversed(path) if not part.isdecimal()), "")


def _at(place: str, events: Sequence[SSEEvent], headers: Mapping[str, str]) -> Any:
    """The value at a place; that of the last event which has one. None if there is none."""
    if place.startswith(HEADER):
        name, entry = place.removeprefix(HEADER).partition(":")[0].lower(), _entry_of(place)
        said = header(headers, name)
        return _duration(said, entry) if entry and said is not None else said
    if not place.startswith(FIELD):
        return None
    path, name = place.removeprefix(FIELD).split("."), _name_in(place)
    for event in reversed(events):
        if name in event.data:  # most events do not have it, and are not read
            with suppress(ValueError, RecursionError):
                value = follow(json.loads(event.data), path)
                if value is not None:
                    return value
    return None


def _entry_of(place: str) -> str:
    return place.removeprefix(HEADER).partition(":")[2] if place.startswith(HEADER) else ""


def _duration(timings: str, entry: str) -> str | None:
    """The ``dur`` of an entry of Server-Timing, as in ``cache;desc="hit", queue;dur=5.2``; None if there is
    none."""
    for one in timings.split(","):
        name, *parameters = (part.strip() for part in one.split(";"))
        if name == entry:
            found = (each.partition("=")[2] for each in parameters if each.lower().startswith("dur="))
            return next((value.strip('" ') for value in found), None)
    return None


def follow(value: Any, path: Sequence[str]) -> Any:
    """The value at a path through JSON, where numbers count list entries; ``None`` if there is none."""
    for part in path:
        if isinstance(value, dict):
            value = value.get(part)
        elif isinstance(value, list) and part.isdecimal() and len(part) < 6 and int(part) < len(value):
            value = value[int(part)]
        else:
            return None
    return value


_MODEL_KEY = b'"model":'
_MODEL_WITHIN = 4096
"""Bytes at either end of a reply within which it is looked for. Streams have it in their first event; a
document may have it behind its vectors."""
_LONGEST_NAME = 256
"""Bytes of the longest name that is kept."""


def named_model(pieces: Sequence[bytes]) -> str | None:
    """The value of the first key ``model`` near the beginning of a reply, otherwise of the last one near its
    end; ``None`` where the reply names no model. ``pieces``: its body, in the order in which it came.

    A key within a JSON string has its quotes escaped, so it is not taken for one.
    """
    begin = b"".join(_enough(pieces))[:_MODEL_WITHIN]
    if (at := begin.find(_MODEL_KEY)) >= 0:
        return _name_at(begin, at)
    end = b"".join([*_enough(reversed(pieces))][::-1])[-_MODEL_WITHIN:]
    return _name_at(end, at) if (at := end.rfind(_MODEL_KEY)) >= 0 else None


def _enough(pieces: Iterable[bytes]) -> Iterator[bytes]:
    size = 0
    for piece in pieces:
        yield piece
        size += len(piece)
        if size >= _MODEL_WITHIN:
            return


def _name_at(body: bytes, at: int) -> str | None:
    begin = at + len(_MODEL_KEY)
    begin += body.startswith(b" ", begin)
    end = body.find(b'"', begin + 1, begin + _LONGEST_NAME)
    if end < 0:
        return None
    try:
        name = json.loads(body[begin : end + 1])
    except ValueError:  # another kind of value, or a quote in the name
        return None
    return name if isinstance(name, str) and name else None
