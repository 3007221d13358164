"""The token counts of a reply as its server sends them, and which of them the reply itself contradicts.

A count is taken only where nothing speaks against it. The total settles what the others include:
total = input + output, so reasoning or cached tokens by which it is larger were left out of output or input
(xAI and Gemini count reasoning apart, some gateways what a cache served). Zero output tokens beside text are
no count, nor is a zero for the input; a running count that stands still while text comes is none either. A
part larger than its whole is no figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from pytest_llmbench.wire.chunk import Chunk, Usage
from pytest_llmbench.wire.claims import short_count


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
    if len(apart) > 1 and _choices(chunks) > 1:
        return _one_per_choice(apart), True
    last_output = max((at for at, chunk in enumerate(chunks) if chunk.text or chunk.reasoning), default=-1)
    apart = [chunk.usage for chunk in chunks[last_output + 1 :] if chunk.usage and chunk.choice is None]
    finish = next((at for at, chunk in enumerate(chunks) if chunk.finish_reason is not None), len(chunks))
    final = bool(apart) or any(chunk.usage is not None for chunk in chunks[finish:])
    return _with_input([chunk.usage for chunk in given if chunk.usage is not None]), final


def _choices(chunks: Sequence[Chunk]) -> int:
    return len({chunk.choice for chunk in chunks} - {None})


def _with_input(given: Sequence[Usage]) -> Usage:
    """The last usage, with the input counts of the last that has them: some servers send them once, and a
    zero ever after."""
    last = given[-1]
    counted = next((usage for usage in reversed(given) if usage.input_tokens), Usage())
    cached = counted.cached_tokens
    if cached is None:
        cached = next((it.cached_tokens for it in reversed(given) if it.cached_tokens is not None), None)
    return replace(last, input_tokens=counted.input_tokens, cached_tokens=cached)


def _one_per_choice(finals: Sequence[Usage]) -> Usage:
    """The usage of several choices of one request, each with its own usage object: their outputs add up."""
    outputs = [usage.output_tokens for usage in finals if usage.output_tokens is not None]
    return replace(
        finals[-1],
        input_tokens=finals[-1].input_tokens or None,
        output_tokens=sum(outputs) if outputs else None,
        reasoning_tokens=None,
        total_tokens=None,
    )


def refutation(output_tokens: int, chunks: Sequence[Chunk]) -> str:
    """How the reply contradicts its final count of output tokens, in words; empty where it does not."""
    textual = [chunk for chunk in chunks if chunk.text or chunk.reasoning]
    if not output_tokens:
        return "0 output tokens beside text" if textual else ""
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
