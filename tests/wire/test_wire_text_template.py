"""The shortcut for text events: always what reading the JSON gives."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from wire_events import ODD_TEXTS, chat, text

from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.openai_chat import OpenAIChat
from pytest_llmbench.wire.sse import SSEEvent
from pytest_llmbench.wire.stream import TextTemplate, decode, learn

PIECES = st.text(st.characters(codec="utf-8"), max_size=6) | st.sampled_from(
    [*ODD_TEXTS, '","content":"', '{"content":"x"}']
)
BUILDERS = {
    "openai-chat": [
        lambda piece: chat({"content": piece}),
        lambda piece: chat({"content": piece, "reasoning_content": None}),
        lambda piece: chat({"reasoning": piece}),
        lambda piece: chat({"content": piece}, "stop"),
        lambda piece: chat({"content": piece}, obfuscation="zz"),
        lambda piece: chat({"content": piece}, token_times_ns=[len(piece)]),
        lambda piece: chat({"content": piece}, usage={"completion_tokens": 3}),
        lambda piece: {"content": "decoy", **chat({"content": piece})},
        lambda piece: {**chat({"content": piece}), "error": {"content": "x", "message": "late"}},
    ],
    "openai-completions": [
        text,
        lambda piece: text(piece, "length"),
        lambda piece: {"text": "decoy", **text(piece)},
    ],
}


def event(payload: Any, *, ascii_only: bool = False, separators: tuple[str, str] | None = None) -> SSEEvent:
    return SSEEvent(json.dumps(payload, ensure_ascii=ascii_only, separators=separators), "message", 0, 0)


@settings(max_examples=300)
@given(data=st.data(), api=st.sampled_from(sorted(BUILDERS)), ascii_only=st.booleans(), compact=st.booleans())
def test_equals_reading_each_event(data, api, ascii_only, compact):
    some = data.draw(st.lists(st.tuples(st.sampled_from(BUILDERS[api]), PIECES), min_size=2, max_size=12))
    separators = (",", ":") if compact else None
    events = [event(build(piece), ascii_only=ascii_only, separators=separators) for build, piece in some]
    assert list(decode(iter(events), dialect(api))) == [dialect(api).decode(each) for each in events]


def taught(payload: Any, api: str = "openai-chat") -> TextTemplate | None:
    spoken = dialect(api)
    first = event(payload)
    return learn(first, spoken.decode(first), spoken.text_key or "", spoken.decode)


def test_a_plain_text_event_teaches_the_others():
    template = taught(chat({"content": "Hello"}))
    assert template is not None
    assert template.text_of(event(chat({"content": " wörld 🦀"})).data) == " wörld 🦀"
    assert template.choice == 0


@pytest.mark.parametrize("escaped", ["a\nb", 'say "x"', "back\\slash", "", "\u2028"])
def test_text_that_may_be_escaped_is_read_as_json(escaped):
    template = taught(chat({"content": "Hello"}))
    assert template is not None
    assert template.text_of(event(chat({"content": escaped})).data) is None


def test_events_that_say_more_than_text_teach_nothing():
    assert taught(chat({"content": "a"}, "stop")) is None
    assert taught(chat({"reasoning": "a"})) is None
    assert taught(chat({"content": ""})) is None
    assert taught(chat({"content": "a", "refusal": "a"})) is None
    assert taught({"content": "ab", **chat({"content": "ab"})}) is None


def test_a_shorter_event_than_its_ends_is_not_of_the_shape():
    assert TextTemplate('{"a":"x', 'x"}', 0).text_of('{"a":"x"}') is None


def test_named_and_broken_events_are_not_taken_for_text():
    good = event(chat({"content": "a"}))
    broken = SSEEvent(good.data, "message", 0, 0, problem="bytes that are not UTF-8")
    named = SSEEvent(good.data, "error", 0, 0)
    chunks = list(decode([good, good, broken, named], dialect("chat")))
    assert chunks[1] == Chunk(0, 0, text="a", choice=0)
    assert chunks[2].problem
    assert chunks[3] == dialect("chat").decode(named)


class CountingChat(OpenAIChat):
    """Says how many events were read as JSON."""

    def __init__(self) -> None:
        self.decoded = 0

    def decode(self, event: SSEEvent) -> Chunk:
        self.decoded += 1
        return super().decode(event)


def test_most_events_of_a_usual_stream_are_not_read_as_json():
    counting = CountingChat()
    chunks = list(decode((event(chat({"content": f" word{at}"})) for at in range(100)), counting))
    assert [chunk.text for chunk in chunks] == [f" word{at}" for at in range(100)]
    assert counting.decoded == 2  # the first event and its proof


def test_a_stream_that_keeps_changing_is_not_searched_to_its_end():
    counting = CountingChat()
    assert len(list(decode((event(chat({"content": "a"}, at=at)) for at in range(100)), counting))) == 100
    assert counting.decoded < 110
