"""Text of prompts, what length came of it, and the digest of a sequence."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.sequence import sequence_json, sequence_sha256, text_of, texts_of, with_text
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM


def realised_lengths(requests: Sequence[PlannedRequest]) -> list[int]:
    """Tokens of each request's text; of its ids where it has no text."""
    count = reference_tokenizer().count
    return [
        len(request.token_ids or ()) if request.text is None else count(request.text) for request in requests
    ]


def test_text_is_decoded_and_everything_else_is_kept():
    planned = SYNTHETIC_UNIFORM.requests(20, 42)
    texts = with_text(planned)
    decode = reference_tokenizer("cl100k_base").decode
    for before, after in zip(planned, texts, strict=True):
        assert after.text == decode(list(before.token_ids))
        assert after.token_ids == before.token_ids
        assert (after.index, after.max_tokens, after.input_tokens) == (
            before.index,
            before.max_tokens,
            before.input_tokens,
        )


def test_text_that_is_there_already_stays():
    mine = PlannedRequest(0, max_tokens=1, input_tokens=1, text="hello", token_ids=(1, 2))
    assert with_text([mine]) == [mine]


def test_texts_of_several_are_those_of_each():
    drawn = SYNTHETIC_UNIFORM.requests(3, 42)
    mine = PlannedRequest(0, max_tokens=1, input_tokens=1, text="hello", token_ids=(1, 2))
    neither = PlannedRequest(0, max_tokens=1, input_tokens=1)
    requests = [drawn[0], mine, neither, *drawn[1:]]
    assert texts_of(requests) == [text_of(request) for request in requests]
    assert texts_of([]) == []


def test_realised_lengths_are_counted_again():
    texts = with_text(SYNTHETIC_UNIFORM.requests(50, 42))
    realised, requested = realised_lengths(texts), [request.input_tokens for request in texts]
    assert realised != requested  # random ids do not survive the way through text
    assert abs(sum(realised) / sum(requested) - 1) < 0.1


def test_ids_sent_as_ids_keep_their_length():
    planned = SYNTHETIC_UNIFORM.requests(10, 42)
    assert realised_lengths(planned) == [request.input_tokens for request in planned]


def test_plain_words_survive_the_way_through_text():
    ids = reference_tokenizer("cl100k_base").encode("The quick brown fox jumps over the lazy dog.")
    planned = PlannedRequest(0, max_tokens=1, input_tokens=len(ids), token_ids=ids)
    assert realised_lengths(with_text([planned])) == [len(ids)]


def test_sequence_json_is_compact_and_its_digest_is_of_that_text():
    requests = [
        PlannedRequest(0, max_tokens=7, input_tokens=2, token_ids=[5, 6]),
        PlannedRequest(1, max_tokens=8, input_tokens=1, text='say "né"'),
    ]
    text = sequence_json(requests)
    assert text == '[[7,[5,6]],[8,"say \\"n\\u00e9\\""]]'
    assert json.loads(text) == [[7, [5, 6]], [8, 'say "né"']]
    assert sequence_sha256(requests) == hashlib.sha256(text.encode()).hexdigest()


def test_an_empty_sequence():
    assert sequence_json([]) == "[]"
    assert sequence_sha256([]) == hashlib.sha256(b"[]").hexdigest()
