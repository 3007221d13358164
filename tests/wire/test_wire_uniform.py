"""The usual reply read as a whole: always what reading it event by event gives, or nothing."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from wire_corpus import INSTANTS, REPLIES
from wire_corpus_counts import COUNTS_REPLIES
from wire_events import DONE, NO_CHOICES, ODD_TEXTS, ROLE, chat, sse, text, usage

from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.wire.chunk import is_visible, may_repeat
from pytest_llmbench.wire.inline_reasoning import may_open
from pytest_llmbench.wire.reply import StreamSummary, read_stream
from pytest_llmbench.wire.server_figures import named_model
from pytest_llmbench.wire.stream import chunks_of
from pytest_llmbench.wire.uniform import MOST_BYTES, ReplyMemory, read_uniform

CHAT = "openai-chat"


def exactly(pieces: Sequence[bytes], api: str = CHAT) -> StreamSummary:
    reads = ((piece, 1000 + number) for number, piece in enumerate(pieces))
    summary = read_stream(list(chunks_of(reads, dialect(api))), ended="eof")
    summary.answered_by = named_model(pieces)
    return summary


def at_once(
    pieces: Sequence[bytes], api: str = CHAT, memory: ReplyMemory | None = None
) -> StreamSummary | None:
    return read_uniform(pieces, [1000 + number for number in range(len(pieces))], dialect(api), memory)


class CutOnce:
    """What the exact reader makes of a reply in two reads: of one in a read per byte, with the instant of the
    read that each of these bytes is in. That this is so ``test_wire_corpus`` holds, at every byte."""

    def __init__(self, body: bytes, api: str = CHAT) -> None:
        self.bytewise = exactly([body[at : at + 1] for at in range(len(body))], api)

    def at(self, place: int) -> StreamSummary:
        of = self.bytewise
        instants = {name: getattr(of, name) for name in INSTANTS}
        first = 1000 + place
        chunk_ns = [1000 + (at >= first) for at in of.chunk_ns]
        return replace(
            of,
            chunk_ns=chunk_ns,
            coalesced_chunks=len(chunk_ns) - len(set(chunk_ns)),
            **{name: None if at is None else 1000 + (at >= first) for name, at in instants.items()},
        )


def usual(words: Sequence[str], tokens: int | None = None, *, ascii_only: bool = True) -> bytes:
    total = len(words) if tokens is None else tokens
    events = [ROLE, *(chat({"content": word}) for word in words), chat({}, "length")]
    events.append({**NO_CHOICES, **usage(9, total)})
    lines = [*(json.dumps(each, ensure_ascii=ascii_only) for each in events), DONE]
    return "".join(f"data: {line}\n\n" for line in lines).encode()


USUAL = {
    "plain": usual(["one", " two", " three", "."]),
    "one": usual(["one"]),
    "escaped": usual(["Grüße", " 🦀", "\n\n", ' "x"', "\\", "\t", "\u2028", "end"]),
    "not escaped": usual(["Grüße", " 🦀", "\u2028", "\x7f", "end"], ascii_only=False),
    "white space first": usual(["\n", " ", "word"]),
    "nothing else": usual(["\n", " "]),
    "nothing visible first": usual(["\u200b", "\ufe0f", "word"]),
    "nothing visible first, not escaped": usual(["\u200b", "\u2060", "word"], ascii_only=False),
    "several tokens a chunk": usual(["one", " two three four five", " six"], 7),
    "more tokens than bytes": usual(["one", " zw\u00f6lf"], 50),
    "fewer tokens than chunks": usual(["on", "e", " tw", "o"], 2),
    "no role": sse(chat({"content": "a"}), chat({"content": "b"}), chat({}, "stop"), usage(3, 2), DONE),
    "completions": sse(text(" a"), text(" b"), text("", "length"), {"choices": [], **usage(1, 2)}, DONE),
    "figures": sse(
        chat({"content": "a"}),
        chat({"content": "b"}),
        chat({}, "stop"),
        {**NO_CHOICES, **usage(3, 2), "timings": {"queue_ms": 2, "prompt_ms": 30.5, "preemptions": 1}},
        DONE,
    ),
    "no end marker": sse(chat({"content": "a"}), chat({}, "stop"), {**NO_CHOICES, **usage(3, 1)}),
    "filtered": sse(chat({"content": "a"}), chat({}, "content_filter"), {**NO_CHOICES, **usage(3, 1)}, DONE),
    "unfinished": sse(chat({"content": "a"}), {**NO_CHOICES, **usage(3, 1)}, DONE),
}
UNUSUAL = {
    "no usage": sse(chat({"content": "a"}), chat({"content": "b"}), chat({}, "stop"), DONE),
    "empty text": usual(["a", "", "b"]),
    "no break at the end": usual(["a", "b"])[:-1],
    "CRLF": usual(["a", "b"]).replace(b"\n", b"\r\n"),
    "a comment between": usual(["a", "b"]).replace(b"\n\ndata:", b"\n\n: ping\n\ndata:", 2),
    "an empty line between": usual(["a", "b", "c"]).replace(b"\n\ndata:", b"\n\n\ndata:"),
    "a named event": usual(["a", "b"]).replace(b"data: ", b"event: error\ndata: ", 3),
    "a byte order mark": b"\xef\xbb\xbf" + usual(["a", "b"]),
    "half a character": usual(["\u00e9", "\u00e9"], ascii_only=False).replace(b"\xc3", b"", 1),
    "half a character each": usual(["AA", "BB"]).replace(b"AA", b"x\xc3").replace(b"BB", b"\xa9x"),
    "a control character": usual(["AA", "BB"]).replace(b"BB", b"B\x01"),
    "a tab": usual(["AA", "BB"]).replace(b"BB", b"B\t"),
    "an open escape": usual(["AA", "BB"]).replace(b"BB", b"BB\\"),
    "a bad escape": usual(["AA", "BB"]).replace(b"BB", b"\\q"),
    "a break in a text": usual(["AA", "BB"]).replace(b"BB", b"B\n\nB"),
    "more than text in one": usual(["a", "b"]).replace(b'"content": "b"', b'"content": "b", "refusal": "c"'),
    "another head later": usual(["a", "b", "c"]).replace(b"1763700000", b"1763700001", 2),
    "reasoning": sse(chat({"reasoning": "a"}), chat({"content": "b"}), chat({}, "stop"), usage(1, 2), DONE),
    "error at the end": usual(["a", "b"])[: -len(b"data: [DONE]\n\n")] + sse({"error": {"message": "no"}}),
    "garbage at the end": usual(["a", "b"]) + b"data: {\n\n",
    "another choice": sse(
        chat({"content": "a"}), text("", "stop") | {"choices": [{"index": 1}]}, usage(1, 1)
    ),
    "blank events that may be tokens": sse(
        chat({"content": "a"}), chat({"content": ""}, "stop"), usage(1, 2)
    ),
    "nothing": b"",
    "breaks": b"\n\n\n\n",
    "no text": sse(ROLE, chat({}, "stop"), usage(1, 1), DONE),
    "long": usual(["a" * MOST_BYTES, "b"]),
}


def api_of(name: str) -> str:
    return "openai-completions" if name == "completions" else CHAT


@pytest.mark.parametrize("name", USUAL)
def test_the_usual_is_read_at_once_and_the_same(name):
    body, api = USUAL[name], api_of(name)
    assert at_once([body], api) == exactly([body], api)


@pytest.mark.parametrize("name", USUAL)
def test_the_usual_cut_at_every_byte(name):
    body, api = USUAL[name], api_of(name)
    bytewise, cut = [body[at : at + 1] for at in range(len(body))], CutOnce(body, api)
    assert at_once(bytewise, api) == cut.bytewise
    for place in range(1, len(body)):
        assert at_once([body[:place], body[place:]], api) == cut.at(place)
    thirds = [body[: len(body) // 3], b"", body[len(body) // 3 : -5], body[-5:]]
    assert at_once(thirds, api) == exactly(thirds, api)


@pytest.mark.parametrize("name", UNUSUAL)
def test_the_unusual_is_left_to_the_exact_reader(name):
    assert at_once([UNUSUAL[name]]) is None


@pytest.mark.parametrize("reply", [*REPLIES, *COUNTS_REPLIES[::6]], ids=lambda reply: reply.name)
def test_replies_of_real_servers_cut_at_every_byte(reply):
    cut = CutOnce(reply.body, reply.dialect)
    for place in range(len(reply.body) + 1):
        found = at_once([reply.body[:place], reply.body[place:]], reply.dialect)
        if found is not None:
            assert found == cut.at(place)


LONG_MEMORY = ReplyMemory()
ODD = [*ODD_TEXTS, "data: ", "\\u0041", "\r", "\0"]
TAGS = ["<", "◁", "<think>", "◁think▷", "</think>"]
PIECES = st.text(st.characters(codec="utf-8"), max_size=5) | st.sampled_from([*ODD, *TAGS])


@settings(max_examples=300)
@example(words=["0", "00"], tokens=1, ascii_only=False, cuts=[], broken=None)
@given(
    words=st.lists(PIECES, min_size=1, max_size=8),
    tokens=st.integers(0, 12),
    ascii_only=st.booleans(),
    cuts=st.lists(st.integers(0, 2000), max_size=6),
    broken=st.none() | st.tuples(st.integers(0, 2000), st.binary(max_size=3)),
)
def test_equals_the_exact_reader(words, tokens, ascii_only, cuts, broken):
    body = usual(words, tokens, ascii_only=ascii_only)
    if broken is not None:
        body = body[: broken[0]] + broken[1] + body[broken[0] + len(broken[1]) :]
    places = sorted(min(cut, len(body)) for cut in cuts)
    pieces = [body[start:end] for start, end in zip([0, *places], [*places, len(body)], strict=True)]
    found = at_once(pieces)
    at_once([usual(["an", " earlier", " one"])], memory=LONG_MEMORY)
    again = at_once(pieces, memory=LONG_MEMORY)
    # An empty text among those of a known shape is read exactly, by the one who asks.
    assert again == found or (again is None and not all(words))
    if found is not None:
        assert found == exactly(pieces)
    elif broken is None and all(words) and tokens > 0 and not read_exactly(words):
        pytest.fail("a usual reply was not read at once")


def read_exactly(words: list[str]) -> bool:
    """Whether texts are left to the exact reader: one may open thoughts, or they may repeat what came."""
    return may_open(next(filter(is_visible, words), "")) or may_repeat(words)


def with_id(body: bytes, identity: str) -> bytes:
    return body.replace(b"chatcmpl-1f", identity.encode())


@pytest.mark.parametrize("name", [name for name in USUAL if name != "completions"])
def test_what_earlier_replies_taught(name):
    """Under another id, cut at every byte, with a memory of everything usual and unusual."""
    memory = ReplyMemory()
    for one in (*USUAL.values(), *UNUSUAL.values(), *USUAL.values()):
        at_once([with_id(one, "chatcmpl-first")], memory=memory)
    body = with_id(USUAL[name], "chatcmpl-0123")
    cut = CutOnce(body)
    for place in range(1, len(body)):
        assert at_once([body[:place], body[place:]], memory=memory) == cut.at(place)


@pytest.mark.parametrize("name", UNUSUAL)
def test_memory_does_not_make_the_unusual_usual(name):
    memory = ReplyMemory()
    for one in USUAL.values():
        at_once([with_id(one, "chatcmpl-first")], memory=memory)
    assert at_once([with_id(UNUSUAL[name], "chatcmpl-other")], memory=memory) is None


def test_the_next_reply_is_known_without_reading_json(monkeypatch):
    memory, spoken = ReplyMemory(), dialect(CHAT)
    assert at_once([with_id(usual(["a", " b"]), "chatcmpl-first")], memory=memory) is not None
    monkeypatch.setattr(type(spoken), "decode", lambda *_: pytest.fail("read as JSON"))
    found = at_once([with_id(usual(["c", "d"]), "chatcmpl-next")], memory=memory)
    monkeypatch.undo()
    assert found == exactly([usual(["c", "d"])])
    assert found.chunk_tokens is not at_once([usual(["c", "d"])], memory=memory).chunk_tokens  # type: ignore[union-attr]


@pytest.mark.parametrize(
    "change",
    [
        (b'"finish_reason": "length"', b'"finish_reason": "content_filter"'),
        (b'"completion_tokens": 2', b'"completion_tokens": 3'),
        (b'"prompt_tokens": 9', b'"prompt_tokens": 10'),
        (b"[DONE]", b"[NONE]"),
        (b'"role": "assistant"', b'"tool_calls": []'),
        (b'"id": "chatcmpl-next"', b'"id": "chatcmpl-n\\u0065xt"'),
        (b'"index": 0', b'"index": 1'),
    ],
)
def test_a_change_anywhere_is_seen(change):
    memory = ReplyMemory()
    assert at_once([with_id(usual(["a", " b"]), "chatcmpl-first")], memory=memory) is not None
    for count in (1, -1):
        body = with_id(usual(["c", "d"]), "chatcmpl-next").replace(*change, count)
        found = at_once([body], memory=memory)
        assert found is None or found == exactly([body])
        assert found == at_once([body])


def test_an_id_that_says_something_is_not_passed_over():
    """The id of a reply stands in its finish reason too: then the other's finish reason is another."""
    memory = ReplyMemory()
    for identity in ("chatcmpl-first", "chatcmpl-next"):
        body = with_id(usual(["a", "b"]), identity).replace(b'"length"', f'"{identity}"'.encode())
        found = at_once([body], memory=memory)
        assert found is not None
        assert found.finish_reason == identity
        assert found == exactly([body])


def test_memory_is_bounded():
    memory = ReplyMemory()
    for prompt in range(1, 1201):
        body = usual(["a"]).replace(b'"prompt_tokens": 9', b'"prompt_tokens": %d' % prompt)
        found = at_once([body], memory=memory)
        assert found is not None
        assert found.input_tokens == prompt
    assert len(memory.summaries) <= 512
    assert replace(found) == exactly([body])
