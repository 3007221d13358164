"""Tokens of chunks: exact where the server says so, apportioned sums otherwise."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.wire.chunk import Chunk
from pytest_llmbench.wire.reply import (
    apportion,
    attribute,
    counted_by_server,
    largest_remainder,
    spread,
)

SIZES = st.lists(st.integers(1, 50), min_size=1, max_size=30)


def chunks(*texts: str) -> list[Chunk]:
    return [Chunk(at, at, text=text, choice=0, blank=text == "") for at, text in enumerate(texts)]


def words(text: str) -> int:
    return len(text.split())


@settings(max_examples=200)
@given(total=st.integers(0, 500), sizes=SIZES)
def test_apportioned_tokens_sum_to_the_total(total, sizes):
    parts = apportion(total, sizes)
    assert sum(parts) == total
    assert len(parts) == len(sizes)
    assert min(parts) >= (1 if total >= len(sizes) else 0)


@settings(max_examples=200)
@given(total=st.integers(0, 500), weights=st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(any))
def test_largest_remainder_is_within_one_of_the_exact_share(total, weights):
    shares = largest_remainder(total, weights)
    assert sum(shares) == total
    for share, weight in zip(shares, weights, strict=True):
        assert abs(share - total * weight / sum(weights)) < 1


@pytest.mark.parametrize(
    ("total", "sizes", "parts"),
    [
        (11, [1, 10], [1, 10]),
        (4, [1, 1, 1], [1, 1, 2]),  # the end-of-sequence token has no chunk of its own
        (16, [4, 4, 4, 3], [4, 4, 5, 3]),
        (6, [5, 2], [4, 2]),
        (2, [1, 1, 1, 1], [0, 0, 1, 1]),
        (0, [1, 2], [0, 0]),
        (7, [1], [7]),
    ],
)
def test_apportion_known_answers(total, sizes, parts):
    assert apportion(total, sizes) == parts


def test_one_token_a_chunk_when_the_total_is_the_number_of_chunks():
    content = attribute(chunks("a", "", "long text here"), 2, words)
    assert (content.tokens, content.attribution) == ([1, 1], "exact")
    assert [chunk.stamp_ns for chunk in content.chunks] == [0, 2]


def test_empty_output_counts_as_a_token_only_when_the_total_proves_it():
    held_back = attribute(chunks("", "", "", "one two three four", " five"), 6, words)
    assert [chunk.stamp_ns for chunk in held_back.chunks] == [3, 4]
    assert (held_back.tokens, held_back.attribution) == ([5, 1], "apportioned")
    tokens = attribute(chunks("a", "", "b"), 3, words)
    assert [chunk.stamp_ns for chunk in tokens.chunks] == [0, 1, 2]
    assert (tokens.tokens, tokens.attribution) == ([1, 1, 1], "exact")


def test_apportions_by_the_tokenizer_given():
    content = attribute(chunks("a b c", "internationalisation"), 4, words)
    assert (content.tokens, content.attribution) == ([3, 1], "apportioned")
    assert attribute(chunks("a b c", "internationalisation"), 4, None).tokens == [1, 3]


def test_without_a_total_nothing_is_attributed():
    content = attribute(chunks("a", "b"), None, words)
    assert (content.tokens, content.attribution, len(content.chunks)) == ([], "none", 2)
    assert attribute(chunks("a", "b"), 0, words).attribution == "none"
    assert attribute([], 5, words).attribution == "none"
    assert attribute(chunks("", ""), 5, words).chunks == []


def cumulative(*totals: int | None) -> list[Chunk]:
    return [Chunk(at, at, text="x", choice=0, tokens_cumulative=total) for at, total in enumerate(totals)]


def test_running_counts_are_exact():
    content = counted_by_server(cumulative(1, 5, 6))
    assert content is not None
    assert (content.tokens, content.attribution) == ([1, 4, 1], "exact")


def test_running_counts_with_a_gap_or_running_back_are_not_used():
    assert counted_by_server(cumulative(1, None, 6)) is None
    assert counted_by_server(cumulative(1, 5, 4)) is None
    assert attribute(cumulative(1, None, 6), 6, words).attribution == "apportioned"


def test_a_lone_total_at_the_end_says_nothing_about_instants():
    end = Chunk(1, 1, choice=0, finish_reason="stop", tokens_cumulative=20)
    assert counted_by_server([Chunk(0, 0, choice=0, blank=True), end]) is None


def test_running_counts_show_tokens_without_text():
    silent = [
        Chunk(0, 0, choice=0, tokens_cumulative=0),
        *(Chunk(at, at, choice=0, blank=True, tokens_cumulative=at) for at in (1, 2, 3)),
    ]
    content = counted_by_server(silent)
    assert content is not None
    assert [chunk.stamp_ns for chunk in content.chunks] == [1, 2, 3]


def test_a_total_repeated_after_the_finish_is_no_chunk():
    ending = Chunk(2, 2, choice=0, finish_reason="length", tokens_cumulative=2)
    repeated = Chunk(3, 3, choice=0, tokens_cumulative=3)
    content = attribute([*cumulative(1, 2), ending, repeated], 3, words)
    assert [chunk.stamp_ns for chunk in content.chunks] == [0, 1]
    assert (content.tokens, content.attribution) == ([1, 2], "exact")


def test_token_ids_count_exactly_and_belong_to_text_without_any():
    some = [
        Chunk(0, 0, choice=0, tokens=2),
        Chunk(1, 1, text="ab", choice=0, tokens=1),
        Chunk(2, 2, text="c", choice=0, tokens=0),
        Chunk(3, 3, choice=0, tokens=0, finish_reason="stop"),
    ]
    content = counted_by_server(some)
    assert content is not None
    assert (content.tokens, [chunk.stamp_ns for chunk in content.chunks]) == ([2, 1, 0], [0, 1, 2])


def test_a_server_total_below_its_own_running_count_overrules_it():
    content = attribute(cumulative(2, 4), 3, words)
    assert (sum(content.tokens), content.attribution) == (3, "apportioned")


def test_a_large_unexplained_rest_is_not_called_exact():
    content = attribute(cumulative(1, 2), 9, words)
    assert (content.tokens, content.attribution) == ([1, 8], "apportioned")


def test_spread_counts_reasoning_too():
    some = [Chunk(0, 0, reasoning="a b", choice=0), Chunk(1, 1, text="c", choice=0)]
    assert spread(some, 3, words).tokens == [2, 1]
    assert spread([], 3, words).tokens == []


FIFTY = "fifty characters of text that was kept to the end."


@pytest.mark.parametrize("count", [words, None], ids=["tokenizer", "characters"])
@pytest.mark.parametrize(
    ("texts", "exact"),
    [
        ([""] * 10 + [FIFTY], False),
        ([FIFTY] + [""] * 10, False),
        (["one"] + [""] * 9 + [FIFTY], False),
        (["", "", "", "one two six ten at"] * 5, False),
        (["one"] * 20 + [""], True),
        (["one two three four five", ""], True),  # an end of sequence, whatever the text before it
        (["", "one"] * 10, True),
        (["", "", "漢"] * 4, True),  # bytes of a character
        (["", "", "", "👍🏽"] * 4, True),
        ([""] * 10, True),
    ],
)
def test_empty_output_beside_text_of_several_tokens_is_text_held_back(texts, exact, count):
    content = attribute(chunks(*texts), len(texts), count)
    assert sum(content.tokens) == len(texts)
    assert content.attribution == ("exact" if exact else "apportioned")
    assert len(content.chunks) == (len(texts) if exact else sum(map(bool, texts)))
