"""Workloads made from others: fixed outputs, salt, shared prefixes, mixtures."""

from __future__ import annotations

import json
import random
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_llmbench.errors import SuiteError
from pytest_llmbench.model.request import PlannedRequest
from pytest_llmbench.tokens import reference_tokenizer
from pytest_llmbench.workloads.adapted import Salted, SharedPrefix, WithFixedOutput, realised_sharing
from pytest_llmbench.workloads.catalogue import reference_variant, workload
from pytest_llmbench.workloads.dataset import DatasetIdentity, DatasetWorkload, Prompt
from pytest_llmbench.workloads.lengths import Fixed, Uniform, check_specification
from pytest_llmbench.workloads.long_context import LONG_CONTEXT
from pytest_llmbench.workloads.mixture import Mixture, Part, chat_reasoning_mix
from pytest_llmbench.workloads.sequence import text_of
from pytest_llmbench.workloads.synthetic import SYNTHETIC_SKEWED, SYNTHETIC_UNIFORM, SyntheticWorkload

COUNT = reference_tokenizer().count
TEXTS = DatasetWorkload(
    "questions",
    tuple(Prompt(f"What is {k} + {k}?", 20) for k in range(9)),
    DatasetIdentity("questions", "1", "all"),
)
DOCUMENTS = LONG_CONTEXT.at_length(400)
SMALL = SyntheticWorkload("small", Uniform(8, 30), Fixed(4))
MADE = [
    SYNTHETIC_UNIFORM,
    WithFixedOutput(SYNTHETIC_UNIFORM, 256),
    Salted(SYNTHETIC_SKEWED, "a"),
    Salted(TEXTS, "a"),
    Salted(DOCUMENTS, "a"),
    SharedPrefix("shared", SMALL, Uniform(20, 40), 0.3, prefixes=3),
    SharedPrefix("shared", TEXTS, Fixed(64), 0.5),
    SharedPrefix("shared", DOCUMENTS, Fixed(64), 0.5),
    chat_reasoning_mix(SYNTHETIC_UNIFORM, SYNTHETIC_SKEWED),
    Mixture("several", (Part("q", TEXTS, 2), Part("d", DOCUMENTS, 1))),
]


@pytest.mark.parametrize("made", MADE, ids=lambda made: f"{type(made).__name__}-{made.name}")
def test_they_are_complete_deterministic_and_extend(made):
    assert check_specification(made) == []
    assert workload(made) is made
    assert json.loads(json.dumps(made.specification())) == made.specification()
    long = made.requests(40, 7)
    assert list(made.requests(15, 7)) == list(long[:15])
    assert [request.index for request in long] == list(range(40))
    assert list(made.requests(40, 8)) != list(long)
    assert hash(made) == hash(made)
    with pytest.raises(SuiteError, match="give a whole number"):
        made.requests(1, -3)


def test_a_fixed_output_leaves_the_inputs_alone():
    fixed = WithFixedOutput(SYNTHETIC_UNIFORM, 256)
    for before, after in zip(SYNTHETIC_UNIFORM.requests(20, 42), fixed.requests(20, 42), strict=True):
        assert after.token_ids == before.token_ids
        assert after.input_tokens == before.input_tokens
        assert after.max_tokens == 256
    assert (fixed.name, fixed.standard) == ("synthetic-uniform", True)
    stated = fixed.specification()
    assert stated["output_length"]["type"] == "fixed"
    assert stated["output_length"]["params"] == {"tokens": 256}
    assert stated["output_length"]["control"] == "max_tokens"
    (deviation,) = stated["deviations"]
    assert deviation["instead_of"]["params"] == {"min": 64, "max": 256, "mean": 160.0}
    assert "AMB-11" in deviation["rule"]
    assert reference_variant("synthetic-uniform", stated) == fixed
    assert not WithFixedOutput(SMALL, 9).standard
    with pytest.raises(SuiteError, match="at least 1"):
        WithFixedOutput(SYNTHETIC_UNIFORM, 0)


