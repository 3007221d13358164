"""One reply as a whole: its instants, its tokens, chunk by chunk, and how it ended.

First token (AMB-29): T_first is the first chunk with text of which a reader sees something, neither white
space alone nor characters of no width; of an API that sends token ids and no text, the first with a token
(B.1). Reasoning, in a field of its own or between tags, is not content for TTFT, but it is output: it counts
in tokens and content chunks. A reply of reasoning alone has no T_first and ends as ``empty``.

End of thinking: the last chunk of reasoning before T_first; where tags mark it, the chunk that completed the
closing tag before T_first, if that came later. Where T_first has the same instant (one chunk carries both, or
one read brought both), nothing tells when in between the thoughts ended: then it is the output chunk before
T_first, which is no later than the end. Reasoning after T_first (between tool calls) ends no later phase.

Success (AMB-46): a complete stream with at least one content token and a finish reason, in any word that does
not tell of a failure: servers have many for ``stop`` and ``length``. With ``tool_calls``, ``tool_use`` and
``function_call`` the arguments are the answer, and the model ended it by itself. The model's own refusal text
is an answer too; ``refused`` is for a safety system that took the model's place.

Attribution of tokens to chunks (section 4.6, AMB-13). ``exact``: the server says so, by cumulative usage,
token ids or cumulative timings on every chunk; or its total equals the number of chunks. ``apportioned``:
only the total is known and it is spread over the chunks by their text. ``none``: no total, or nothing to
spread it over.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from itertools import pairwise
from operator import attrgetter
from typing import Literal, NamedTuple

from pytest_llmbench.model.record import (
    COUNTED_HERE,
    KNOWN_FINISH,
    LENGTH_FINISH,
    Outcome,
    RequestRecord,
    TokenSource,
)
from pytest_llmbench.model.reply_checks import StructuredOutput
from pytest_llmbench.wire.chunk import Chunk, Usage, calls_of, is_visible
from pytest_llmbench.wire.inline_reasoning import InlineReasoning, split_inline
from pytest_llmbench.wire.server_figures import server_figures
from pytest_llmbench.wire.usage import parts_above_whole, refutation, usage_of

Ended = Literal["done", "eof", "cut", "timeout", "cancelled", "left"]
"""How the body ended: the reader stopped at the end marker; the HTTP body was complete; the connection was
lost before that; a deadline ran out; we stopped it; its user left, as planned."""

STREAM_END = "end of stream"
"""Finish reason of a reply whose dialect has none: its stream came to its end."""
POLICY_FINISH = frozenset(
    {
        "content_filter",
        "content_filtered",
        "guardrail_intervened",
        "sensitive",
        "refusal",
        "safety",
        "recitation",
        "blocklist",
        "prohibited_content",
        "spii",
        "error_toxic",
    }
)
_FAILED_FINISH = re.compile(
    r"error|abort|cancel|fail|time_?out|interrupt|insufficient|malformed|disconnect|overload|unexpected"
    r"|exception|exhausted|preempt|killed|evict|out.of.memory|\boom\b|crash|^(un)?load$|^incomplete$|^other$"
)
"""Finish reasons of a reply that broke off."""

BROKEN_OFF: Mapping[Ended, tuple[Outcome, str]] = {
    "cut": (Outcome.DISCONNECTED, "the connection was lost before the reply was complete"),
    "timeout": (Outcome.TIMEOUT, "a deadline ran out before the reply was complete"),
    "cancelled": (Outcome.CANCELLED, "stopped by the load generator before the reply was complete"),
    "left": (Outcome.CUT_BY_USER, ""),
}


@dataclass(slots=True)
class StreamSummary:
    """What a reply's stream contained; names and units are those of a ``RequestRecord``."""

    first_event_ns: int | None = None
    first_nonempty_ns: int | None = None
    first_reasoning_ns: int | None = None
    """First chunk with reasoning text, which may include white space; None if there is only white space."""
    first_content_ns: int | None = None
    last_content_ns: int | None = None
    chunk_ns: list[int] = field(default_factory=list)
    chunk_tokens: list[int] = field(default_factory=list)
    attribution: Attribution = "none"
    input_tokens: int | None = None
    output_tokens: int | None = None
    token_source: TokenSource = TokenSource.NONE
    cached_tokens: int | None = None
    reasoning_tokens: int | None = None
    reasoning_token_source: TokenSource = TokenSource.NONE
    finish_reason: str | None = None
    outcome: Outcome = Outcome.EMPTY
    error: str | None = None
    coalesced_chunks: int = 0
    unshown_tokens: int = 0
    server_timings: dict[str, float] = field(default_factory=dict)
    queue_wait_ns: int | None = None
    prefill_ns: int | None = None
    generation_ns: int | None = None
    model_load_ns: int | None = None
    preemptions: int | None = None
    preempted_tokens: int | None = None
    draft_tokens: int | None = None
    accepted_draft_tokens: int | None = None
    server_token_ns: Sequence[int] = ()
    thinking_end_ns: int | None = None
    last_reasoning_ns: int | None = None
    thinking_end_reason: str | None = None
    critical_evictions: int | None = None
    answered_by: str | None = None
    """The model that the reply names."""
    contradiction: str | None = None
    text: str = ""
    """All visible output as one text."""
    reasoning: str = ""

    def fill(self, record: RequestRecord) -> None:
        """Copy everything that a record keeps of a stream into ``record``."""
        for name, value in zip(_RECORDED, _values(self), strict=True):
            setattr(record, name, value)


