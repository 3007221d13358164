"""Long Context: exact lengths as ids and as text, a question of 100 tokens, no two documents alike."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.draft import CONTEXT_LENGTHS
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.catalogue import reference_variant, workload
from pytest_llmbench.workloads.lengths import Choice, Fixed, Uniform, check_specification
from pytest_llmbench.workloads.long_context import (
    LONG_CONTEXT,
    LONG_CONTEXT_UNIFORM,
    MIXED_TARGETS,
    LongContextWorkload,
    fitting_targets,
    long_context,
)
from pytest_llmbench.workloads.readable import WORDS, as_ids, readable_ids
from pytest_llmbench.workloads.sequence import sequence_sha256, text_of
from pytest_llmbench.workloads.stream import BulkRandom

TOKENIZER = reference_tokenizer()


def test_every_word_is_one_token_and_occurs_once():
    assert len(set(WORDS)) == len(WORDS) == 903
    assert [word for word in WORDS if TOKENIZER.count(f" {word}") != 1] == []


@settings(max_examples=60)
@given(seed=st.integers(0, 10**9), tokens=st.integers(1, 300))
def test_readable_text_has_exactly_the_ids_it_was_drawn_as(seed, tokens):
    ids = list(as_ids(readable_ids(BulkRandom(seed), tokens)))
    assert len(ids) == tokens
    assert TOKENIZER.encode(TOKENIZER.decode(ids)) == ids


@settings(max_examples=60)
@given(seed=st.integers(0, 10**9), target=st.integers(124, 700))
def test_prompts_have_exactly_the_target_length_as_text_too(seed, target):
    requests = LONG_CONTEXT.at_length(target).requests(3, seed)
    for request in requests:
        assert request.input_tokens == len(request.token_ids) == target
        assert TOKENIZER.encode(text_of(request)) == list(request.token_ids)
        assert request.max_tokens == 256


def test_the_question_has_a_hundred_tokens_and_quotes_the_document():
    for request in LONG_CONTEXT.at_length(1024).requests(40, 9):
        document, question = text_of(request).split("\n\n")
        assert 99 <= TOKENIZER.count(question) <= 101
        assert question.startswith("Question: The document above")
        quoted = question.split("stand the words")[1].split(", in exactly")[0]
        assert quoted in document
        assert TOKENIZER.count(quoted) == 12


def test_documents_are_all_different_from_the_start():
    requests = LONG_CONTEXT.at_length(1024).requests(200, 1)
    assert len({tuple(request.token_ids[:16]) for request in requests}) == 200
    assert all(request.prefix_id is None for request in requests)


def test_a_long_document_is_exact_as_well():
    (request,) = LONG_CONTEXT.at_length(131_072).requests(1, 42)
    assert TOKENIZER.count(text_of(request)) == 131_072


def test_the_sequence_is_pinned_and_a_shorter_one_is_its_beginning():
    requests = LONG_CONTEXT.at_length(1024).requests(10, 42)
    assert sequence_sha256(requests) == PINNED_1024
    assert list(LONG_CONTEXT.at_length(1024).requests(4, 42)) == list(requests[:4])
    assert sequence_sha256(LONG_CONTEXT.at_length(1024).requests(10, 43)) != PINNED_1024


PINNED_1024 = "90d728168918b3b45e2e08a29f97e7e739a7af898bdf4d7bd41dc4c1de6d38f7"


def test_mixed_targets_are_those_of_the_appendix():
    limited = long_context(limit_tokens=20_000)
    assert limited.targets == Choice((8192, 16384))
    assert {request.input_tokens for request in limited.requests(20, 1)} == {8192, 16384}
    assert long_context() == LONG_CONTEXT
    assert long_context(131_072).targets == Choice(MIXED_TARGETS[:-1])
    assert long_context(131_328) == LONG_CONTEXT


def test_the_variant_of_the_body_is_uniform():
    assert LONG_CONTEXT_UNIFORM.targets == Uniform(8192, 32768)
    assert all(8192 <= r.input_tokens <= 32768 for r in LONG_CONTEXT_UNIFORM.requests(5, 1))
    assert LONG_CONTEXT_UNIFORM.at_length(2048).name == "long-context"


def test_lengths_that_do_not_fit_are_cut():
    assert fitting_targets(CONTEXT_LENGTHS, None, remedy="") == CONTEXT_LENGTHS
    assert fitting_targets(CONTEXT_LENGTHS, 8192 + 256, remedy="") == (1024, 2048, 4096, 8192)
    assert fitting_targets(CONTEXT_LENGTHS, 8192, remedy="") == (1024, 2048, 4096)
    with pytest.raises(SuiteError, match=r"2 of the lengths .* at least 3 are needed"):
        fitting_targets(CONTEXT_LENGTHS, 4096, at_least=3, remedy="")
    with pytest.raises(SuiteError, match="0 of the lengths"):
        long_context(limit_tokens=8192)
    assert fitting_targets((300, 500), 600, output_tokens=100, remedy="") == (300, 500)


def test_only_the_drafts_structure_is_standard():
    fixed = LONG_CONTEXT.at_length(2000)
    assert (fixed.name, fixed.standard, fixed.targets) == ("long-context", True, Fixed(2000))
    assert LONG_CONTEXT_UNIFORM.standard
    assert not LongContextWorkload(Fixed(2000), name="mine").standard
    assert LongContextWorkload(Fixed(2000), name="mine").at_length(500).name == "mine"
    for wrong in (
        {"targets": Fixed(2000), "output_tokens": 128},
        {"targets": Fixed(2000), "temperature": 0.7},
        {"targets": Uniform(1000, 2000)},
        {"targets": Fixed(2000), "name": "long-context-uniform"},
    ):
        with pytest.raises(SuiteError, match="belongs to a reference workload"):
            LongContextWorkload(**wrong)
    with pytest.raises(SuiteError, match="3 mistakes"):
        LongContextWorkload(Fixed(100), name="", output_tokens=0)


@pytest.mark.parametrize("made", [LONG_CONTEXT, LONG_CONTEXT_UNIFORM, LONG_CONTEXT.at_length(4096)])
def test_specifications_are_complete_and_lead_back_to_the_workload(made):
    assert check_specification(made) == []
    assert workload(made) is made
    specification = json.loads(json.dumps(made.specification()))
    assert specification["content"]["question_tokens"] == 100
    assert specification["prefix_sharing"]["fraction"] == 0
    assert reference_variant(made.name, specification) == made