@pytest.mark.parametrize("base", [SYNTHETIC_UNIFORM, SMALL, DOCUMENTS], ids=lambda base: base.name)
def test_salt_makes_every_beginning_different_and_keeps_lengths(base):
    plain, salted, other = (
        made.requests(300, 42) for made in (base, Salted(base, "run 1"), Salted(base, "run 2"))
    )
    starts = [tuple(request.token_ids[:6]) for request in (*plain, *salted, *other)]
    assert len(set(starts)) == len(starts)
    assert len({start[:3] for start in starts[300:600]}) == 300
    for before, after in zip(plain, salted, strict=True):
        assert len(after.token_ids) == after.input_tokens == before.input_tokens
        assert list(after.token_ids[6:]) == list(before.token_ids[6:])
        assert max(after.token_ids) <= 100_255
        assert after.max_tokens == before.max_tokens
    assert Salted(base, "x").name == f"{base.name} (salted)"
    assert not Salted(base, "x").standard


def test_salted_documents_keep_their_length_as_text():
    for request in Salted(DOCUMENTS, "x").requests(20, 3):
        assert COUNT(text_of(request)) == 400


def test_salted_texts_are_counted_again():
    requests = Salted(TEXTS, "x").requests(30, 3)
    assert len({request.text[:14] for request in requests}) == 30
    for before, after in zip(TEXTS.requests(30, 3), requests, strict=True):
        assert after.text.endswith(before.text)
        assert after.input_tokens == COUNT(after.text) > before.input_tokens


def test_salt_ends_the_sharing_of_prefixes():
    shared = SharedPrefix("shared", SMALL, Fixed(64), 1.0)
    salted = Salted(shared, "x")
    assert all(request.prefix_id is None for request in salted.requests(20, 1))
    assert salted.specification()["prefix_sharing"]["fraction"] == 0.0
    with pytest.raises(SuiteError, match="salt is empty"):
        Salted(SMALL, "")


@settings(max_examples=25)
@given(
    seed=st.integers(0, 10**6),
    fraction=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    prefixes=st.integers(1, 4),
)
def test_shared_prefixes_are_shared(seed, fraction, prefixes):
    made = SharedPrefix("shared", SMALL, Uniform(20, 40), fraction, prefixes)
    heads = {}
    requests = made.requests(40, seed)
    for before, after in zip(SMALL.requests(40, seed), requests, strict=True):
        length = after.shared_prefix_tokens
        assert list(after.token_ids[length:]) == list(before.token_ids)
        assert after.input_tokens == len(after.token_ids) == before.input_tokens + length
        if after.prefix_id is None:
            assert length == 0
        else:
            assert length == made.shared_prefixes(seed)[after.prefix_id]
            head = tuple(after.token_ids[:length])
            assert heads.setdefault(after.prefix_id, head) == head
    assert len(set(heads.values())) == len(heads)
    assert sum(request.prefix_id is not None for request in requests) == round(40 * fraction)


def test_shared_prefixes_of_text_are_text():
    made = SharedPrefix("shared", TEXTS, Fixed(64), 0.5)
    sharers = [request for request in made.requests(20, 1) if request.prefix_id is not None]
    assert len(sharers) == 10
    heads = {request.text.split("\n\n")[0] for request in sharers}
    assert len(heads) == 1
    assert COUNT(heads.pop()) == 64
    assert all(request.input_tokens == COUNT(request.text) for request in sharers)
    facts = realised_sharing(made, 0, 20, 1)
    assert facts == {"realised_fraction": 0.5, "contexts": [64], "realised_by_rank": [10]}


def test_sharing_is_still_known_with_a_fixed_output():
    fixed = WithFixedOutput(SharedPrefix("shared", SMALL, Fixed(64), 0.5), 8)
    assert realised_sharing(fixed, 0, 20, 1)["contexts"] == [64]
    assert realised_sharing(WithFixedOutput(SMALL, 8), 0, 20, 1) == {}