_RECORDED = tuple(
    {each.name for each in fields(StreamSummary)} & {each.name for each in fields(RequestRecord)}
)
_values = attrgetter(*_RECORDED)


_AUTO = InlineReasoning()
_BY_SERVER = (TokenSource.SERVER_USAGE, TokenSource.CHUNK_USAGE)
_AT_LIMIT = LENGTH_FINISH - {"model_context_window_exceeded"}
_NEAR_LIMIT = 0.75
"""The smallest plausible count by another tokenizer of a reply that ended at its limit, as a share of that:
vocabularies of large models differ by less on the same text. Servers with a lower limit of their own say
``length`` too, and their replies are not to be counted as longer than they are."""


def read_stream(
    chunks: Sequence[Chunk],
    *,
    ended: Ended = "eof",
    count_text: CountText | None = None,
    counted_by: TokenSource = TokenSource.REFERENCE_TOKENIZER,
    limit: int | None = None,
    inline: InlineReasoning = _AUTO,
) -> StreamSummary:
    """The summary of a reply from its chunks, in order of arrival. ``inline``: the tags of its reasoning.
    ``limit``: the output tokens that were asked for at most.

    ``count_text`` counts tokens by a declared tokenizer, of the kind ``counted_by``. It is only called where
    the server gave no total, or a total but no counts per chunk; leave it out where tokenising would cost
    measuring time.
    """
    chunks, ends_ns = split_inline(chunks, inline)
    summary = StreamSummary(
        text="".join([chunk.text for chunk in chunks]),
        reasoning="".join([chunk.reasoning for chunk in chunks]),
    )
    usage = usage_of(chunks)
    summary.finish_reason = _finish(chunks)
    if not _set_server_totals(summary, chunks, usage) and count_text is not None:
        _count_here(summary, count_text, counted_by, limit)
    total = summary.output_tokens
    if total is not None and summary.token_source in COUNTED_HERE:
        content = spread(chunks, total, count_text)  # its count proves nothing about single chunks
    else:
        content = attribute(chunks, total, count_text)
    if summary.output_tokens is None and content.chunks:
        summary.output_tokens = _at_most(len(content.chunks), limit)
        summary.token_source = TokenSource.CHUNK_COUNT
    _set_instants(summary, chunks, content)
    if summary.first_reasoning_ns is not None:
        _set_end_of_thinking(summary, chunks, ends_ns)
    _set_reasoning_tokens(summary, usage, content)
    unshown = unshown_tokens(summary)
    summary.unshown_tokens = 0 if unshown and any(chunk.ids_alone for chunk in chunks) else unshown
    figures = server_figures(chunks, summary.output_tokens)
    if summary.cached_tokens is not None:  # usage tells it first; older llama.cpp only has it in its timings
        figures.pop("cached_tokens", None)
    for name, value in figures.items():
        setattr(summary, name, value)
    _drop_impossible_parts(summary, usage[0])
    summary.outcome, problem = _outcome(chunks, summary, ended)
    summary.error = problem or None
    return summary


