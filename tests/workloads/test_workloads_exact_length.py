"""Prompts of exactly a wanted length, found by asking whoever counts as rarely as possible."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.readable import MOST_CALLS, cut_to, exact_prompt, exact_text, reordered

CL100K = reference_tokenizer().count
O200K = reference_tokenizer("o200k_base").count


def words(text):
    return 1 + len(text.split())


def halves(text):
    """A tokenizer that makes a token of every two characters."""
    return 9 + (len(text) + 1) // 2


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    target=st.integers(60, 3000),
    count=st.sampled_from([CL100K, O200K, words, halves, lambda text: 31 + O200K(f"<user>{text}</user>")]),
)
def test_the_count_is_exactly_the_target(seed, target, count):
    calls = []

    def counted(text):
        calls.append(text)
        return count(text)

    found = exact_prompt(target, counted, seed)
    assert count(found.text) == found.tokens == target
    assert found.calls == len(calls) <= MOST_CALLS
    assert exact_prompt(target, count, seed) == found


@settings(max_examples=60)
@given(
    seed=st.integers(0, 10**6),
    target=st.integers(60, 600),
    count=st.sampled_from([CL100K, O200K, words, lambda text: 31 + O200K(f"<user>{text.strip()}</user>")]),
)
def test_another_order_has_as_many_tokens_and_another_beginning(seed, target, count):
    text = exact_prompt(target, count, seed).text
    other = reordered(text, count, seed)
    assert count(other) == target
    assert sorted(other.split(" ")) == sorted(text.split(" "))
    assert other.split()[0] != text.split()[0]
    assert other == reordered(text, count, seed)


@pytest.mark.parametrize("text", ["", " one", " one two", " one two three", " same same same same same"])
def test_what_has_no_other_order_stays(text):
    assert reordered(text, words, 1) == text


def test_a_word_that_may_not_be_first_is_not():
    """A template takes the space away, and without it "twelve" is two tokens."""

    def count(text):
        return 7 + len(text.split()) + text.strip().startswith("twelve")

    text = " one two three twelve four five six"
    orders = {reordered(text, count, seed) for seed in range(40)}
    assert len(orders) > 20
    assert {count(order) for order in orders} == {count(text)}
    assert not any(order.startswith((" one", " twelve")) for order in orders)


def test_a_constant_template_takes_two_counts():
    assert exact_prompt(4096, CL100K, 1).calls == 1
    assert exact_prompt(4096, lambda text: CL100K(text) + 37, 1).calls <= 4


def test_gaps_are_filled_with_words_of_other_lengths():
    pieces = [" alpha", " beta", " gamma", " delta"]

    def count(text):
        return sum(3 if word in "alpha beta gamma delta" else 1 for word in text.split())

    found = exact_text(pieces, 10, count)
    assert count(found.text) == 10
    assert found.text.startswith(" alpha beta gamma")


def test_what_cannot_be_reached_says_what_was():
    with pytest.raises(SuiteError, match=r"exactly 20 tokens .* the shortest 100") as caught:
        exact_prompt(20, lambda text: 100 + len(text.split()), 1)
    assert "template" in str(caught.value)
    asked = []

    def even(text):
        asked.append(text)
        return 2 * len(text.split())

    with pytest.raises(SuiteError, match=r"the closest had 10[02]"):
        exact_prompt(101, even, 1)
    assert len(asked) <= MOST_CALLS
    with pytest.raises(SuiteError, match="after 5 counts"):
        exact_prompt(1000, lambda text: len(text) % 7, 1, most_calls=5)


@pytest.mark.parametrize(
    "text", ["naïve café 東京タワー 🙂🙃 " * 40, "x = {'a': [1, 22, 333]}\n\n\n" * 40, "aaaa" * 400]
)
def test_texts_are_cut_to_exactly_so_many_tokens(text):
    for tokens in range(1, 120):
        cut = cut_to(text, tokens)
        assert CL100K(cut) == tokens
        assert text.startswith(cut[: max(0, len(cut) - 20)])
    with pytest.raises(SuiteError, match="cannot be cut"):
        cut_to(text, 10**6)