def test_mistakes_of_shared_prefixes_are_listed():
    shared = SharedPrefix("shared", SMALL, Fixed(64), 0.5)
    with pytest.raises(SuiteError, match="4 mistakes"):
        SharedPrefix("", shared, Fixed(8), 1.5, prefixes=0)


def test_a_mixture_takes_each_part_in_its_own_order():
    mix = Mixture("several", (Part("q", TEXTS, 3), Part("s", SMALL, 1)))
    requests = mix.requests(400, 9)
    generator = random.Random(9)
    assert [r.class_label for r in requests] == [
        "q" if generator.random() < 0.75 else "s" for _ in range(400)
    ]
    questions = [request for request in requests if request.class_label == "q"]
    assert mix.shares == (0.75, 0.25)
    from pytest_llmbench.workloads.stream import derived_seed

    alone = TEXTS.requests(len(questions), derived_seed(9, "part 0"))
    assert [request.text for request in questions] == [request.text for request in alone]


def test_prefixes_of_different_parts_are_different_ones():
    a, b = (SharedPrefix(name, SMALL, Fixed(16), 1.0, prefixes=2) for name in "ab")
    requests = Mixture("both", (Part("a", a, 1), Part("b", b, 1))).requests(100, 1)
    heads = {(request.prefix_id, tuple(request.token_ids[:16])) for request in requests}
    assert len(heads) == len({prefix for prefix, _ in heads}) == len({head for _, head in heads}) == 4


def test_chat_and_reasoning():
    mix = chat_reasoning_mix(SYNTHETIC_UNIFORM, SYNTHETIC_SKEWED, ratio=0.4)
    counts = Counter(request.class_label for request in mix.requests(1000, 1))
    assert set(counts) == {"chat", "reasoning"}
    assert abs(counts["reasoning"] - 400) < 80
    stated = mix.specification()
    assert [part["share"] for part in stated["parts"]] == pytest.approx([0.6, 0.4])
    assert stated["content"]["domain"] == "random"
    assert not mix.standard
    with pytest.raises(SuiteError, match="between 0 and 1"):
        chat_reasoning_mix(SYNTHETIC_UNIFORM, SYNTHETIC_SKEWED, ratio=40)


def test_a_mixture_states_the_data_sets_of_its_parts():
    stated = Mixture("several", (Part("q", TEXTS, 1), Part("s", SMALL, 1))).specification()
    assert stated["dataset"]["name"] == "questions"
    assert stated["content"]["domain"] == "general, random"
    assert stated["input_length"]["params"]["mixture"][1]["type"] == "uniform"


def test_mistakes_of_a_mixture_are_listed():
    with pytest.raises(SuiteError, match="at least two"):
        Mixture("one", (Part("a", SMALL, 1),))
    with pytest.raises(SuiteError, match="3 mistakes"):
        Mixture("", (Part("a", SMALL, 0), Part("a", TEXTS, 1)))
    warm = SyntheticWorkload("warm", Fixed(3), Fixed(3), temperature=1.0)
    with pytest.raises(SuiteError, match="different values of temperature"):
        Mixture("both", (Part("a", SMALL, 1), Part("b", warm, 1)))


class Foreign:
    """A workload from somebody else's code, with nothing but the four members."""

    name = "foreign"
    standard = False

    def requests(self, count, seed):
        return [
            PlannedRequest(k, max_tokens=5, input_tokens=2, text=f"{seed} {k}")
            for k in range(min(count, 200))
        ]

    def specification(self):
        return SYNTHETIC_UNIFORM.specification()


def test_foreign_workloads_can_be_adapted_until_they_end():
    fixed = WithFixedOutput(Foreign(), 9)
    assert [request.text for request in fixed.requests(150, 3)] == [f"3 {k}" for k in range(150)]
    assert len(fixed.requests(500, 3)) == 200