def _finish(chunks: Sequence[Chunk]) -> str | None:
    """The last finish reason. With several choices the worst: none, if one of them has none."""
    last = next((chunk.finish_reason for chunk in reversed(chunks) if chunk.finish_reason), None)
    choices = {chunk.choice for chunk in chunks} - {None}
    if last is None or len(choices) < 2:
        return last
    reasons = {chunk.choice: chunk.finish_reason for chunk in chunks if chunk.finish_reason}
    if not choices <= reasons.keys():
        return None
    return next((each for each in reasons.values() if each in POLICY_FINISH or is_failure(each)), last)


def is_failure(finish: str) -> bool:
    """Whether a finish reason tells of a reply that broke off. Any word that does not is an end."""
    return finish not in KNOWN_FINISH and _FAILED_FINISH.search(finish) is not None


def _set_server_totals(summary: StreamSummary, chunks: Sequence[Chunk], usage: tuple[Usage, bool]) -> bool:
    """Set the server's own counts of input and output; False if it has no count of the output."""
    last, final = usage
    total = last.output_tokens if final else None
    if total is not None and (why := refutation(total, chunks)):
        summary.contradiction, total = why, None
    summary.input_tokens = last.input_tokens
    summary.cached_tokens = last.cached_tokens
    counted = counted_by_server(chunks) if total is None else None
    if total is not None:
        summary.output_tokens, summary.token_source = total, TokenSource.SERVER_USAGE
    elif counted is not None:
        summary.output_tokens, summary.token_source = sum(counted.tokens), TokenSource.CHUNK_USAGE
    return summary.output_tokens is not None


def _count_here(
    summary: StreamSummary, count_text: CountText, counted_by: TokenSource, limit: int | None
) -> None:
    """Count the output by a tokenizer; nothing where there is none. Its parts were generated apart, so they
    are counted apart.

    It need not be the model's tokenizer, so a reply that ended at its limit has as many tokens as were asked
    for. One with far fewer by our count met another limit.
    """
    thoughts, words = (count_text(part) if part else 0 for part in (summary.reasoning, summary.text))
    counted = thoughts + words
    if not counted:
        return
    total = _at_most(counted, limit)
    if limit is not None and summary.finish_reason in _AT_LIMIT and counted >= _NEAR_LIMIT * limit:
        total = limit
    summary.output_tokens, summary.token_source = total, counted_by
    if thoughts and is_visible(summary.reasoning):
        summary.reasoning_tokens = round(thoughts * total / counted)
        summary.reasoning_token_source = counted_by


def _at_most(count: int, limit: int | None) -> int:
    return count if limit is None else min(count, limit)


def _drop_impossible_parts(summary: StreamSummary, usage: Usage) -> None:
    """Drop the counts of parts that are larger than their whole, and say what cannot be so."""
    total = usage.total_tokens if summary.token_source is TokenSource.SERVER_USAGE else None
    wholes = summary.input_tokens, summary.output_tokens
    told = parts_above_whole(Usage(*wholes, summary.cached_tokens, summary.reasoning_tokens, total))
    if "cached_tokens" in told:
        summary.cached_tokens = None
    if "reasoning_tokens" in told:
        summary.reasoning_tokens, summary.reasoning_token_source = None, TokenSource.NONE
    if told:
        summary.contradiction = "; ".join(filter(None, (summary.contradiction, *told.values())))


