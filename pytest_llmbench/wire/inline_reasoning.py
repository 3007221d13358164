"""Inline reasoning: reasoning between tags inside the visible text, separated from the answer after the
reply.

The tags themselves are neither reasoning nor visible text; their tokens are output tokens. The text of a
reply is looked at as a whole and cut where the tags are, so it makes no difference over how many chunks a tag
is spread. The form is declared (SUT file, ``[reasoning]``). A reply that has reasoning in a field of its own
is left as it is: there the server has taken the tags out.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from pytest_llmbench.wire.chunk import Chunk

Form = Literal["auto", "think", "kimi", "gpt-oss", "none"]
TAGS = {"think": ("<think>", "</think>"), "kimi": ("◁think▷", "◁/think▷")}
_HARMONY_STARTS = ("<|channel|>", "<|start|>assistant")
_HARMONY_HEADER = re.compile(
    r"(?:<\|start\|>[^<]*+)?(?:<\|channel\|>\s*+(?P<channel>\w*+)[^<]*+(?:<\|constrain\|>[^<]*+)?)?<\|message\|>"
)
_HARMONY_END = re.compile(r"<\|(?:(?P<end>end|return|call)|start|channel)\|>")
_LONGEST_HEADER = 200
"""Most characters of a header that the end of the reply cut off."""


@dataclass(frozen=True, slots=True)
class InlineReasoning:
    """How a model marks its reasoning inside visible text, as declared.

    ``auto``: an opening tag of any form at the very start of a reply begins its reasoning; nothing else does.
    ``think``, ``kimi``, ``gpt-oss``: that form, and where its opening tag is missing, what stands before a
    closing tag is reasoning too. ``none``: text is text.
    """

    form: Form = "auto"
    starts_thinking: bool = False
    """Whether every reply begins with reasoning, because the chat template has given the opening tag. A reply
    without a closing tag is then all reasoning. Needs one of the named forms."""

    @property
    def declared(self) -> bool:
        """Whether a reply may contain reasoning that its beginning does not show."""
        return self.form in ("think", "kimi", "gpt-oss")


class Split(NamedTuple):
    """The chunks of a reply, with inline reasoning moved into the reasoning field."""

    chunks: Sequence[Chunk]
    ends_ns: Sequence[int]
    """The instants of the chunks that completed a closing tag, in order."""


class _Span(NamedTuple):
    end: int
    """End of the span in the text of the reply; it begins where the span before it ends."""
    kind: Literal["visible", "reasoning", "tag"]


class _Marked(NamedTuple):
    spans: Sequence[_Span]
    closed_at: Sequence[int]
    """Positions after the closing tags."""


def may_open(text: str | bytes) -> bool:
    """Whether visible text may begin with an opening tag; asked of every reply that is not read as a
    whole."""
    first = text.lstrip()[:1]
    return first in ("<", "◁") if isinstance(first, str) else first in (b"<", b"\xe2")


def split_inline(chunks: Sequence[Chunk], declared: InlineReasoning) -> Split:
    """Separate the inline reasoning of a reply; without any, the chunks are unchanged. Each choice is a text
    of its own."""
    if declared.form == "none":
        return Split(chunks, ())
    texts: dict[int | None, list[int]] = {}
    for place, chunk in enumerate(chunks):
        if chunk.reasoning:
            return Split(chunks, ())
        if chunk.text:
            texts.setdefault(chunk.choice, []).append(place)
    found: list[Chunk] | None = None
    ends: list[tuple[int, int]] = []
    for places in texts.values():
        marked = _marked("".join([chunks[place].text for place in places]), declared)
        if marked is not None:
            found = list(chunks) if found is None else found
            ends += _rewrite(found, places, marked)
    return Split(chunks, ()) if found is None else Split(found, [stamp for _, stamp in sorted(ends)])


def _marked(text: str, declared: InlineReasoning) -> _Marked | None:
    begin = len(text) - len(text.lstrip())
    named = declared.form
    if named in ("auto", "gpt-oss") and text.startswith(_HARMONY_STARTS, begin):
        return _harmony(text, begin, opened=False)
    if named == "gpt-oss" and (declared.starts_thinking or _HARMONY_STARTS[0] in text):
        return _harmony(text, 0, opened=True)
    for form, (opening, closing) in TAGS.items():
        if named not in ("auto", form):
            continue
        if text.startswith(opening, begin):
            return _between(text, begin, begin + len(opening), closing)
        if named == form and (declared.starts_thinking or closing in text):
            return _between(text, 0, 0, closing)
    return None


def _between(text: str, begin: int, opened_at: int, closing: str) -> _Marked:
    """One block of reasoning at the start. Everything after its closing tag is visible, whatever it contains:
    an answer may mention tags."""
    spans = [_Span(begin, "visible"), _Span(opened_at, "tag")]
    closing_at = text.find(closing, opened_at)
    if closing_at < 0:
        return _Marked([*spans, _Span(len(text), "reasoning")], ())
    closed_at = closing_at + len(closing)
    spans += [_Span(closing_at, "reasoning"), _Span(closed_at, "tag"), _Span(len(text), "visible")]
    return _Marked(spans, (closed_at,))


def _harmony(text: str, begin: int, *, opened: bool) -> _Marked:
    """The reasoning in messages with a channel each: ``analysis`` is reasoning, all others are visible. The
    markers are tokens that no text contains, so there may be several blocks of each."""
    spans, closed_at = [_Span(begin, "visible")], []
    at, channel = begin, "analysis"
    if not opened:
        at, channel = _header(text, begin, spans)
    while at < len(text):
        kind: Literal["visible", "reasoning"] = "reasoning" if channel == "analysis" else "visible"
        marker = _HARMONY_END.search(text, at)
        body_end = len(text) if marker is None else marker.start()
        spans.append(_Span(body_end, kind))
        if marker is None:
            break
        at = marker.end() if marker["end"] else marker.start()
        spans.append(_Span(at, "tag"))
        if kind == "reasoning":
            closed_at.append(marker.end())
        at, channel = _header(text, at, spans)
    return _Marked(spans, closed_at)


def _header(text: str, at: int, spans: list[_Span]) -> tuple[int, str]:
    """The position after the header of the message at ``at``, and the message's channel; the header's span is
    added to ``spans``."""
    header = _HARMONY_HEADER.match(text, at)
    if header is not None:
        spans.append(_Span(header.end(), "tag"))
        return header.end(), header["channel"] or "final"
    rest = text[at:]
    cut_off = "<|message|>" not in rest and len(rest) <= _LONGEST_HEADER
    spans.append(_Span(len(text), "tag" if cut_off and rest.startswith("<|") else "visible"))
    return len(text), "final"


def _rewrite(chunks: list[Chunk], places: Sequence[int], marked: _Marked) -> Iterator[tuple[int, int]]:
    """Move the parts of the text to the right fields. Yields index and instant of chunks that ended a
    block."""
    spans, closings = iter(marked.spans), deque(marked.closed_at)
    start, span = 0, next(spans)
    for place in places:
        chunk = chunks[place]
        end = start + len(chunk.text)
        pieces: dict[str, list[str]] = {"visible": [], "reasoning": [], "tag": []}
        at = start
        while at < end:
            while span.end <= at:
                span = next(spans)
            upto = min(end, span.end)
            pieces[span.kind].append(chunk.text[at - start : upto - start])
            at = upto
        visible, reasoning = "".join(pieces["visible"]), "".join(pieces["reasoning"])
        if visible != chunk.text:
            # A chunk of tags alone has tokens and no text: attribution asks whether the total has room.
            blank = chunk.blank or not (visible or reasoning)
            chunks[place] = replace(chunk, text=visible, reasoning=reasoning, blank=blank)
        while closings and closings[0] <= end:
            closings.popleft()
            yield place, chunk.stamp_ns
        start = end
