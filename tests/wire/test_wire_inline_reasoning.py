"""Reasoning between tags: told from the answer at every split, and no text moved that nobody declared."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.model.record import Outcome, TokenSource
from pytest_llmbench.wire.catalogue import dialect
from pytest_llmbench.wire.chunk import Chunk, Usage
from pytest_llmbench.wire.inline_reasoning import InlineReasoning, split_inline
from pytest_llmbench.wire.reply import StreamSummary, read_stream
from pytest_llmbench.wire.stream import chunks_of
from pytest_llmbench.wire.uniform import read_uniform

AUTO = InlineReasoning()
HARMONY = (
    "<|channel|>analysis<|message|>Hm, so<|end|><|start|>assistant<|channel|>commentary to=functions.f "
    "<|constrain|>json<|message|>{}<|call|><|start|>assistant<|channel|>analysis<|message|>ah<|end|>"
    "<|start|>assistant<|channel|>final<|message|>It is 4<|return|>"
)
FOUND = [
    ("auto", False, "<think>\nHm</think>\n\nIt is 4", "\nHm", "\n\nIt is 4"),
    ("auto", False, " \n<think>Hm</think>4 </think><think>", "Hm", " \n4 </think><think>"),
    ("auto", False, "◁think▷Hm◁/think▷4", "Hm", "4"),
    ("auto", False, "<think></think>4", "", "4"),
    ("auto", False, "<think>Hm, cut off", "Hm, cut off", ""),
    ("auto", False, HARMONY, "Hm, soah", "{}It is 4"),
    ("think", False, "Hm</think>4", "Hm", "4"),
    ("think", True, "Hm</think>4", "Hm", "4"),
    ("think", True, "Hm, cut off", "Hm, cut off", ""),
    ("think", True, "<think>Hm</think>4", "Hm", "4"),
    ("kimi", False, "Hm◁/think▷4", "Hm", "4"),
    ("gpt-oss", True, "Hm<|end|><|start|>assistant<|channel|>final<|message|>4", "Hm", "4"),
    ("auto", False, "<|start|>assistant<|channel|>final<|message|>4", "", "4"),
    ("auto", False, "<|channel|>analysis<|message|>Hm<|end|><|start|>assistant<|chan", "Hm", ""),
]
LEFT = [
    ("auto", False, "Hm</think>4"),
    ("auto", False, "Write <think>x</think>"),
    ("auto", False, "<thinking>x"),
    ("auto", False, "<"),
    ("none", False, "<think>Hm</think>4"),
    ("kimi", False, "<think>Hm</think>4"),
    ("think", False, "It is 4"),
    ("gpt-oss", False, "It is 4"),
    ("auto", False, "analysisHm assistantfinal4"),
]


def cut(text: str, at: list[int], choice: int = 0) -> list[Chunk]:
    """Chunks a hundred nanoseconds apart."""
    places = [0, *sorted(at), len(text)]
    parts = [text[a:b] for a, b in pairwise(places) if a < b]
    return [Chunk(100 * (n + 1), n, part, choice=choice) for n, part in enumerate(parts)]


def joined(chunks: list[Chunk], inline: InlineReasoning) -> tuple[str, str]:
    split = split_inline(chunks, inline)
    return "".join(c.reasoning for c in split.chunks), "".join(c.text for c in split.chunks)


@pytest.mark.parametrize(("form", "opened", "text", "reasoning", "visible"), FOUND)
def test_at_every_split(form, opened, text, reasoning, visible):
    inline = InlineReasoning(form, opened)
    for at in range(len(text) + 1):
        assert joined(cut(text, [at]), inline) == (reasoning, visible), at
    assert joined(cut(text, list(range(len(text)))), inline) == (reasoning, visible)


@settings(max_examples=100)
@given(st.sampled_from(FOUND), st.lists(st.integers(0, 400), max_size=12))
def test_at_any_splits(case, at):
    form, opened, text, reasoning, visible = case
    chunks = cut(text, [each % (len(text) + 1) for each in at])
    assert joined(chunks, InlineReasoning(form, opened)) == (reasoning, visible)


@settings(max_examples=200)
@given(
    st.text(alphabet="<>/|thinkanlysmegedcr ◁▷\n", max_size=60),
    st.sampled_from(["auto", "think", "kimi", "gpt-oss"]),
    st.booleans(),
)
def test_whatever_comes_nothing_is_made_up(text, form, opened):
    chunks = cut(text, list(range(len(text))))
    split = split_inline(chunks, InlineReasoning(form, opened))
    assert [chunk.stamp_ns for chunk in split.chunks] == [chunk.stamp_ns for chunk in chunks]
    left = "".join(chunk.reasoning + chunk.text for chunk in split.chunks)
    rest = iter(text)
    assert all(character in rest for character in left), "not a part of what came, in its order"


@pytest.mark.parametrize(("form", "opened", "text"), LEFT)
def test_text_that_is_none_stays(form, opened, text):
    chunks = cut(text, [2])
    assert split_inline(chunks, InlineReasoning(form, opened)).chunks is chunks


def test_a_reply_with_a_field_for_reasoning_is_left_alone():
    chunks = [Chunk(1, 0, reasoning="hm", choice=0), Chunk(2, 1, "<think> is a tag", choice=0)]
    assert split_inline(chunks, InlineReasoning("think", True)).chunks is chunks


def test_each_choice_is_a_text_of_its_own():
    chunks = [
        Chunk(1, 0, "<think>a", choice=0),
        Chunk(2, 1, "plain", choice=1),
        Chunk(3, 2, "</think>4", choice=0),
    ]
    found = split_inline(chunks, AUTO)
    assert [(c.reasoning, c.text) for c in found.chunks] == [("a", ""), ("", "plain"), ("", "4")]
    assert read_stream(chunks).thinking_end_ns is None, "one may answer while the other thinks"


def summary_of(
    *parts: Chunk | str, total: int | None = None, inline: InlineReasoning = AUTO
) -> StreamSummary:
    chunks = [
        Chunk(100 * (n + 1), n, part, choice=0) if isinstance(part, str) else part
        for n, part in enumerate(parts)
    ]
    chunks.append(Chunk(5_000, 99, choice=0, finish_reason="stop", usage=Usage(9, total)))
    return read_stream(chunks, inline=inline)


def reasoning(at_ns: int, text: str = "hm", visible: str = "") -> Chunk:
    return Chunk(at_ns, at_ns, visible, text, choice=0)


def text(at_ns: int, visible: str) -> Chunk:
    return Chunk(at_ns, at_ns, visible, choice=0)


def test_the_end_of_thinking_is_the_closing_tag_complete():
    found = summary_of("<th", "ink>", "so", " on", "</thi", "nk>", "\n\n", "It", " is", total=9)
    assert (found.first_reasoning_ns, found.last_reasoning_ns) == (300, 400)
    assert (found.thinking_end_ns, found.first_content_ns) == (600, 800)
    assert (found.text, found.reasoning, found.outcome) == ("\n\nIt is", "so on", Outcome.OK)
    assert (found.chunk_tokens, found.attribution) == ([1] * 9, "exact"), "tags are output tokens"
    assert (found.reasoning_tokens, found.reasoning_token_source) == (2, TokenSource.CHUNK_COUNT)


@pytest.mark.parametrize(
    ("parts", "end_ns", "last_ns"),
    [
        ([reasoning(100), reasoning(200), Chunk(300, 3, "\n", choice=0), text(400, "It")], 200, 200),
        # Reasoning between answers: the first visible content ends the wait, whatever comes later.
        ([reasoning(100), text(200, "It"), reasoning(300), text(400, "is")], 100, 300),
        ([text(100, "It"), reasoning(200), text(300, "is")], None, 200),
        # One chunk carries both: no later than the chunk before it.
        ([reasoning(100), reasoning(200, visible="It"), text(300, "is")], 100, 200),
        ([reasoning(100, visible="It"), text(300, "is")], None, 100),
        # One read brought both.
        ([reasoning(100), reasoning(200), text(200, "It")], 100, 200),
        ([text(100, "It")], None, None),
    ],
)  # fmt: skip
def test_the_end_of_thinking(parts, end_ns, last_ns):
    found = summary_of(*parts)
    assert (found.thinking_end_ns, found.last_reasoning_ns) == (end_ns, last_ns)


def test_an_empty_block_of_thoughts_is_no_reasoning():
    """As models write it that were asked not to think."""
    found = summary_of("<think>", "\n\n", "</think>", "\n\n", "It", total=5)
    assert (found.first_reasoning_ns, found.thinking_end_ns, found.reasoning_tokens) == (None, None, None)
    assert (found.first_content_ns, found.outcome) == (500, Outcome.OK)


def test_reasoning_without_an_answer_has_no_end():
    found = summary_of("<think>", "on and on")
    assert (found.thinking_end_ns, found.first_content_ns, found.outcome) == (None, None, Outcome.EMPTY)
    assert found.error == "the reply held reasoning but no visible content"


def body_of(*texts: str) -> bytes:
    head = '{"id":"chatcmpl-0123456789","choices":[{"index":0,"delta":'
    events = [head + json.dumps({"content": text}) + "}]}" for text in texts]
    events.append(head + '{},"finish_reason":"stop"}]}')
    events.append(
        head[: head.index("[")] + f'[],"usage":{{"prompt_tokens":3,"completion_tokens":{len(texts)}}}}}'
    )
    return "".join(f"data: {event}\n\n" for event in [*events, "[DONE]"]).encode()


def test_the_fast_reading_leaves_such_replies_to_the_exact_one():
    chat = dialect("chat")
    assert read_uniform([body_of("<", "think>", "a", "</think>", "b")], [7], chat) is None
    assert read_uniform([body_of("a", "<think>", "b")], [7], chat) is not None
    slow = read_stream(list(chunks_of([(body_of(" ", "<think>", "a", "</think>", "b"), 7)], chat)))
    assert (slow.reasoning, slow.text) == ("a", " b")
