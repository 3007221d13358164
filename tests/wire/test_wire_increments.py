"""Servers that repeat all text so far with each event, of APIs that have increments alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wire_events import DONE, NO_CHOICES, ROLE, chat, sse, text, usage

from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.wire.chunk import repeats, without_repetitions
from pytest_llmbench.wire.reply import StreamSummary, read_stream
from pytest_llmbench.wire.stream import chunks_of
from pytest_llmbench.wire.uniform import read_uniform

WORDS = ["One", " two", " three", ",", " four", "."]
WHOLE = "".join(WORDS)
SO_FAR = ["".join(WORDS[: end + 1]) for end in range(len(WORDS))]


def summary(body: bytes, api: str = "openai-chat") -> StreamSummary:
    chunks = list(chunks_of([(body, 1)], dialect(api)))
    without_repetitions(chunks)
    assert read_uniform([body], [1], dialect(api)) in (None, read_stream(chunks))
    return read_stream(chunks)


def chats(pieces: list[str], key: str = "content") -> bytes:
    return sse(ROLE, *(chat({key: each}) for each in pieces), chat({}, "stop"), DONE)


@pytest.mark.parametrize(
    "pieces",
    [
        SO_FAR,
        [*SO_FAR, WHOLE],
        ["", *SO_FAR],
        [SO_FAR[0], SO_FAR[0], *SO_FAR[1:]],
        [WHOLE[:15], WHOLE],
        WORDS,
        [*WORDS, WHOLE],
    ],
    ids=[
        "so far",
        "once more at the end",
        "empty first",
        "a token without text",
        "two events",
        "pieces",
        "all at the end",
    ],
)
@pytest.mark.parametrize("key", ["content", "reasoning_content", "reasoning"])
def test_what_each_event_adds(pieces, key):
    found = summary(chats(pieces, key))
    assert (found.reasoning if key != "content" else found.text) == WHOLE
    assert len(found.chunk_ns) == len(WORDS) or len(pieces) == 2


def test_text_completions_and_half_characters():
    pieces = ["Gr", "Gr\ufffd", "Grü", "Grüß", "Grüße dich"]
    body = sse(*(text(each) for each in pieces), text("", "stop"), DONE)
    assert summary(body, "openai-completions").text == "Grüße dich"


def test_each_choice_by_itself_and_counts_beside():
    both = [
        {"choices": [{"index": at, "delta": {"content": each}, "finish_reason": None}]}
        for pair in zip(SO_FAR, WORDS, strict=True)
        for at, each in enumerate(pair)
    ]
    assert sorted(summary(sse(*both, DONE)).text) == sorted(WHOLE * 2)
    counted = sse(
        *(chat({"content": each}) for each in SO_FAR), chat({}, "stop"), {**NO_CHOICES, **usage(9, 6)}
    )
    assert summary(counted).chunk_tokens == [1] * 6


@pytest.mark.parametrize(
    "pieces",
    [
        ["!"] * 40,
        ["a"] * 12 + ["ab"],
        [" "] * 3 + ["  "] * 3 + ["x"],
        ["1", "10"],
        ["Ha", "Haha", "!"],
        ["The", " end", " the", " The"],
        [" b", " b", " b b"],
        ["ab" * 10, "ab" * 10],
        ["ab" * 10, "ab" * 10, "ab" * 10],
    ],
)
def test_a_model_that_repeats_itself_is_left_alone(pieces):
    assert summary(chats(pieces)).text == "".join(pieces)


@given(st.lists(st.sampled_from([" a", " b", "a", "\n", " the", "é", "ab"]), min_size=4, max_size=30))
def test_a_text_in_pieces_and_its_repetition_read_alike(words):
    so_far = ["".join(words[: end + 1]) for end in range(len(words))]
    assert repeats(so_far)
    assert summary(chats(so_far)).text == "".join(words)
    if not repeats(words) and words[-1] != "".join(words[:-1]):
        assert summary(chats(words)).text == "".join(words)