def _set_instants(summary: StreamSummary, chunks: Sequence[Chunk], content: ContentChunks) -> None:
    if chunks:
        summary.first_event_ns = chunks[0].stamp_ns
    visible = (
        chunk.stamp_ns for chunk in chunks if (chunk.text and is_visible(chunk.text)) or chunk.ids_alone
    )
    summary.first_content_ns = next(visible, None)
    if summary.reasoning and is_visible(summary.reasoning):  # an empty block of thoughts is none
        summary.first_reasoning_ns = next(chunk.stamp_ns for chunk in chunks if chunk.reasoning)
    summary.chunk_ns = [chunk.stamp_ns for chunk in content.chunks]
    summary.chunk_tokens = content.tokens
    summary.attribution = content.attribution
    if content.chunks:
        summary.first_nonempty_ns = summary.chunk_ns[0]
        summary.last_content_ns = summary.chunk_ns[-1]
    reads = [chunk.read_index for chunk in content.chunks]
    summary.coalesced_chunks = len(reads) - len(set(reads))


def _set_end_of_thinking(summary: StreamSummary, chunks: Sequence[Chunk], ends_ns: Sequence[int]) -> None:
    reasoned = [chunk.stamp_ns for chunk in chunks if chunk.reasoning]
    summary.last_reasoning_ns = reasoned[-1]
    visible_ns = summary.first_content_ns
    if visible_ns is None or len({chunk.choice for chunk in chunks} - {None}) > 1:
        return  # of several choices the one may show its answer while the other thinks
    before = [at_ns for at_ns in (*reasoned, *ends_ns) if at_ns <= visible_ns]
    if not before:
        return  # it spoke first: thoughts that come later end no waiting
    if max(before) < visible_ns:
        summary.thinking_end_ns = max(before)
        return
    earlier = bisect_left(summary.chunk_ns, visible_ns)
    summary.thinking_end_ns = summary.chunk_ns[earlier - 1] if earlier else None


def _set_reasoning_tokens(summary: StreamSummary, usage: tuple[Usage, bool], content: ContentChunks) -> None:
    if usage[0].reasoning_tokens is not None and summary.token_source in _BY_SERVER:
        summary.reasoning_tokens = usage[0].reasoning_tokens
        summary.reasoning_token_source = TokenSource.SERVER_USAGE
    elif summary.first_reasoning_ns is None:
        return
    elif content.attribution == "exact":
        pairs = zip(content.chunks, content.tokens, strict=True)
        summary.reasoning_tokens = sum(count for chunk, count in pairs if chunk.reasoning and not chunk.text)
        told = any(one.tokens is not None or one.tokens_cumulative is not None for one in content.chunks)
        summary.reasoning_token_source = TokenSource.CHUNK_USAGE if told else TokenSource.CHUNK_COUNT


def unshown_tokens(summary: StreamSummary) -> int:
    """Output tokens in excess of the bytes of text that came. Hidden reasoning that the server counts
    separately is reported, so it is not among them."""
    total = summary.output_tokens or 0
    if total <= len(summary.text) or summary.token_source in COUNTED_HERE:
        return 0
    hidden = 0 if summary.reasoning else summary.reasoning_tokens or 0
    shown = sum(len(part.encode(errors="replace")) for part in (summary.text, summary.reasoning))
    return max(0, total - hidden - shown)


