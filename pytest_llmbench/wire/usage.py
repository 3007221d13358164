"""The numbers that a server states about a reply, and which of them the reply itself or its request
contradicts.

A count is taken only where nothing speaks against it. The total settles what the others include: total =
input + output, so reasoning or cached tokens by which it is larger were left out of output or input (xAI and
Gemini count reasoning apart, some gateways what a cache served). Zero output tokens beside text are no count,
nor is a zero for the input; a running count that stands still while text comes is none either. A part larger
than its whole is no figure.

It is taken only as far as its request can give it: output tokens by the limit asked for and the bytes
received, input tokens by the bytes sent, times by the time the request took. What goes beyond is no figure:
no memory is reserved for it, no sum sees it, and the reply counts as one that cannot be read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_llmbench.model.numbers import quantity
from pytest_llmbench.model.record import Outcome, RequestRecord, TokenSource
from pytest_llmbench.wire.chunk import Chunk, Usage


def settled(usage: Usage) -> Usage:
    """The usage with reasoning among the output tokens and cached tokens among those of the input, where its
    total says that they were left out."""
    total, asked, made = usage.total_tokens, usage.input_tokens, usage.output_tokens
    if total is None or asked is None or made is None or total <= asked + made:
        return usage
    more, thoughts, cached = total - asked - made, usage.reasoning_tokens or 0, usage.cached_tokens or 0
    if more == thoughts + cached:
        return replace(usage, output_tokens=made + thoughts, input_tokens=asked + cached)
    if more == thoughts and not (thoughts == cached > asked):
        return replace(usage, output_tokens=made + thoughts)
    return replace(usage, input_tokens=asked + cached) if more == cached else usage


def usage_of(chunks: Sequence[Chunk]) -> tuple[Usage, bool]:
    """The last usage that the server sent, and whether it is final: sent with or after the finish reason, or
    apart from any choice behind all output. A usage object before that is a running count."""
    given = [chunk for chunk in chunks if chunk.usage is not None]
    if not given:
        return Usage(), False
    apart = [chunk.usage for chunk in given if chunk.usage and chunk.choice is None]
    if len(apart) > 1 and _choices(chunks) > 1:  # one for each choice of the request: their outputs add up
        outputs = [usage.output_tokens for usage in apart if usage.output_tokens is not None]
        last = apart[-1]
        made, asked = sum(outputs) if outputs else None, last.input_tokens or None
        return Usage(asked, made, last.cached_tokens), True
    last_output = max((at for at, chunk in enumerate(chunks) if chunk.text or chunk.reasoning), default=-1)
    apart = [chunk.usage for chunk in chunks[last_output + 1 :] if chunk.usage and chunk.choice is None]
    finish = next((at for at, chunk in enumerate(chunks) if chunk.finish_reason is not None), len(chunks))
    final = bool(apart) or any(chunk.usage is not None for chunk in chunks[finish:])
    usages = [chunk.usage for chunk in given if chunk.usage is not None]
    # Input counts are those of the last that has them: some servers send them once, and a zero ever after.
    counted = next((usage for usage in reversed(usages) if usage.input_tokens), Usage())
    cached = counted.cached_tokens
    if cached is None:
        cached = next((it.cached_tokens for it in reversed(usages) if it.cached_tokens is not None), None)
    return replace(usages[-1], input_tokens=counted.input_tokens, cached_tokens=cached), final


def _choices(chunks: Sequence[Chunk]) -> int:
    return len({chunk.choice for chunk in chunks} - {None})


def refutation(output_tokens: int, chunks: Sequence[Chunk]) -> str:
    """How the reply contradicts its final count of output tokens, in words; empty where it does not."""
    textual = [chunk for chunk in chunks if chunk.text or chunk.reasoning]
    if not output_tokens:
        return "0 output tokens although the reply has text" if textual else ""
    running = [chunk.tokens_cumulative for chunk in textual if chunk.tokens_cumulative is not None]
    if not running or _choices(chunks) > 1:
        return ""
    if output_tokens < max(running):
        return f"{short_count(output_tokens)} output tokens in the end, {short_count(max(running))} before"
    if running[0] == running[-1] == output_tokens < len(running):
        return f"{short_count(output_tokens)} output tokens behind each of {len(running)} pieces of text"
    return ""


def parts_above_whole(usage: Usage) -> dict[str, str]:
    """What of a usage cannot be, in words: parts that are larger than what they are parts of, and a total
    beyond input and output."""
    asked, made = usage.input_tokens, usage.output_tokens
    cached, thoughts, total = usage.cached_tokens or 0, usage.reasoning_tokens or 0, usage.total_tokens or 0
    of_input, of_output = short_count(asked), short_count(made)
    told = {}
    if asked is not None and cached > asked:
        told["cached_tokens"] = f"{short_count(cached)} of {of_input} input tokens cached"
    if made is not None and thoughts > made:
        told["reasoning_tokens"] = f"{short_count(thoughts)} of {of_output} output tokens reasoning"
    if asked and made and total > asked + made:
        told["total_tokens"] = f"{short_count(total)} in total, {of_input} of input and {of_output} of output"
    return told


TIMES_THE_LIMIT = 4
"""Most output tokens for each one that was asked for: there may be several choices, and hidden reasoning."""
TEMPLATE_TOKENS = 100_000
"""Most tokens that a server may add before and around the prompt: instructions, tools."""
MOST_PREEMPTIONS = 1_000_000
MOST_DRAFTED = 1000
"""Most tokens that speculative decoding may guess for each token of the reply."""
CLOCKS_NS = 1_000_000_000
"""Nanoseconds by which a time reported by the server may exceed the duration of the request."""

_TIMES = (
    ("queue_wait_ns", "a queue wait"), ("prefill_ns", "a prefill"),
    ("generation_ns", "a generation"), ("model_load_ns", "a loading of the model"),
)  # fmt: skip


def is_modest(record: RequestRecord) -> bool:
    """Whether all counts are within any bounds, as in nearly every reply.

    This is asked of each reply while load is running.
    """
    return (
        (record.output_tokens or 0) <= (record.requested_max_tokens or 0)
        and (record.reasoning_tokens or 0) <= (record.requested_max_tokens or 0)
        and (record.input_tokens or 0) <= TEMPLATE_TOKENS
        and (record.cached_tokens or 0) <= TEMPLATE_TOKENS
        and not record.server_timings
        and not record.critical_evictions
    )


def refuse_impossible(record: RequestRecord, sent_bytes: int, received_bytes: int) -> None:
    """Remove from the record the numbers that a reply of so many bytes to so many bytes cannot have; an
    ``ok`` one then becomes ``undecodable``. A token is at least a byte, on its way to the server and from
    it."""
    outputs = max(TIMES_THE_LIMIT * (record.requested_max_tokens or 0), received_bytes)
    inputs = sent_bytes + TEMPLATE_TOKENS
    asked = f"tokens of a request of {record.requested_input_tokens}"
    lost = MOST_PREEMPTIONS * (inputs + outputs)
    claims = _of_output(record, outputs)
    claims += _beyond(
        record, ("input_tokens", inputs, f"input {asked}"), ("cached_tokens", inputs, f"cached {asked}")
    )
    claims += _of_times(record)
    claims += _beyond(
        record,
        ("preemptions", MOST_PREEMPTIONS, "preemptions"),
        ("critical_evictions", MOST_PREEMPTIONS, "critical evictions"),
        ("preempted_tokens", lost, "tokens lost to preemption"),
    )
    drafted, accepted = record.draft_tokens, record.accepted_draft_tokens
    # A step gives at least a token, so there are no more drafts than tokens.
    if (drafted or 0) > MOST_DRAFTED * outputs or (drafted is not None and (accepted or 0) > drafted):
        record.draft_tokens = record.accepted_draft_tokens = None
        claims.append(f"{short_count(accepted)} accepted of {short_count(drafted)} guessed tokens")
    if not claims:
        return
    text = f"the server claims {', '.join(claims)}"
    if record.outcome is Outcome.OK:
        record.outcome, record.error = Outcome.UNDECODABLE, text
    else:
        record.error = f"{record.error}; {text}" if record.error else text


def _of_output(record: RequestRecord, most: int) -> list[str]:
    found = []
    if (record.output_tokens or 0) > most:
        chunks = len(record.chunk_ns)
        found.append(f"{short_count(record.output_tokens)} output tokens where {chunks} chunks came")
        record.output_tokens, record.token_source = None, TokenSource.NONE
        record.chunk_tokens, record.attribution, record.unshown_tokens = (), "none", 0
    if (record.reasoning_tokens or 0) > most:
        found.append(f"{short_count(record.reasoning_tokens)} tokens of reasoning")
        record.reasoning_tokens, record.reasoning_token_source = None, TokenSource.NONE
    return found


def _beyond(record: RequestRecord, *limits: tuple[str, int, str]) -> list[str]:
    """Remove counts above their limits. Each: the field, the most that can be, what is counted."""
    found = []
    for name, most, words in limits:
        value = getattr(record, name)
        if value is not None and value > most:
            found.append(f"{short_count(value)} {words}")
            setattr(record, name, None)
    return found


def _of_times(record: RequestRecord) -> list[str]:
    begun, ended = record.dispatched_ns, record.finished_ns
    if begun is None or ended is None:
        return []
    found, lasted_ns = [], ended - begun
    for name, word in _TIMES:
        value = getattr(record, name)
        if value is not None and value > lasted_ns + CLOCKS_NS:
            lasted = quantity(lasted_ns / 1e9, "s")
            found.append(f"{word} of {quantity(value / 1e9, 's')} in a request of {lasted}")
            setattr(record, name, None)
    return found


def short_count(value: int | None) -> str:
    """A count as text; of a very long one its magnitude."""
    digits = str(value)
    return digits if len(digits) <= 15 else f"{digits[0]}.{digits[1:3]}e{len(digits) - 1}"
