"""The attribution of tokens to chunks (section 4.6, AMB-13).

``exact``: the server says so, by cumulative usage, token ids or cumulative timings on every chunk; or its
total equals the number of chunks. ``apportioned``: only the total is known and it is spread over the chunks
by their text. ``none``: no total, or nothing to spread it over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Literal

from pytest_llmbench.wire.chunk import Chunk

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
    counted = [chunk for chunk in _up_to_finish(chunks) if chunk.tokens_cumulative is not None]
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


def _up_to_finish(chunks: Sequence[Chunk]) -> Sequence[Chunk]:
    """The chunks up to that with the finish reason: later events may repeat the total, but carry no
    output."""
    last_output = max(
        (at for at, chunk in enumerate(chunks) if chunk.finish_reason or chunk.text or chunk.reasoning),
        default=len(chunks) - 1,
    )
    return chunks[: last_output + 1]


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
    sizes = [_size(chunk.reasoning + chunk.text, count_text) for chunk in textual]
    return ContentChunks(textual, apportion(total, sizes), "apportioned")


def _size(text: str, count_text: CountText | None) -> int:
    return estimated_size(len(text)) if count_text is None else max(1, count_text(text))


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