def _outcome(chunks: Sequence[Chunk], summary: StreamSummary, ended: Ended) -> tuple[Outcome, str]:
    failed = next((chunk for chunk in chunks if chunk.error is not None), None)
    if failed is not None:
        return outcome_of_error(failed, summary), failed.error or ""
    unread = next((chunk for chunk in chunks if chunk.problem), None)
    if unread is not None:
        return Outcome.UNDECODABLE, f"the stream holds {unread.problem}"
    done = any(chunk.done for chunk in chunks)
    if ended in BROKEN_OFF and not done:
        return BROKEN_OFF[ended]
    if not chunks:
        return Outcome.EMPTY, "the reply held no event at all"
    finish = summary.finish_reason
    if finish is None and not done:
        return Outcome.TRUNCATED, "the stream ended without a finish reason or an end marker"
    if finish is None and summary.first_content_ns is not None and not counted_at_its_end(chunks):
        return Outcome.TRUNCATED, "the stream ended with its end marker but gave no finish reason"
    if finish in POLICY_FINISH:
        return Outcome.REFUSED, f"finish reason {finish}: a safety system ended the reply"
    if finish is not None and is_failure(finish):
        return Outcome.IN_BAND_ERROR, f"finish reason {finish} is not a normal end (stop or length)"
    if summary.first_content_ns is None:
        return Outcome.EMPTY, _no_content(summary)
    return Outcome.OK, ""


def outcome_of_error(failed: Chunk, summary: StreamSummary) -> Outcome:
    """The outcome of an error inside a stream. One in place of all output counts as the status of a reply
    would."""
    if failed.refused:
        return Outcome.REFUSED
    begun = summary.first_nonempty_ns is not None or summary.output_tokens
    return Outcome.RATE_LIMITED if failed.turned_away and not begun else Outcome.IN_BAND_ERROR


def counted_at_its_end(chunks: Sequence[Chunk]) -> bool:
    """Whether an event with the count of output tokens, then an end marker, stand behind the last text, and
    no choice has a finish reason. A server that gives none says so that the reply is whole: a gateway that
    lost its server in mid-reply has no count."""
    last = max((place for place, chunk in enumerate(chunks) if chunk.text or chunk.reasoning), default=-1)
    behind = chunks[last + 1 :]
    counted = any(
        chunk.usage is not None and chunk.usage.output_tokens and not chunk.done for chunk in behind
    )
    marked = any(chunk.done and chunk.usage is None for chunk in behind)
    return last >= 0 and counted and marked and not any(chunk.finish_reason for chunk in chunks)


def _no_content(summary: StreamSummary) -> str:
    if summary.reasoning:
        return "the reply held reasoning but no visible content"
    if summary.output_tokens is not None and summary.output_tokens > 0:
        return f"the reply held no visible text (output tokens: {summary.output_tokens})"
    return "the reply held no content"


def checked(asked: StructuredOutput, summary: StreamSummary, chunks: Sequence[Chunk]) -> str:
    """The result of checking the structure of an ``ok`` reply, as :meth:`StructuredOutput.check` names it.

    Of several choices the first is checked. The meaning of an answer is nobody's business here.
    """
    choice = next((chunk.choice for chunk in chunks if chunk.choice is not None), None)
    own = [chunk for chunk in chunks if chunk.choice in (choice, None)]
    alone = len({chunk.choice for chunk in chunks} - {None}) < 2
    text = summary.text if alone else "".join([chunk.text for chunk in own])
    return asked.check(text, calls_of(own), cut=summary.finish_reason in LENGTH_FINISH)


class Answer(NamedTuple):
    """The part of a reply that users, and later turns of its session, read: visible text, without reasoning
    and tool calls; with several choices that of the first."""

    text: str
    share: float
    """Characters of ``text`` / characters of all output that the server's count covers, without reasoning
    that it counts separately."""


def answer_of(summary: StreamSummary, chunks: Sequence[Chunk], inline: InlineReasoning) -> Answer:
    """The answer in a reply. ``chunks``: those that the summary was made of; empty if it was text of one
    choice. ``inline``: the tags of its reasoning."""
    text = summary.text
    choices = {chunk.choice for chunk in chunks if chunk.choice is not None}
    if any(chunk.calls for chunk in chunks) or len(choices) > 1:
        first = (min(choices, default=None), None)
        own = [
            replace(chunk, text=chunk.content) if chunk.called else chunk
            for chunk in chunks
            if chunk.choice in first
        ]
        text = "".join([chunk.text for chunk in split_inline(own, inline).chunks])
    thoughts = len(summary.reasoning) if summary.reasoning_tokens is None else 0
    counted = len(summary.text) + thoughts
    return Answer(text, len(text) / counted if counted else 1.0)


