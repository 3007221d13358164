"""Text of prompts, what length came of it, and the digest of a sequence."""

from __future__ import annotations

import hashlib
import json

from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.sequence import sequence_json, sequence_sha256, text_of, texts_of
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM


def test_a_text_is_decoded_from_ids_unless_it_is_there_already():
    drawn = SYNTHETIC_UNIFORM.requests(20, 42)
    decode = reference_tokenizer("cl100k_base").decode
    assert [text_of(request) for request in drawn] == [decode(list(request.token_ids)) for request in drawn]
    mine = PlannedRequest(0, max_tokens=1, input_tokens=1, text="hello", token_ids=(1, 2))
    assert text_of(mine) == "hello"
    neither = PlannedRequest(0, max_tokens=1, input_tokens=1)
    requests = [drawn[0], mine, neither, *drawn[1:]]
    assert texts_of(requests) == [text_of(request) for request in requests]
    assert texts_of([]) == []


def test_random_ids_do_not_survive_the_way_through_text_and_plain_words_do():
    requests, count = SYNTHETIC_UNIFORM.requests(50, 42), reference_tokenizer().count
    realised, requested = [*map(count, texts_of(requests))], [request.input_tokens for request in requests]
    assert realised != requested
    assert abs(sum(realised) / sum(requested) - 1) < 0.1
    ids = reference_tokenizer().encode("The quick brown fox jumps over the lazy dog.")
    assert count(text_of(PlannedRequest(0, max_tokens=1, input_tokens=len(ids), token_ids=ids))) == len(ids)


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
