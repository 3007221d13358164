"""Synthetic-Uniform is the draft's sequence, bit for bit; others of its making follow the same order."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import Workload
from pytest_llmbench.workloads.lengths import Fixed, Uniform, check_specification
from pytest_llmbench.workloads.sequence import sequence_json, sequence_sha256
from pytest_llmbench.workloads.synthetic import SYNTHETIC_UNIFORM, SyntheticWorkload

PUBLISHED = {
    1: "b83712a07fe996849fb07fe02483087073c903d07f5e9a010c88129458a323f0",
    10: "d933fa214ebe9fef746e440e17f966623d52a197d6dd6ae8eec0decb7aa2636a",
    100: "aa2c099e10846e167bc132907b0da01d5715807166afd31a709906b812dbb226",
    1000: "b5de377f70af9851088f56494ffeedee809bfff1b51e155a2cd8a604dfdf2e10",
}


def by_the_draft(count: int, seed: int, inputs=(128, 512), outputs=(64, 256), highest=100_255):
    """Appendix A.1.4 word for word, with nothing but Python's generator."""
    generator = random.Random(seed)
    sequence = []
    for _ in range(count):
        length = generator.randint(*inputs)
        limit = generator.randint(*outputs)
        sequence.append([limit, [generator.randint(0, highest) for _ in range(length)]])
    return sequence


@pytest.mark.parametrize("count", PUBLISHED)
def test_synthetic_uniform_reproduces_published_hashes(count: int):
    assert sequence_sha256(SYNTHETIC_UNIFORM.requests(count, 42)) == PUBLISHED[count]


def test_first_requests_are_the_published_ones():
    requests = SYNTHETIC_UNIFORM.requests(5, 42)
    pairs = [(request.input_tokens, request.max_tokens) for request in requests]
    assert pairs == [(455, 92), (454, 131), (171, 125), (200, 82), (207, 83)]
    assert list(requests[0].token_ids[:5]) == [3278, 97196, 36048, 32098, 29256]
    assert list(requests[0].token_ids[-2:]) == [43719, 17146]


def test_a_thousand_requests_have_the_published_sums():
    requests = SYNTHETIC_UNIFORM.requests(1000, 42)
    assert sum(request.input_tokens for request in requests) == 315_346
    assert sum(request.max_tokens for request in requests) == 160_203


def test_requests_are_as_the_draft_describes_them():
    for index, request in enumerate(SYNTHETIC_UNIFORM.requests(300, 7)):
        assert request.index == index
        assert 128 <= request.input_tokens == len(request.token_ids) <= 512
        assert 64 <= request.max_tokens <= 256
        assert request.temperature == 0.0
        assert request.text is None
        assert min(request.token_ids) >= 0
        assert max(request.token_ids) <= 100_255


@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**64),
    count=st.integers(0, 12),
    inputs=st.tuples(st.integers(1, 700), st.integers(0, 700)),
    outputs=st.tuples(st.integers(1, 300), st.integers(0, 300)),
    highest=st.integers(0, 2**20),
)
def test_every_law_and_seed_equals_the_plain_loop(seed, count, inputs, outputs, highest):
    inputs, outputs = (inputs[0], sum(inputs)), (outputs[0], sum(outputs))
    workload = SyntheticWorkload("mine", Uniform(*inputs), Uniform(*outputs), highest_token_id=highest)
    drawn = json.loads(sequence_json(workload.requests(count, seed)))
    assert drawn == by_the_draft(count, seed, inputs, outputs, highest)


def test_fixed_lengths_take_nothing_from_the_generator():
    workload = SyntheticWorkload("fixed", Fixed(3), Fixed(8))
    generator = random.Random(42)
    expected = [generator.randint(0, 100_255) for _ in range(6)]
    drawn = [token for request in workload.requests(2, 42) for token in request.token_ids]
    assert drawn == expected


def test_ten_thousand_requests_are_drawn_and_hashed():
    requests = SYNTHETIC_UNIFORM.requests(10_000, 42)
    assert sequence_sha256(requests[:1000]) == PUBLISHED[1000]
    assert len({bytes(request.token_ids) for request in requests}) == 10_000


def test_specification_states_everything_the_draft_asks():
    specification = SYNTHETIC_UNIFORM.specification()
    assert check_specification(SYNTHETIC_UNIFORM) == []
    assert specification["input_length"] == {
        "type": "uniform",
        "params": {"min": 128, "max": 512, "mean": 320.0},
        "unit": "tokens",
        "tokenizer": "cl100k_base",
    }
    assert specification["output_length"]["params"] == {"min": 64, "max": 256, "mean": 160.0}
    assert specification["output_length"]["control"] == "max_tokens"
    assert specification["content"]["system_prompt"] == {"present": False, "typical_tokens": 0}
    assert specification["prefix_sharing"]["fraction"] == 0.0
    assert specification["stop"] == []
    assert json.loads(json.dumps(specification)) == specification


def test_specifications_differ_where_sequences_differ():
    laws = (Uniform(128, 512), Uniform(64, 256))
    smaller = SyntheticWorkload("mine", *laws, highest_token_id=31_999)
    assert smaller.specification() != SyntheticWorkload("mine", *laws).specification()


def test_only_the_reference_parameters_are_standard():
    assert isinstance(SYNTHETIC_UNIFORM, Workload)
    assert SYNTHETIC_UNIFORM.standard
    assert not SyntheticWorkload("mine", Uniform(128, 512), Uniform(64, 256)).standard


@pytest.mark.parametrize("name", ["synthetic-uniform", "synthetic-skewed", "conversation"])
def test_a_reference_name_cannot_be_borrowed(name):
    with pytest.raises(SuiteError, match="belongs to a reference workload"):
        SyntheticWorkload(name, Uniform(1, 2), Uniform(1, 2))


def test_all_mistakes_are_listed_together():
    with pytest.raises(SuiteError, match="3 mistakes"):
        SyntheticWorkload("", Fixed(1), Fixed(1), highest_token_id=-1, temperature=-0.5)


@pytest.mark.parametrize("seed", [-1, 1.5, "42", None, True])
def test_seeds_that_are_no_whole_numbers_are_refused(seed):
    with pytest.raises(SuiteError, match="give a whole number"):
        SYNTHETIC_UNIFORM.requests(1, seed)