Attribution = Literal["exact", "apportioned", "none"]
CountText = Callable[[str], int]

_CHARACTERS_PER_TOKEN = 4
"""Assumed characters per token, for spreading a known total when no tokenizer is given; English prose in
cl100k_base."""
_ONE_CHARACTER = 2
"""Code points of a character with what joins it: bytes of one come as empty chunks before it."""


@dataclass(slots=True)
class ContentChunks:
    """The chunks that carry output (text, reasoning or tokens), with their token counts."""

    chunks: list[Chunk]
    tokens: list[int] = field(default_factory=list)
    """Token count of each chunk; empty with attribution ``none``."""
    attribution: Attribution = "none"


def counted_by_server(chunks: Sequence[Chunk]) -> ContentChunks | None:
    """The content chunks, if the server counts tokens on each of them; else ``None``.

    Chunks with tokens but no text (special tokens, half a character) are content chunks here.
    """
    textual = [chunk for chunk in chunks if chunk.text or chunk.reasoning]
    if all(chunk.tokens is not None for chunk in textual):
        found = [
            (chunk, chunk.tokens or 0) for chunk in chunks if chunk.text or chunk.reasoning or chunk.tokens
        ]
        if found and _goes_on(found):
            return _exact(found)
    if all(chunk.tokens_cumulative is not None for chunk in textual):
        return _by_cumulative(chunks, textual)
    return None


def _by_cumulative(chunks: Sequence[Chunk], textual: list[Chunk]) -> ContentChunks | None:
    # Events behind that with the finish reason may repeat the total, but carry no output.
    last_output = max(
        (at for at, chunk in enumerate(chunks) if chunk.finish_reason or chunk.text or chunk.reasoning),
        default=len(chunks) - 1,
    )
    counted = [chunk for chunk in chunks[: last_output + 1] if chunk.tokens_cumulative is not None]
    totals = [0, *(chunk.tokens_cumulative or 0 for chunk in counted)]
    steps = [after - before for before, after in pairwise(totals)]
    found = [
        (chunk, step)
        for chunk, step in zip(counted, steps, strict=True)
        if step > 0 or chunk.text or chunk.reasoning
    ]
    # A lone total on the finish event of a reply without text says how many, not when.
    whole = len(found) >= max(len(textual), 1 if textual else 2)
    return _exact(found) if whole and min(steps) >= 0 and _goes_on(found) else None


def _goes_on(found: Sequence[tuple[Chunk, int]]) -> bool:
    """Whether the count goes on while text comes: with half of the chunks with text at least, and with all
    of them where it takes more than an end of sequence behind the last."""
    textual = [place for place, (chunk, _) in enumerate(found) if chunk.text or chunk.reasoning]
    still = sum(not found[place][1] for place in textual)
    behind = sum(tokens for _, tokens in found[textual[-1] + 1 :]) if textual else 0
    return not still or (2 * still <= len(textual) and behind <= 1)


def _exact(found: Sequence[tuple[Chunk, int]]) -> ContentChunks:
    return ContentChunks([chunk for chunk, _ in found], [count for _, count in found], "exact")


def attribute(chunks: Sequence[Chunk], total: int | None, count_text: CountText | None) -> ContentChunks:
    """The content chunks and their tokens, when the server counts ``total`` output tokens in the reply.

    The sum over the chunks is ``total`` in every case but ``none``. Tokens of the total that no chunk shows
    (an end-of-sequence token has no text) belong to the last chunk.
    """
    counted = counted_by_server(chunks)
    if counted is not None:
        missing = 0 if total is None else total - sum(counted.tokens)
        if missing >= 0:
            counted.tokens[-1] += missing
            counted.attribution = "exact" if missing <= 1 else "apportioned"
            return counted
    textual = [chunk for chunk in chunks if chunk.text or chunk.reasoning]
    if total is None or total == 0:
        return ContentChunks(textual)
    if total == len(textual):
        return ContentChunks(textual, [1] * total, "exact")
    # Events with an empty output field are tokens without text in some servers and nothing in others
    # (text held back, a role). The server's total decides.
    with_blanks = [chunk for chunk in chunks if chunk.text or chunk.reasoning or chunk.blank]
    if total == len(with_blanks) and not _held_back(with_blanks, count_text):
        return ContentChunks(with_blanks, [1] * total, "exact")
    return spread(chunks, total, count_text)


def _held_back(chunks: Sequence[Chunk], count_text: CountText | None) -> bool:
    """Whether the empty chunks are text held back, or sent ahead: those with text beside them hold more than
    a token each, by more than half of the empty ones.

    A vocabulary that cuts otherwise has some 25 % more or fewer tokens. One empty chunk behind text is the
    end of a sequence, whatever the text; several are not.
    """
    beside: dict[int, int] = {}
    empty = 0
    textual = [place for place, chunk in enumerate(chunks) if chunk.text or chunk.reasoning]
    for before, after in pairwise([-1, *textual, len(chunks)]):
        run = after - before - 1
        near = [after] if after < len(chunks) else []
        near += [before] if run > 1 and before >= 0 else []
        if run and near:
            size, largest = max((_tokens_of(chunks[at], count_text), at) for at in near)
            beside[largest] = size - 1
            empty += run
    excess = sum(beside.values())
    return excess > 1 and 2 * excess > empty


def _tokens_of(chunk: Chunk, count_text: CountText | None) -> int:
    """Estimated tokens; one for a character, since those before it are its first bytes."""
    text = chunk.reasoning + chunk.text
    if len(text) <= _ONE_CHARACTER:
        return 1
    return estimated_size(len(text.encode(errors="replace"))) if count_text is None else count_text(text)


def spread(chunks: Sequence[Chunk], total: int, count_text: CountText | None) -> ContentChunks:
    """The chunks with text, with ``total`` tokens spread over them by their estimated sizes."""
    textual = [chunk for chunk in chunks if chunk.text or chunk.reasoning]
    if not textual or total == 0:
        return ContentChunks(textual)
    texts = [chunk.reasoning + chunk.text for chunk in textual]
    sizes = [estimated_size(len(text)) if count_text is None else max(1, count_text(text)) for text in texts]
    return ContentChunks(textual, apportion(total, sizes), "apportioned")


def estimated_size(characters: int) -> int:
    """Estimated tokens of a text of this length, at least one."""
    return max(1, -(-characters // _CHARACTERS_PER_TOKEN))


def apportion(total: int, sizes: Sequence[int]) -> list[int]:
    """``total`` tokens spread over chunks of estimated ``sizes`` (each at least 1); sums to ``total``.

    Enough tokens for all estimates: every chunk gets its own, and the rest is spread in proportion. Fewer,
    but one for each: every chunk has one, since it has text, and the rest goes by what exceeds one. Fewer
    than chunks (a gateway cut tokens apart): in proportion. Fractions by largest remainder, later first.
    """
    estimate = sum(sizes)
    if total >= estimate:
        base, weights = list(sizes), list(sizes)
    elif total >= len(sizes):
        base, weights = [1] * len(sizes), [size - 1 for size in sizes]
    else:
        base, weights = [0] * len(sizes), list(sizes)
    rest = total - sum(base)
    return [own + share for own, share in zip(base, largest_remainder(rest, weights), strict=True)]


def largest_remainder(total: int, weights: Sequence[int]) -> list[int]:
    """``total`` divided into integers proportional to ``weights`` (sum above 0); of equal claims the later
    goes first."""
    whole = sum(weights)
    shares = [total * weight // whole for weight in weights]
    order = sorted(range(len(weights)), key=lambda at: (total * weights[at] % whole, at), reverse=True)
    for at in order[: total - sum(shares)]:
        shares[at] += 1
    return shares
